// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/testenv"
)

// A world happens again exactly as before, on one processor and on two.
func TestRun_Replays(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector changes the order of goroutines")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	most := uint64(*replays)
	differ := 0
	for s := *seed; s < *seed+most; s++ {
		var first Outcome
		for i, processors := range []int{1, 2, 1, 2} {
			runtime.GOMAXPROCS(processors)
			plan := planOf(record(s))
			o := Run(t, &plan)
			if i == 0 {
				first = o
			} else if a, b := first.Log(), o.Log(); a != b {
				differ++
				at := 0
				for at < min(len(a), len(b)) && a[at] == b[at] {
					at++
				}
				t.Logf("world %d, run %d: %q, and then %q instead of %q", s, i, a[max(0, at-100):at], b[at:min(len(b), at+200)], a[at:min(len(a), at+200)])
				break
			}
		}
	}
	// If a context ends at the instant at which something else breaks a body, net/http
	// returns the error that a select statement happens to choose.
	assert.LessOrEqual(t, differ, max(1, *replays/100), "worlds that differ, of %d", most)
}
