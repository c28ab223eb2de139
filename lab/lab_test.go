// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// stubborn is the policy of the lab's tests: as many attempts as the faults may
// require, and no budget, since there is no fleet to protect. Its attempt
// timeout outlasts the test.
var stubborn = retrip.Policy{
	MaxAttempts:    8,
	Backoff:        retrip.Backoff{Base: 10 * time.Millisecond, Cap: 300 * time.Millisecond},
	AttemptTimeout: time.Minute,
	Budget:         retrip.Off,
}

// trial runs a load through a wrapped base against a ledger behind faults, and
// cleans up everything.
func trial(t *testing.T, p Proto, most int, wrap func(*http.Transport) http.RoundTripper) (r *Report, faults int) {
	t.Helper()
	const seed = 20
	before := Resources()
	var load *Load
	var ledger *Ledger
	func() {
		ledger = NewLedger(seed, 0.08)
		server := Serve(p, ledger)
		defer server.Close()
		proxy, err := NewFaults(seed, server.Listener.Addr().String())
		require.NoError(t, err)
		defer proxy.Stop()
		base := Base(p, server)
		base.TLSHandshakeTimeout = 2 * time.Second // toxiproxy leaves some connections open and silent

		ctx, cancel := context.WithCancel(t.Context())
		made := make(chan error, 1)
		go func() { made <- proxy.Run(ctx) }()
		url := p.Scheme() + "://" + proxy.Addr() + "/"
		load = &Load{
			Client: &http.Client{Transport: wrap(base)}, URL: url,
			Seed: seed, Callers: 16, Files: t.TempDir(),
		}
		// It also ends the spares, which keep contexts until they have been
		// unused for 30 s.
		defer load.Client.CloseIdleConnections()
		r, err = load.Run(t.Context(), most)
		require.NoError(t, err)
		cancel()
		require.NoError(t, <-made)
		faults = proxy.Total() + ledger.Faults()
	}()
	audit := load.Audit(ledger.Executions())
	assert.Equal(t, Audit{Begun: most}, audit)
	assert.Equal(t, audit.Begun, r.total(), "each caller gets exactly one answer")
	assert.Zero(t, ledger.Corrupt(), "bodies that arrived changed")
	t.Logf("%d faults; %+v; %+v", faults, audit, *r)
	// Timers that should be gone would last for a minute.
	assert.Zero(t, load.Held(30*time.Second), "requests whose context a timer, a goroutine or a table still holds")
	after, ok := before.Back(10 * time.Second)
	assert.True(t, ok, "goroutines or file descriptors are left: %+v before, %+v after", before, after)
	if t.Failed() {
		t.Log(strings.Join(Goroutines(), "\n\n"))
	}
	return r, faults
}

// No fault of the network or the server makes the server execute a POST without
// a key twice, corrupts a body, sends an answer to the wrong caller, or leaks a
// resource. Most requests that would fail over a bare transport succeed. On real
// time, timers and goroutines are used again, which the worlds can't see.
//
//retrip:promise P6 P7 P13
func TestFaults(t *testing.T) {
	requests := 1200
	if testing.Short() {
		requests = 300
	}
	for _, p := range Protos {
		t.Run(p.String(), func(t *testing.T) {
			t.Log("bare:")
			bare, _ := trial(t, p, requests, func(base *http.Transport) http.RoundTripper { return base })
			t.Log("wrapped:")
			wrapped, faults := trial(t, p, requests, func(base *http.Transport) http.RoundTripper {
				return &retrip.Transport{Base: base, Policy: stubborn}
			})
			assert.Equal(t, requests, wrapped.total())
			assert.Zero(t, wrapped.Mixed)
			assert.Zero(t, wrapped.Unclosed)
			assert.Greater(t, faults, requests/50, "a trial without faults proves nothing")
			if !testing.Short() { // a short trial may be over before the network is well again
				failed, bareFailed := 1-wrapped.Rate(true), 1-bare.Rate(true)
				assert.Less(t, failed, bareFailed/3, "share of the repeatable requests that failed")
			}
			assert.Greater(t, wrapped.Rate(false), bare.Rate(false))
		})
	}
}

// The ledger detects duplicates: it catches a client that repeats blindly.
func TestLedger_SeesDuplicates(t *testing.T) {
	const seed = 3
	ledger := NewLedger(seed, 0.5)
	server := Serve(HTTP1, ledger)
	defer server.Close()
	base := Base(HTTP1, server)
	defer base.CloseIdleConnections()
	reckless := stubborn
	reckless.Idempotent = func(*http.Request) bool { return true }
	load := &Load{
		Client: &http.Client{Transport: &retrip.Transport{Base: base, Policy: reckless}}, URL: server.URL,
		Seed: seed, Callers: 8, Files: t.TempDir(),
	}
	_, err := load.Run(t.Context(), 1000)
	require.NoError(t, err)
	server.Close()
	audit := load.Audit(ledger.Executions())
	assert.NotZero(t, audit.Duplicates)
	assert.Zero(t, audit.Lost)
}
