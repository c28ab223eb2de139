// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package cookbook contains the recipes of docs/cookbook.md. Each Go block of
// that page is a declaration of this package, word for word. Each recipe has a
// test with a server that behaves like the real one.
package cookbook
