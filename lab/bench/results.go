// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"math"
	"os"
	"slices"
)

// timing is one timing of one peer.
type timing struct {
	Case, Peer    string
	Round, N      int
	Ns            float64 // per operation
	Allocs, Bytes int64   // per operation
}

// results holds all measurements.
type results struct {
	Machine, Go, Date string
	Procs, Rounds     int
	Versions          map[string]string // of the peers' modules
	Runs              []timing
	Loopback          map[string]map[string][]float64 // by protocol and peer, from measureLoopback
	Weights           []weight
}

// load returns the results that were saved at path.
func load(path string) (*results, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &results{}
	return r, json.Unmarshal(data, r)
}

// summary summarizes the rounds of one peer in one case. All are medians.
type summary struct {
	ns     float64
	over   float64 // difference from the reference in the same round
	allocs int64
	more   int64 // allocations beyond those of the reference
}

// reference returns the peer that the others are compared with in a case: bare
// net/http, if it can do the same.
func (r *results) reference(name string) string {
	for _, run := range r.Runs {
		if run.Case == name {
			return run.Peer
		}
	}
	return ""
}

func (r *results) rounds(name, peer string) []timing {
	var list []timing
	for _, run := range r.Runs {
		if run.Case == name && run.Peer == peer {
			list = append(list, run)
		}
	}
	slices.SortFunc(list, func(a, b timing) int { return cmp.Compare(a.Round, b.Round) })
	return list
}

// summary summarizes the runs; ok is false if there are none.
func (r *results) summary(name, peer string) (s summary, ok bool) {
	own, reference := r.rounds(name, peer), r.rounds(name, r.reference(name))
	if len(own) == 0 {
		return s, false
	}
	var ns, over []float64
	var allocs, more []int64
	for i, run := range own {
		ns = append(ns, run.Ns)
		over = append(over, run.Ns-reference[i].Ns)
		allocs = append(allocs, run.Allocs)
		more = append(more, run.Allocs-reference[i].Allocs)
	}
	return summary{median(ns), median(over), median(allocs), median(more)}, true
}

// median returns the median of list, or the upper of the two middle elements.
func median[T cmp.Ordered](list []T) T {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// loopback returns how much longer a request over a loopback socket takes than
// with bare net/http, as a fraction, and half the width of the 95 % confidence
// interval of the median.
func (r *results) loopback(protocol, peer string) (longer, margin float64, ok bool) {
	ratios := slices.Sorted(slices.Values(r.Loopback[protocol][peer]))
	n := len(ratios)
	if n == 0 {
		return 0, 0, false
	}
	// The ranks at the ends of the median's confidence interval are binomially
	// distributed, with standard deviation sqrt(n)/2.
	d := int(math.Ceil(0.98 * math.Sqrt(float64(n))))
	low, high := ratios[max(n/2-d, 0)], ratios[min(n/2+d, n-1)]
	return ratios[n/2] - 1, (high - low) / 2, true
}
