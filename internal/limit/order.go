// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"math"
	"math/bits"
)

const (
	// few bounds the servers of which the order tells: that of more workers
	// takes long to see.
	few = 32

	forgets  = 0.03 // of the highest rank, with each request that ends
	rounding = 0.1  // of a rank that is forgotten in part
	telling  = 20   // how much a rank tells, as an exponent, if times vary as those of an exponential distribution
	unlikely = 0.02 // of numbers of workers that contradict the order: a server may share its work among all requests
)

// order is the order in which requests end. A server that takes them as they
// come works on the oldest ones, as many as it has workers, and a younger one
// can't end before. If times vary, the ranks of those that end soon tell the
// number of workers, without a measurement at another level. If times are
// constant, the oldest always ends first and the order tells nothing.
type order struct {
	inside uint64 // bit i is set while the request that began i requests before the last is in progress
	begun  uint32
	reach  float64 // the highest rank of a request that ended, the oldest being 1; it fades
}

// begin returns the number of a request that begins; end wants it modulo 64.
func (o *order) begin() uint32 {
	o.begun++
	o.inside = o.inside<<1 | 1
	return o.begun
}

// leave takes a request out that has ended or is gone, and returns its rank, or
// 0 if it began too long ago.
func (o *order) leave(number uint32) int {
	ago := (o.begun - number) % 64
	if o.inside>>ago&1 == 0 {
		return 0
	}
	o.inside &^= 1 << ago
	return bits.OnesCount64(o.inside>>ago) + 1
}

// end says that a request has ended. At a lower level than before, ranks that
// are lower than before tell nothing.
func (o *order) end(number uint32, isLow bool) {
	if rank := float64(o.leave(number)); rank > o.reach || rank > 0 && !isLow {
		o.reach = max(rank, o.reach*(1-forgets))
	}
}

// proves reports whether the order shows that the server is smaller than the
// limit and works on the oldest requests.
func (o *order) proves(limit int) bool {
	return limit <= few && o.reach > 0 && o.reach <= float64(limit-1)
}

// weigh makes the numbers of workers less likely that the order contradicts.
// Scatter is the variance of the times over the square of their mean. While the
// youngest end as early as others, more workers are possible, and so are fewer
// that share the work.
func (o *order) weigh(b *belief, scatter float64, limit int) {
	if limit > few || o.reach == 0 {
		return
	}
	exponent := telling * min(1, scatter)
	proves := o.proves(limit)
	for i := range b {
		if more := sizes[i] / (o.reach + rounding); more > 1 {
			b[i].p *= max(unlikely, math.Pow(more, -exponent))
		} else if less := sizes[i] * ratio / o.reach; less < 1 && proves {
			b[i].p *= max(unlikely, math.Pow(less, exponent))
		}
	}
	b.normalize()
}
