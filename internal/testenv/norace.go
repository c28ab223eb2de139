// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package testenv

// Race says that the race detector is on. Code then allocates more, and takes
// ten times as long.
const Race = false
