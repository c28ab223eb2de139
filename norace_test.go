// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package retrip

// raceEnabled says that the race detector is on, which makes everything ten
// times slower.
const raceEnabled = false
