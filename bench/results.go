// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Run is one timing of one peer.
type Run struct {
	Case, Peer    string
	Round, N      int
	Ns            float64 // per operation
	Allocs, Bytes int64   // per operation
}

// Results holds all measurements. All except the timings are keyed by peer.
type Results struct {
	Machine, Go, Date string
	Procs, Rounds     int
	Versions          map[string]string // of the peers' modules

	Runs        []Run
	Uploads     map[string][]Upload
	Waiting     map[string]Waiting
	Connections map[string][]int // in the order of ErrorBodies

	Loopback map[string]map[string][]float64 // by protocol and peer, from MeasureLoopback
}

// Summary summarizes the rounds of one peer in one case.
type Summary struct {
	Ns     float64 // median
	Over   float64 // median difference from the reference in the same round
	Ratio  float64 // median ratio to the reference in the same round
	Scale  float64 // median of serial time over parallel time in the same round
	Allocs int64   // median
	Bytes  int64   // median
	More   int64   // allocations beyond those of the reference
}

// reference returns the peer that the others are compared with in a case: bare
// net/http, if it can do the same.
func (r *Results) reference(name string) string {
	for _, run := range r.Runs {
		if run.Case == name {
			return run.Peer
		}
	}
	return ""
}

func (r *Results) rounds(name, peer string) []Run {
	var list []Run
	for _, run := range r.Runs {
		if run.Case == name && run.Peer == peer {
			list = append(list, run)
		}
	}
	slices.SortFunc(list, func(a, b Run) int { return cmp.Compare(a.Round, b.Round) })
	return list
}

// Summary summarizes the runs; ok is false if there are none.
func (r *Results) Summary(c Case, peer string) (s Summary, ok bool) {
	own, reference, serial := r.rounds(c.Name, peer), r.rounds(c.Name, r.reference(c.Name)), r.rounds(c.Serial, peer)
	if len(own) == 0 {
		return s, false
	}
	var ns, over, ratio, scale []float64
	var allocs, bytes, more []int64
	for i, run := range own {
		ns = append(ns, run.Ns)
		over = append(over, run.Ns-reference[i].Ns)
		ratio = append(ratio, run.Ns/reference[i].Ns)
		allocs = append(allocs, run.Allocs)
		bytes = append(bytes, run.Bytes)
		more = append(more, run.Allocs-reference[i].Allocs)
		if c.Serial != "" {
			scale = append(scale, serial[i].Ns/run.Ns)
		}
	}
	s = Summary{Ns: median(ns), Over: median(over), Ratio: median(ratio), Allocs: median(allocs), Bytes: median(bytes), More: median(more)}
	if scale != nil {
		s.Scale = median(scale)
	}
	return s, true
}

// median returns the median of list, or the upper of the two middle elements.
func median[T cmp.Ordered](list []T) T {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// loopback returns how much longer a request over a loopback socket takes than
// with bare net/http, as a fraction, and half the width of the 95 % confidence
// interval of the median.
func (r *Results) loopback(protocol, peer string) (longer, margin float64, ok bool) {
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

// upload returns the medians.
func (r *Results) upload(peer string) (Upload, bool) {
	list := r.Uploads[peer]
	if len(list) == 0 {
		return Upload{}, false
	}
	var heap []int64
	var first []time.Duration
	for _, u := range list {
		heap = append(heap, u.Heap)
		first = append(first, u.FirstByte)
	}
	return Upload{Heap: median(heap), FirstByte: median(first)}, true
}

// WriteText writes all tables.
func (r *Results) WriteText(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "%s, %d cores, %s, %s, medians of %d rounds\n", r.Machine, r.Procs, r.Go, r.Date, r.Rounds)
	for _, c := range Cases {
		reference := r.reference(c.Name)
		if reference == "" {
			continue
		}
		fmt.Fprintf(out, "\n%s\n", c.Name)
		fmt.Fprintf(w, "\tns/op\tover %s\tratio\tB/op\tallocs/op\tover %s\tscaling\t\n", reference, reference)
		for _, p := range Peers {
			s, ok := r.Summary(c, p.Name)
			if !ok {
				continue
			}
			scale := ""
			if s.Scale > 0 {
				scale = fmt.Sprintf("%.2f", s.Scale)
			}
			fmt.Fprintf(w, "%s\t%.1f\t%+.1f\t%.3f\t%d\t%d\t%+d\t%s\t\n", p.Name, s.Ns, s.Over, s.Ratio, s.Bytes, s.Allocs, s.More, scale)
		}
		w.Flush()
	}
	for _, protocol := range slices.Sorted(maps.Keys(r.Loopback)) {
		fmt.Fprintf(out, "\n%s on a loopback socket, request by request in turn, over %s\n", protocol, Peers[0].Name)
		for _, p := range Peers[1:] {
			if longer, margin, ok := r.loopback(protocol, p.Name); ok {
				fmt.Fprintf(w, "%s\t%+.2f %%\t± %.2f %%\t\n", p.Name, 100*longer, 100*margin)
			}
		}
		w.Flush()
	}
	if len(r.Uploads) > 0 {
		fmt.Fprintf(out, "\n64 MiB streamed PUT\n")
		fmt.Fprintf(w, "\theap growth, KiB\tfirst byte after, µs\t\n")
		for _, p := range Peers {
			if u, ok := r.upload(p.Name); ok {
				fmt.Fprintf(w, "%s\t%d\t%d\t\n", p.Name, u.Heap>>10, u.FirstByte.Microseconds())
			}
		}
		w.Flush()
	}
	if len(r.Waiting) > 0 {
		fmt.Fprintf(out, "\n%d requests waiting, bytes for each\n", Waiters)
		fmt.Fprintf(w, "\theap\tstack\tgoroutines\tover %s\t\n", Peers[0].Name)
		for _, p := range Peers {
			if m, ok := r.Waiting[p.Name]; ok {
				fmt.Fprintf(w, "%s\t%d\t%d\t%.2f\t%+d\t\n", p.Name, m.Heap, m.Stack, m.Goroutines, r.waiting(p.Name))
			}
		}
		w.Flush()
	}
	if len(r.Connections) > 0 {
		fmt.Fprintf(out, "\nconnections opened by %d requests that each meet one 503\n", Fetches)
		for _, size := range ErrorBodies {
			fmt.Fprintf(w, "\t%d KiB", size>>10)
		}
		fmt.Fprintf(w, "\t\n")
		for _, p := range Peers {
			if list, ok := r.Connections[p.Name]; ok {
				fmt.Fprintf(w, "%s\t%s\t\n", p.Name, strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", "\t"), "[]"))
			}
		}
		w.Flush()
	}
}

// waiting returns the bytes that a waiting request holds beyond those of a
// request that waits for its response in bare net/http, which are its
// goroutine.
func (r *Results) waiting(peer string) int64 {
	m, bare := r.Waiting[peer], r.Waiting[Peers[0].Name]
	return m.Heap + m.Stack - bare.Heap - bare.Stack
}

// WriteBenchstat writes the timings in the format of go test.
func (r *Results) WriteBenchstat(out io.Writer) {
	fmt.Fprintf(out, "goos: %s\ngoarch: %s\npkg: github.com/retrip/retrip/bench\ncpu: %s\n", runtime.GOOS, runtime.GOARCH, r.Machine)
	for _, run := range r.Runs {
		fmt.Fprintf(out, "Benchmark/%s/peer=%s-%d\t%d\t%.1f ns/op\t%d B/op\t%d allocs/op\n",
			run.Case, run.Peer, r.Procs, run.N, run.Ns, run.Bytes, run.Allocs)
	}
}
