// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package testenv decides which slow tests run.
package testenv

import "testing"

// Slow skips a test that takes a second or more if -short is set.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
}
