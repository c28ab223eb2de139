// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/lend"
	"github.com/retrip/retrip/internal/testenv"
)

// One decision of the core, of which the simulator makes millions.
func BenchmarkDecision(b *testing.B) {
	r, _, err := lend.Rules(Policy{MaxAttempts: 1 << 30})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	var h host.Record
	failed := decide.Event{Kind: decide.Ended, Outcome: decide.Outcome{Status: 503, Repeatable: true, Replay: true}}
	due, good := decide.Event{Kind: decide.Due}, decide.Event{Kind: decide.Ended, Outcome: decide.Outcome{Status: 200}}
	for i := 0; b.Loop(); i++ {
		call, a := decide.Call{Attempts: 1}, decide.Action{}
		for _, e := range []*decide.Event{&failed, &due, &good} {
			if call.Step(r, &h, e, &a, 0, uint64(i)<<40); a.Do >= decide.Answer {
				break
			}
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
		"bare":     base,
		"retrip":   &Transport{Base: base},
		"metrics":  &Transport{Base: base, Metrics: &Metrics{}},
		"timeouts": &Transport{Base: base, Policy: Policy{AttemptTimeout: time.Minute, Deadline: time.Minute}},
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

// BenchmarkHealthyBesideTroubled reports how long a request to a healthy host
// takes while 0, 1, 100 and 4096 others are in trouble. The four take turns,
// each figure is the least of its rounds, so other load on the machine hardly
// matters. The benchmark fails if trouble elsewhere makes a request take twelve
// times as long.
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
	troubled := []int{0, 1, 100, 4096}
	transports := make([]*Transport, len(troubled))
	for i, n := range troubled {
		transports[i] = &Transport{Policy: Policy{Backoff: Backoff{Base: Off}}, Base: base}
		for _, req := range requests("troubled-", n) {
			req.Header = fails
			if _, err := transports[i].RoundTrip(req); err != nil {
				b.Fatal(err)
			}
		}
	}
	least, rounds := takeTurns(b, transports, healthy)
	for i, n := range troubled {
		b.ReportMetric(float64(least[i])/float64(len(healthy)), "ns-beside-"+strconv.Itoa(n))
		if rounds >= 1000 && least[i] > 12*least[0] {
			b.Errorf("%v beside %d hosts in trouble, %v beside none", least[i], n, least[0])
		}
	}
	b.ReportMetric(0, "ns/op")
}

// takeTurns makes all requests through each of the Transports in turn, and returns the
// least time that each has taken.
func takeTurns(b *testing.B, transports []*Transport, requests []*http.Request) (least []time.Duration, rounds int) {
	least = make([]time.Duration, len(transports))
	for ; b.Loop(); rounds++ {
		for i, tr := range transports {
			began := time.Now()
			for _, req := range requests {
				tr.RoundTrip(req)
			}
			if took := time.Since(began); rounds == 0 || took < least[i] {
				least[i] = took
			}
		}
	}
	return least, rounds
}

// BenchmarkHedge_None reports how long a request takes that gets no hedge: without
// Policy.Hedge and with it, each with and without AttemptTimeout. The kinds take turns,
// and each figure is the least of its rounds, so other load on the machine hardly
// matters. The benchmark fails if Hedge costs a quarter more than all that a request with
// AttemptTimeout does.
func BenchmarkHedge_None(b *testing.B) {
	resp := &http.Response{StatusCode: 200, Body: http.NoBody}
	base := testenv.RoundTripper(func(*http.Request) (*http.Response, error) { return resp, nil })
	req, err := http.NewRequest(http.MethodGet, "http://example.com/", nil)
	if err != nil {
		b.Fatal(err)
	}
	kinds := []struct {
		name   string
		policy Policy
	}{
		{name: "off"}, {name: "hedge", policy: Policy{Hedge: 0.05}},
		{name: "timeout", policy: Policy{AttemptTimeout: time.Minute}}, {name: "timeout+hedge", policy: Policy{AttemptTimeout: time.Minute, Hedge: 0.05}},
	}
	transports := make([]*Transport, len(kinds))
	for i := range kinds {
		transports[i] = &Transport{Base: base, Policy: kinds[i].policy}
	}
	const requests = 64
	least, rounds := takeTurns(b, transports, slices.Repeat([]*http.Request{req}, requests))
	for i, kind := range kinds {
		b.ReportMetric(float64(least[i])/requests, "ns-"+kind.name)
	}
	if more := least[3] - least[2]; rounds >= 1000 && more > least[2]*5/4 {
		b.Errorf("a request takes %v longer with Hedge", more/requests)
	}
	b.ReportMetric(0, "ns/op")
}
