// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package shed_test

// raceEnabled is true under the race detector, which makes code about ten times
// slower.
const raceEnabled = true
