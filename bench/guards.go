// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// A guard is a bound on a ratio of times that were measured in one run. The
// bounds are about twice what a quiet machine measures, so that only a real loss
// exceeds them there. On a busy machine, timers and the garbage collector take
// more than their share. Allocations have exact tests of their own.
type guard struct {
	what  string
	most  float64
	ratio func(*Results) (float64, bool)
}

var guards = []guard{
	{"a GET, over bare net/http", 5, ratioIn("Transport/GET/serial", "retrip")},
	{"timeouts of a GET, over context.WithTimeout", 1.2, func(r *Results) (float64, bool) {
		own, ok := r.Summary(Case{Name: "Transport/GET/serial"}, "retrip-timeouts")
		bare, _ := r.Summary(Case{Name: "Transport/GET/serial"}, "bare-timeout")
		return own.Over / bare.Over, ok
	}},
	{"503, 503, 200, over the loop", 3, ratioIn("Client/retry-GET", "retrip")},
	{"the same with metrics and timeouts", 5.5, ratioIn("Client/retry-GET", "retrip-timeouts")},
	{"timeouts over HTTP/1.1, over context.WithTimeout", 4, surplus("HTTP/1.1")},
	{"timeouts over HTTP/2, over context.WithTimeout", 4, surplus("HTTP/2")},
}

// GuardedRuns is a regular expression for what the guards need to be measured.
const GuardedRuns = "^(Transport/GET/serial|Client/retry-GET|pairs)$"

// ratioIn returns the ratio of the peer's times to those of the reference of the
// case.
func ratioIn(name, peer string) func(*Results) (float64, bool) {
	return func(r *Results) (float64, bool) {
		s, ok := r.Summary(Case{Name: name}, peer)
		return s.Ratio, ok
	}
}

// surplus returns what retrip's timeouts add to a request over a loopback
// socket, over what context.WithTimeout adds.
func surplus(protocol string) func(*Results) (float64, bool) {
	return func(r *Results) (float64, bool) {
		own, _, ok := r.loopback(protocol, "retrip-timeouts")
		bare, _, _ := r.loopback(protocol, "bare-timeout")
		return own / bare, ok
	}
}

// WriteGuards writes the guarded ratios, and reports whether all were measured
// and are within their bounds.
func (r *Results) WriteGuards(out io.Writer) bool {
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
