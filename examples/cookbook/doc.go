// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package cookbook holds the recipes of docs/cookbook.md. Each Go block there is
// a declaration of this package, word for word, and each recipe has a test at a
// server that behaves as the real one does.
package cookbook
