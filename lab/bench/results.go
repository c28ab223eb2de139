// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"text/tabwriter"
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
	ns            float64
	over, ratio   float64 // difference from the reference in the same round, and ratio
	allocs, bytes int64
	more          int64 // allocations beyond those of the reference
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
	var ns, over, ratio []float64
	var allocs, bytes, more []int64
	for i, run := range own {
		ns = append(ns, run.Ns)
		over = append(over, run.Ns-reference[i].Ns)
		ratio = append(ratio, run.Ns/reference[i].Ns)
		allocs = append(allocs, run.Allocs)
		bytes = append(bytes, run.Bytes)
		more = append(more, run.Allocs-reference[i].Allocs)
	}
	return summary{median(ns), median(over), median(ratio), median(allocs), median(bytes), median(more)}, true
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

// writeText writes all tables.
func (r *results) writeText(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, r.made())
	for _, c := range cases {
		reference := r.reference(c.name)
		if reference == "" {
			continue
		}
		fmt.Fprintf(out, "\n%s\n", c.name)
		fmt.Fprintf(w, "\tns/op\tover %s\tratio\tB/op\tallocs/op\tover %s\t\n", reference, reference)
		for _, p := range peers {
			if s, ok := r.summary(c.name, p.name); ok {
				fmt.Fprintf(w, "%s\t%.1f\t%+.1f\t%.3f\t%d\t%d\t%+d\t\n", p.name, s.ns, s.over, s.ratio, s.bytes, s.allocs, s.more)
			}
		}
		w.Flush()
	}
	for _, protocol := range slices.Sorted(maps.Keys(r.Loopback)) {
		fmt.Fprintf(out, "\n%s on a loopback socket, request by request in turn, over %s\n", protocol, peers[0].name)
		for _, p := range peers[1:] {
			if longer, margin, ok := r.loopback(protocol, p.name); ok {
				fmt.Fprintf(w, "%s\t%+.2f %%\t± %.2f %%\t\n", p.name, 100*longer, 100*margin)
			}
		}
		w.Flush()
	}
	r.writeWeights(out)
}

// A guard is a bound on a ratio of times that were measured in one run. The
// bounds are about twice what a quiet machine measures, so that only a real loss
// exceeds them there. On a busy machine, timers and the garbage collector take
// more than their share. Allocations have exact tests of their own.
type guard struct {
	what  string
	most  float64
	ratio func(*results) (float64, bool)
}

var guards = []guard{
	{"a GET, over bare net/http", 5, ratioIn("Transport/GET/serial", "retrip")},
	{"timeouts of a GET, over context.WithTimeout", 1.2, func(r *results) (float64, bool) {
		own, ok := r.summary("Transport/GET/serial", "retrip-timeouts")
		bare, _ := r.summary("Transport/GET/serial", "bare-timeout")
		return own.over / bare.over, ok
	}},
	{"503, 503, 200, over the loop", 3, ratioIn("Client/retry-GET", "retrip")},
	{"the same with metrics and timeouts", 5.5, ratioIn("Client/retry-GET", "retrip-timeouts")},
	{"timeouts over HTTP/1.1, over context.WithTimeout", 4, surplus("HTTP/1.1")},
	{"timeouts over HTTP/2, over context.WithTimeout", 4, surplus("HTTP/2")},
}

// guardedRuns is a regular expression for what the guards need to be measured.
const guardedRuns = "^(Transport/GET/serial|Client/retry-GET|pairs)$"

// ratioIn returns the ratio of the peer's times to those of the reference of the
// case.
func ratioIn(name, peer string) func(*results) (float64, bool) {
	return func(r *results) (float64, bool) {
		s, ok := r.summary(name, peer)
		return s.ratio, ok
	}
}

// surplus returns what retrip's timeouts add to a request over a loopback
// socket, over what context.WithTimeout adds.
func surplus(protocol string) func(*results) (float64, bool) {
	return func(r *results) (float64, bool) {
		own, _, ok := r.loopback(protocol, "retrip-timeouts")
		bare, _, _ := r.loopback(protocol, "bare-timeout")
		return own / bare, ok
	}
}

// writeGuards writes the guarded ratios, and reports whether all were measured
// and are within their bounds.
func (r *results) writeGuards(out io.Writer) bool {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	within := true
	for _, g := range guards {
		ratio, ok := g.ratio(r)
		verdict := ""
		switch {
		case !ok:
			verdict, within = "not measured", false
		case !(ratio <= g.most): // NaN is out of bounds
			verdict, within = "too much", false
		}
		fmt.Fprintf(w, "%s\t%.2f\tat most %.1f\t%s\n", g.what, ratio, g.most, verdict)
	}
	return within
}
