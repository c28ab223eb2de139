// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/retrip/retrip"
)

// Case is an operation that is timed for every peer.
type Case struct {
	// Name is the name of the benchmark. A case whose name begins with
	// Transport is measured at the RoundTripper, if the peer is one. All other
	// cases are measured at Client.Do.
	Name string

	Serial string // for a parallel case, the serial case it scales up from

	bench func(*testing.B, Peer)
	able  func(Peer) bool
}

// Able reports whether the case can be measured with p.
func (c Case) Able(p Peer) bool { return c.able == nil || c.able(p) }

// Run measures p.
func (c Case) Run(b *testing.B, p Peer) {
	b.ReportAllocs()
	c.bench(b, p)
}

func isTransport(p Peer) bool { return p.Transport != nil }

// Cases lists all cases.
var Cases = cases()

func cases() []Case {
	var list []Case
	add := func(name string, able func(Peer) bool, bench func(*testing.B, Peer)) {
		list = append(list, Case{Name: name, bench: bench, able: able})
	}
	pair := func(name string, able func(Peer) bool, bench func(parallel bool) func(*testing.B, Peer)) {
		add(name+"/serial", able, bench(false))
		add(name+"/parallel", able, bench(true))
		list[len(list)-1].Serial = name + "/serial"
	}
	get := func(ctx context.Context) *call { return newCall(ctx, http.MethodGet, target, 0, false) }
	post := func(ctx context.Context) *call { return newCall(ctx, http.MethodPost, target, 1<<10, false) }
	put := func(ctx context.Context) *call { return newCall(ctx, http.MethodPut, target, 1<<20, true) }
	flat := context.Background()

	pair("Transport/GET", isTransport, func(parallel bool) func(*testing.B, Peer) {
		return overStub(transport, get, flat, parallel)
	})
	pair("Transport/GET-deep", isTransport, func(parallel bool) func(*testing.B, Peer) {
		return overStub(transport, get, deep(), parallel)
	})
	pair("Transport/POST", isTransport, func(parallel bool) func(*testing.B, Peer) {
		return overStub(transport, post, flat, parallel)
	})
	add("Transport/hosts", isTransport, manyHosts)
	add("Transport/retry-GET", func(p Peer) bool { return isTransport(p) && p.Retries() }, retryPath(transport, get))
	pair("Client/GET", nil, func(parallel bool) func(*testing.B, Peer) {
		return overStub(Peer.Client, get, flat, parallel)
	})
	pair("Client/GET-deep", nil, func(parallel bool) func(*testing.B, Peer) {
		return overStub(Peer.Client, get, deep(), parallel)
	})
	pair("Client/POST", nil, func(parallel bool) func(*testing.B, Peer) {
		return overStub(Peer.Client, post, flat, parallel)
	})
	pair("Client/PUT-1MiB", nil, func(parallel bool) func(*testing.B, Peer) {
		return overStub(Peer.Client, put, flat, parallel)
	})
	add("Client/retry-GET", Peer.Retries, retryPath(Peer.Client, get))
	add("Client/retry-PUT", Peer.Retries, retryPath(Peer.Client, func(ctx context.Context) *call {
		return newCall(ctx, http.MethodPut, target, 1<<10, false)
	}))
	add("Loopback/HTTP1/parallel", nil, loopback(false))
	add("Loopback/HTTP2/parallel", nil, loopback(true))
	return list
}

const target = "http://api.example.com/v1/things"

// doer returns the level at which a peer is measured.
type doer func(p Peer, base http.RoundTripper, wait Wait) Doer

func transport(p Peer, base http.RoundTripper, wait Wait) Doer {
	return tripper{p.Transport(base, wait)}
}

type tripper struct{ http.RoundTripper }

func (t tripper) Do(req *http.Request) (*http.Response, error) { return t.RoundTrip(req) }

func overStub(level doer, newCall func(context.Context) *call, ctx context.Context, parallel bool) func(*testing.B, Peer) {
	return func(b *testing.B, p Peer) {
		d := level(p, &stub{}, Usual)
		if !parallel {
			c := newCall(ctx)
			for b.Loop() {
				do(b, d, c.next())
			}
			return
		}
		b.RunParallel(func(pb *testing.PB) {
			c := newCall(ctx)
			for pb.Next() {
				do(b, d, c.next())
			}
		})
	}
}

func do(b *testing.B, d Doer, req *http.Request) {
	resp, err := d.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		b.Fatal(resp, err)
	}
	resp.Body.Close()
}

// retryPath measures 503, 503, 200, without waits.
func retryPath(level doer, newCall func(context.Context) *call) func(*testing.B, Peer) {
	return func(b *testing.B, p Peer) {
		d := level(p, &stub{fail: 2, known: newKnown()}, None)
		c := newCall(context.Background())
		for b.Loop() {
			do(b, d, c.next())
		}
	}
}

// manyHosts cycles through 10 000 hosts. 100 of them fail, which matters to
// peers that keep state per host.
func manyHosts(b *testing.B, p Peer) {
	const hosts, troubled = 10_000, 100
	s := &stub{}
	rt := p.Transport(s, None)
	if t, ok := rt.(*retrip.Transport); ok {
		t.Policy.Budget = retrip.Budget{} // without a budget there would be no state to keep
	}
	calls := make([]*call, hosts)
	for i := range calls {
		calls[i] = newCall(context.Background(), http.MethodGet, fmt.Sprintf("http://host-%d.example.com/", i), 0, false)
	}
	for i := 0; i < hosts; i += hosts / troubled {
		s.fail, s.n = 1000, 0
		if resp, err := rt.RoundTrip(calls[i].next()); err == nil {
			resp.Body.Close()
		}
	}
	s.fail = 0
	i, d := 0, Doer(tripper{rt})
	for b.Loop() {
		do(b, d, calls[i%hosts].next())
		i++
	}
}

// loopback makes requests on all cores; MeasureLoopback makes one at a time.
func loopback(http2 bool) func(*testing.B, Peer) {
	return func(b *testing.B, p Peer) {
		server, base := newLoopback(http2)
		defer server.Close()
		defer base.CloseIdleConnections()
		d := p.Client(base, Usual)
		newCall := func() *call { return newCall(context.Background(), http.MethodGet, server.URL, 0, false) }
		if _, err := fetch(d, newCall(), http2); err != nil {
			b.Fatal(err)
		}
		b.ResetTimer()
		b.SetParallelism(4)
		b.RunParallel(func(pb *testing.PB) {
			c := newCall()
			for pb.Next() {
				if _, err := fetch(d, c, http2); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
}
