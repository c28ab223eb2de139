// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"math"
	"math/bits"
	"time"
)

const (
	// few bounds the servers of which the order tells: that of more workers
	// takes long to see.
	few = 32

	block    = 20   // requests that end: the highest rank is that of the last one or two blocks
	rounding = 0.1  // of the numbers of workers
	telling  = 20   // how much a rank tells, as an exponent, if times vary as those of an exponential distribution
	unlikely = 0.01 // of numbers of workers that contradict the order
	partial  = 4    // how much more likely they are if a few times are much longer than others, as an exponent: those keep workers busy, and the ranks of others low
	sharing  = 0.2  // of fewer workers than requests in progress, all of which may end next: they would share the work
)

// order is the order in which requests end. A server that takes them as they
// come works on the oldest ones, as many as it has workers, and a younger one
// can't end before. If times vary, the ranks of those that end soon tell the
// number of workers, without a measurement at another level. If times are
// constant, the oldest always ends first and the order tells nothing.
type order struct {
	begun           uint16        // requests
	inside          uint64        // bit i is set while the request that began i requests before the last is in progress
	together        uint64        // the same for those that began at the same time as the one before
	last            time.Duration // when the last one began
	all             int           // requests in progress; those that aren't among the bits are older
	ended           int           // since the limit has grown
	highest, before int           // the highest ranks of requests that ended in this block and in the one before, the oldest being 1
}

// begin returns the number of a request that begins.
func (o *order) begin(now time.Duration) uint16 {
	o.begun++
	o.inside = o.inside<<1 | 1
	o.together <<= 1
	if now == o.last {
		o.together |= 1
	}
	o.last = now
	o.all++
	return o.begun
}

// leave takes a request out that has ended or is gone, and returns its rank, or
// 0 if it began too long ago. Of those that began at the same time, any may be
// the oldest.
func (o *order) leave(number uint16) int {
	rank := 0
	if ago := o.begun - number; ago < 64 {
		older := o.all - bits.OnesCount64(o.inside)
		first := ago + uint16(bits.TrailingZeros64(^(o.together >> ago)))
		rank = older + bits.OnesCount64(o.inside>>first>>1) + 1
		o.inside &^= 1 << ago
	}
	o.all--
	return rank
}

// end says that a request has ended. At a lower level than before, ranks that
// are lower than before tell nothing.
func (o *order) end(number uint16, isLow bool) {
	rank := o.leave(number)
	o.highest = max(o.highest, rank)
	if rank == 0 || isLow {
		return
	}
	if o.ended++; o.ended%block == 0 {
		o.before, o.highest = o.highest, 0
	}
}

// reach returns the highest rank of late.
func (o *order) reach() int { return max(o.highest, o.before) }

// grow says that the limit is much larger than before. The ranks of requests
// that began before tell nothing of it.
func (o *order) grow() { o.ended, o.highest, o.before = 0, 0, 0 }

// tells reports whether enough requests have ended since the limit has grown.
func (o *order) tells(limit int) bool { return limit <= few && o.ended >= max(block, limit) }

// weigh makes the numbers of workers less likely that the order contradicts.
// Variance is that of a request's time over the square of the mean, and scatter
// that of the time with the wait. While the youngest end as early as others,
// more workers are possible, and fewer only if they share the work.
func (o *order) weigh(b *belief, variance, scatter float64, limit int) {
	if !o.tells(limit) {
		return
	}
	exponent := telling * min(scatter, 1/scatter)
	floor := min(1, unlikely*math.Pow(max(1, variance), partial))
	fewer := floor
	if o.reach() >= limit {
		fewer = max(floor, sharing)
	}
	reach := float64(o.reach())
	for i := range b {
		// With more workers than the limit, no rank is higher either.
		if more := min(sizes[i], float64(limit)) / (reach + rounding); more > 1 {
			b[i].p *= max(floor, math.Pow(more, -exponent))
		} else if less := sizes[i] * ratio / reach; less < 1 {
			b[i].p *= max(fewer, math.Pow(less, exponent))
		}
	}
	b.normalize()
}
