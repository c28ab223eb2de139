// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/retrip/retrip/internal/testenv"
)

// The benefit of stripes: the same increment on one cache line, and by
// Prometheus's own counter.
func BenchmarkCounter(b *testing.B) {
	b.Run("striped", func(b *testing.B) {
		var c stripedCounter
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				c.inc()
			}
		})
	})
	b.Run("atomic", func(b *testing.B) {
		var c atomic.Uint64
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				c.Add(1)
			}
		})
	})
	b.Run("prometheus", func(b *testing.B) {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "x"})
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				c.Inc()
			}
		})
	})
}

// One decision of the core, of which the simulator makes millions.
func BenchmarkDecision(b *testing.B) {
	r, err := Policy{MaxAttempts: 1 << 30}.Rules()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	var h Host
	failed := Outcome{Status: 503, Idempotent: true, Replay: true}
	good := Outcome{Status: 200}
	for i := 0; b.Loop(); i++ {
		call := Call{Attempts: 1}
		if h.Next(r, &call, failed, 0, uint64(i)<<40).Retry {
			call.Attempts++
			h.Next(r, &call, good, 0, uint64(i)<<40)
		}
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	resp := &http.Response{StatusCode: 200, Body: http.NoBody}
	base := testenv.RoundTripper(func(*http.Request) (*http.Response, error) { return resp, nil })
	req, err := http.NewRequest(http.MethodGet, "http://example.com/", nil)
	if err != nil {
		b.Fatal(err)
	}
	for name, rt := range map[string]http.RoundTripper{
		"bare":    base,
		"retrip":  &Transport{Base: base},
		"metrics": &Transport{Base: base, Metrics: NewMetrics()},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rt.RoundTrip(req)
			}
		})
		b.Run(name+"/parallel", func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					rt.RoundTrip(req)
				}
			})
		})
	}
}

// BenchmarkHealthyBesideTroubled measures requests to healthy hosts, in turn,
// while the given number of others are in trouble.
func BenchmarkHealthyBesideTroubled(b *testing.B) {
	resp, down := &http.Response{StatusCode: 200, Body: http.NoBody}, &http.Response{StatusCode: 503, Body: http.NoBody}
	fails := http.Header{"Fails": {"1"}}
	base := roundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if r.Header["Fails"] != nil {
			return down, nil
		}
		return resp, nil
	})
	requests := func(name string, n int) []*http.Request {
		list := make([]*http.Request, n)
		for i := range list {
			var err error
			if list[i], err = http.NewRequest(http.MethodGet, "http://"+name+strconv.Itoa(i)+".example.com/", nil); err != nil {
				b.Fatal(err)
			}
		}
		return list
	}
	healthy := requests("healthy-", 64)
	for _, n := range []int{0, 1, 100, 4096} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			tr := &Transport{Policy: Policy{Backoff: Backoff{Base: Off}}, Base: base}
			for _, req := range requests("troubled-", n) {
				req.Header = fails
				if _, err := tr.RoundTrip(req); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				tr.RoundTrip(healthy[i%len(healthy)])
			}
		})
	}
}
