// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package chance is where the library gets its random numbers, so that a test can
// choose them.
package chance

import "math/rand/v2"

// Source, if not nil, replaces the random numbers. Only a test that runs alone may set
// it.
var Source func() uint64

// Draw returns a uniformly distributed random number. It is safe for concurrent use.
func Draw() uint64 {
	if Source != nil {
		return Source()
	}
	return rand.Uint64()
}
