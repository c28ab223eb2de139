// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"math"
	"time"
)

// Overdue says that a request that began at the time since is still in progress
// at the time now, longer than Long: it may hang, and another takes its place. But
// if none has been completed since then, the server may have too many. Then the
// others have more time, until the new one is completed.
func (r *Rule) Overdue(tag uint32, since, now time.Duration) {
	r.Drop(tag)
	if r.completed < since {
		r.hanging = max(r.hanging, now-since)
	}
}

// EndOverdue says how long a request took that was overdue.
func (r *Rule) EndOverdue(took time.Duration) { r.complete(took) }

// complete is told of every request that is completed.
func (r *Rule) complete(took time.Duration) {
	r.typical.add(math.Log(float64(max(1, took))), 1, recent)
	r.completed, r.earlySince, r.hanging = r.now, r.now, 0
}

// Long returns after how long a request may hang: one takes much longer than
// others, or twice as long as one did while none was completed. It is 0 while
// nothing is known.
func (r *Rule) Long() time.Duration {
	long := 2 * r.hanging
	if r.typical.n > 0 {
		long = max(long, muchLonger*time.Duration(math.Exp(r.typical.mean)))
	}
	return long
}
