// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// benchCase is an operation that is timed for every peer, over a stub. A case
// whose name begins with Transport is measured at the RoundTripper, if the peer
// is one, and the others at Client.Do.
type benchCase struct {
	name  string
	fails int // how many 503 come before the 200
	call  func() *call
}

const target = "http://api.example.com/v1/things"

var cases = []benchCase{
	{"Transport/GET/serial", 0, get},
	{"Transport/POST/serial", 0, post},
	{"Transport/GET/fresh", 0, fresh},
	{"Client/GET/serial", 0, get},
	{"Client/POST/serial", 0, post},
	{"Client/retry-GET", 2, get},
}

func get() *call  { return newCall(http.MethodGet, target, 0) }
func post() *call { return newCall(http.MethodPost, target, 1<<10) }

// fresh is a GET made anew each time, with a context as a server gives its handlers.
func fresh() *call {
	c := get()
	type key int
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for i := range 3 {
		c.ctx = context.WithValue(c.ctx, key(i), i)
	}
	return c
}

func (c benchCase) atTransport() bool { return strings.HasPrefix(c.name, "Transport/") }

// able reports whether the case can be measured with p.
func (c benchCase) able(p peer) bool {
	return (!c.atTransport() || p.transport != nil) && (c.fails == 0 || !p.once)
}

// run measures p. Retries don't wait.
func (c benchCase) run(b *testing.B, p peer) {
	b.ReportAllocs()
	next := c.request(p)
	for b.Loop() {
		if err := next(); err != nil {
			b.Fatal(err)
		}
	}
}

// request returns a function that makes a request with p.
func (c benchCase) request(p peer) func() error {
	var d doer
	base, instant := newStub(c.fails), c.fails > 0
	if c.atTransport() {
		d = tripper{p.transport(base, instant)}
	} else {
		d = p.client(base, instant)
	}
	call := c.call()
	return func() error {
		resp, err := d.Do(call.next())
		if err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%v, %w", resp, err)
		}
		return resp.Body.Close()
	}
}

type tripper struct{ http.RoundTripper }

func (t tripper) Do(req *http.Request) (*http.Response, error) { return t.RoundTrip(req) }

// turns is how many requests of each peer a block of pairs has.
const turns = 200

// measureLoopback returns, for each peer and each block, the median time of a
// request over a loopback socket, divided by the median with bare net/http in the
// same block. The peers take turns over the same connection. Other load on the
// machine affects all alike, so this shows differences far smaller than those
// between two runs of a loop.
func measureLoopback(http2 bool, blocks int) (map[string][]float64, error) {
	server, base := newLoopback(http2)
	defer server.Close()
	defer base.CloseIdleConnections()
	call := newCall(http.MethodGet, server.URL, 0)
	doers := make([]doer, len(peers))
	for i, p := range peers {
		doers[i] = p.client(base, false)
		if _, err := fetch(doers[i], call, http2); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	ratios := map[string][]float64{}
	for range blocks {
		times := make([][]time.Duration, len(peers))
		for range turns {
			for _, i := range rand.Perm(len(peers)) {
				d, err := fetch(doers[i], call, http2)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", peers[i].name, err)
				}
				times[i] = append(times[i], d)
			}
		}
		bare := float64(median(times[0]))
		for i, p := range peers[1:] {
			ratios[p.name] = append(ratios[p.name], float64(median(times[i+1]))/bare)
		}
	}
	return ratios, nil
}

// fetch makes a request and returns how long it took until its body was closed,
// which is when some peers release what they hold.
func fetch(d doer, c *call, http2 bool) (time.Duration, error) {
	req := c.next()
	begin := time.Now()
	resp, err := d.Do(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	took := time.Since(begin)
	if err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK || http2 != (resp.ProtoMajor == 2) {
		return 0, fmt.Errorf("%s over %s", resp.Status, resp.Proto)
	}
	return took, nil
}

// newLoopback returns a server on a loopback socket and a base transport for
// it.
func newLoopback(http2 bool) (*httptest.Server, *http.Transport) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, content)
	}))
	base := &http.Transport{MaxIdleConnsPerHost: 16}
	if !http2 {
		server.Start()
		return server, base
	}
	server.EnableHTTP2 = true
	server.StartTLS()
	base.ForceAttemptHTTP2 = true
	base.TLSClientConfig = &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	return server, base
}
