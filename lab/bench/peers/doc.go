// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package peers backs docs/migrating.md. Its tests show how other retry
// libraries behave in the configuration that their own documentation starts
// with, and how retrip behaves in the same situation. TestMixed compares retrip
// with other programs that continue downloads.
package peers
