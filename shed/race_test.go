// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package shed_test

// raceEnabled says that the race detector makes everything ten times slower.
const raceEnabled = true
