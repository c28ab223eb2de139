// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"math"
	"strings"
)

// column is a column of a table. Lower values are better.
type column struct {
	head  string
	value func(peer string) (float64, bool)
	text  func(v float64, peer string) string
}

// ahead returns the peers that beat retrip with metrics.
func (c column) ahead() []string {
	own, ok := c.value("retrip-metrics")
	if !ok {
		return nil
	}
	var names []string
	for _, p := range Peers[1:] {
		if v, ok := c.value(p.Name); ok && v < own && !strings.HasPrefix(p.Name, "retrip") {
			names = append(names, title(p.Name))
		}
	}
	return names
}

// group is a table of docs/performance-tables.md.
type group struct {
	about   string
	columns []column
}

func (r *Results) groups() []group {
	return []group{
		{
			about: `**A success**, over a stub: the time and the allocations that each peer adds to the same request in bare net/http in the
same round. *Deep*: the context can be canceled and has ten layers. *PUT 1 MiB*: a stream from memory, without GetBody. *Many
hosts*: requests to 10 000 hosts in turn, 100 of which have failed. The figures are for RoundTrip if the peer has
one, and otherwise for ` + "`Client.Do`. The PUT goes through `Client.Do` with all peers.",
			columns: []column{
				r.over("GET", "Transport/GET/serial", "Client/GET/serial"),
				r.over("deep GET", "Transport/GET-deep/serial", "Client/GET-deep/serial"),
				r.over("POST 1 KiB", "Transport/POST/serial", "Client/POST/serial"),
				r.over("PUT 1 MiB", "Client/PUT-1MiB/serial"),
				r.over("many hosts", "Transport/hosts"),
			},
		},
		{
			about: `**On all cores at once**: the same, and the throughput as a multiple of that of one core. Compare go-retryablehttp and
heimdall with about 1×, which is what bare net/http reaches through ` + "`Client.Do`, because `Client.Do` allocates.",
			columns: []column{
				r.parallel("parallel GET", "Transport/GET/parallel", "Client/GET/parallel"),
				r.parallel("parallel deep GET", "Transport/GET-deep/parallel", "Client/GET-deep/parallel"),
				r.parallel("parallel POST 1 KiB", "Transport/POST/parallel", "Client/POST/parallel"),
				r.parallel("parallel PUT 1 MiB", "Client/PUT-1MiB/parallel"),
			},
		},
		{
			about: "**Two retries**, through an http.Client over a stub, without waits: the time and the allocations of the whole request. The PUT has `GetBody`.",
			columns: []column{
				r.total("503, 503, 200", "Client/retry-GET"),
				r.total("PUT 1 KiB: 503, 503, 200", "Client/retry-PUT"),
			},
		},
		{
			about: fmt.Sprintf(`**Over a loopback socket**: how much longer a request takes than with bare net/http, with half the width of the 95 %% confidence
interval of that median. The peers take turns after each request over the same connection. The ratios are those within a block
of %d requests. *Parallel*: the ratio to bare net/http with four concurrent requests per core, timed in rounds as above; it varies by
several hundredths for every peer.`, Turns),
			columns: []column{
				r.pairs("loopback HTTP/1.1", "HTTP/1.1"),
				r.pairs("loopback HTTP/2", "HTTP/2"),
				r.ratio("parallel HTTP/1.1", "Loopback/HTTP1/parallel"),
				r.ratio("parallel HTTP/2", "Loopback/HTTP2/parallel"),
			},
		},
		{
			about: fmt.Sprintf(`**Memory and connections**. *PUT 64 MiB*: a stream of 128 MiB/s without GetBody; how far the heap grows, and when the server
gets the first byte. *Connections*: how many connections %d requests open if each gets one 503 with a body of this size. *Waiting*: the
memory that each of %d waiting requests holds beyond that of a request in bare net/http that waits for its response.`, Fetches, Waiters),
			columns: []column{
				r.heap(),
				r.firstByte(),
				r.connections("connections, 2 KiB", 0),
				r.connections("connections, 64 KiB", 1),
				r.connections("connections, 1 MiB", 2),
				r.held(),
			},
		},
	}
}

// timing returns a column that shows, for each peer, the first of the cases in
// which the peer was timed.
func (r *Results) timing(head string, cases []string, value func(Summary) float64, text func(Summary) string) column {
	find := func(peer string) (Summary, bool) {
		for _, name := range cases {
			if s, ok := r.Summary(caseNamed(name), peer); ok {
				return s, true
			}
		}
		return Summary{}, false
	}
	return column{
		head: head,
		value: func(peer string) (float64, bool) {
			s, ok := find(peer)
			return value(s), ok
		},
		text: func(_ float64, peer string) string {
			s, _ := find(peer)
			return text(s)
		},
	}
}

func added(s Summary) float64 { return s.Over }

// withoutBare returns c without the reference, bare net/http.
func withoutBare(c column) column {
	value := c.value
	c.value = func(peer string) (float64, bool) {
		if peer == Peers[0].Name {
			return 0, false
		}
		return value(peer)
	}
	return c
}

func (r *Results) over(head string, cases ...string) column {
	return withoutBare(r.timing(head, cases, added, func(s Summary) string {
		return fmt.Sprintf("%s, %+d", duration("%+.*f", s.Over), s.More)
	}))
}

func (r *Results) parallel(head string, cases ...string) column {
	return r.timing(head, cases, added, func(s Summary) string {
		scale := fmt.Sprintf("%.2f×", s.Scale)
		if s.Over == 0 { // the reference
			return scale
		}
		return duration("%+.*f", s.Over) + ", " + scale
	})
}

func (r *Results) total(head string, cases ...string) column {
	return r.timing(head, cases, func(s Summary) float64 { return s.Ns }, func(s Summary) string {
		return fmt.Sprintf("%s, %d", duration("%.*f", s.Ns), s.Allocs)
	})
}

func (r *Results) ratio(head string, cases ...string) column {
	return withoutBare(r.timing(head, cases, func(s Summary) float64 { return s.Ratio }, func(s Summary) string {
		return fmt.Sprintf("%.3f", s.Ratio)
	}))
}

func (r *Results) pairs(head, protocol string) column {
	return column{
		head: head,
		value: func(peer string) (float64, bool) {
			longer, _, ok := r.loopback(protocol, peer)
			return longer, ok
		},
		text: func(v float64, peer string) string {
			_, margin, _ := r.loopback(protocol, peer)
			return fmt.Sprintf("%+.1f ± %.1f %%", 100*v, 100*margin)
		},
	}
}

// duration formats nanoseconds with the given number format, in the unit that
// keeps the number short.
func duration(format string, ns float64) string {
	unit := "ns"
	for _, larger := range []string{"µs", "ms"} {
		if math.Abs(ns) < 1000 {
			break
		}
		ns, unit = ns/1000, larger
	}
	digits := 0
	if math.Abs(ns) < 100 {
		digits = 1
	}
	if math.Abs(ns) < 10 && unit != "ns" {
		digits = 2
	}
	return fmt.Sprintf(format, digits, ns) + " " + unit
}

func (r *Results) heap() column {
	return column{
		head: "PUT 64 MiB: heap",
		value: func(peer string) (float64, bool) {
			u, ok := r.upload(peer)
			return float64(u.Heap), ok
		},
		text: func(v float64, _ string) string { return fmt.Sprintf("%.2f MiB", v/(1<<20)) },
	}
}

func (r *Results) firstByte() column {
	return column{
		head: "PUT 64 MiB: first byte",
		value: func(peer string) (float64, bool) {
			u, ok := r.upload(peer)
			return float64(u.FirstByte.Microseconds()), ok
		},
		text: func(v float64, _ string) string { return fmt.Sprintf("%.2f ms", v/1000) },
	}
}

func (r *Results) connections(head string, i int) column {
	return column{
		head: head,
		value: func(peer string) (float64, bool) {
			list, ok := r.Connections[peer]
			if !ok {
				return 0, false
			}
			return float64(list[i]), true
		},
		text: func(v float64, _ string) string { return fmt.Sprintf("%.0f", v) },
	}
}

func (r *Results) held() column {
	return withoutBare(column{
		head: "waiting",
		value: func(peer string) (float64, bool) {
			_, ok := r.Waiting[peer]
			return float64(r.waiting(peer)), ok
		},
		text: func(v float64, _ string) string { return fmt.Sprintf("%+.0f B", v) },
	})
}

func caseNamed(name string) Case {
	for _, c := range Cases {
		if c.Name == name {
			return c
		}
	}
	panic("no case " + name)
}
