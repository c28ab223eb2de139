// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"time"
)

func (r *run) firstArrival() int64 {
	if r.Arrivals.Regular || r.Arrivals.AtOnce {
		return 0
	}
	return int64(r.arrivals.exponential(float64(time.Second) / r.Arrivals.Rate))
}

// arrive begins a request and schedules the next arrival.
func (r *run) arrive() {
	client := int32(r.arrived % r.Fleet.Clients)
	if !r.Arrivals.Regular && !r.Arrivals.AtOnce {
		client = r.pick()
	}
	r.arrived++
	if r.Arrivals.Count == 0 || r.arrived < r.Arrivals.Count {
		mean := float64(time.Second) / r.Arrivals.Rate
		if r.Trigger.Surge > 0 && r.troubled() {
			mean /= r.Trigger.Surge
		}
		var gap int64
		switch {
		case r.Arrivals.AtOnce:
		case r.Arrivals.Regular:
			gap = int64(mean)
		default:
			gap = int64(r.arrivals.exponential(mean))
		}
		r.queue.push(r.now+gap, 0, happensArrival)
	}
	r.point().Requests++
	r.seconds.at(r.now).requests++
	if r.troubled() {
		r.result.TriggerRequests++
	}
	r.begin(client)
}

func (r *run) pick() int32 {
	if r.shares == nil {
		return int32(r.arrivals.below(uint64(r.Fleet.Clients)))
	}
	draw := r.arrivals.Uint64()
	lo, hi := 0, len(r.shares)-1
	for lo < hi {
		if mid := (lo + hi) / 2; draw <= r.shares[mid] {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return int32(lo)
}

// unequal returns the upper ends of the ranges of draws that choose each
// client: a draw u, uniform in [0, 1), chooses client number floor(C^u).
func unequal(clients int) []uint64 {
	shares := make([]uint64, clients)
	whole := ln(float64(clients + 1))
	for i := range shares {
		shares[i] = uint64(newChance(ln(float64(i+2)) / whole))
	}
	shares[clients-1] = math.MaxUint64
	return shares
}
