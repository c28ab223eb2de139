// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"io"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
)

// measuresHeap undoes the setting of TestMain until t ends. Garbage counts as
// part of the heap, so it must be collected as often as in a program.
func measuresHeap(t *testing.T) {
	t.Helper()
	rare := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(rare) })
}

func rulesOf(t testing.TB, p retrip.Policy) *retrip.Rules {
	t.Helper()
	r, err := p.Rules()
	require.NoError(t, err)
	return r
}

// repeatable returns the outcome of a request that may be repeated.
func repeatable(status int) retrip.Outcome {
	return retrip.Outcome{Status: status, Idempotent: true, Replay: true}
}

// fail makes one attempt at h that fails in a way that a retry may fix, and
// returns the decision.
func fail(h *retrip.Host, r *retrip.Rules, now time.Duration) retrip.Decision {
	return h.Next(r, &retrip.Call{Attempts: 1}, repeatable(http.StatusServiceUnavailable), now, drawLowest)
}

// drain spends all tokens of h.
func drain(t testing.TB, h *retrip.Host, now time.Duration) {
	t.Helper()
	r := rulesOf(t, retrip.Policy{})
	for fail(h, r, now).Retry {
	}
	require.Equal(t, retrip.ReasonBudgetExhausted, fail(h, r, now).Reason)
}

// pause makes h ask all clients for a pause of word from now on.
func pause(t testing.TB, h *retrip.Host, word, now time.Duration) {
	t.Helper()
	o := repeatable(http.StatusServiceUnavailable)
	o.RetryAfter = word
	r := rulesOf(t, retrip.Policy{MaxAttempts: 1, MaxWait: word})
	h.Next(r, &retrip.Call{Attempts: 1}, o, now, drawLowest)
	require.Equal(t, word, h.State(r, now).PausedFor)
}

var protos = []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2, memhttp.H2C}

func eachProto(t *testing.T, f func(t *testing.T, proto memhttp.Proto)) {
	t.Helper()
	for _, proto := range protos {
		bubbled(t, proto.String(), func(t *testing.T) { f(t, proto) })
	}
}

// flaky answers the first n requests with status, and the others with h.
func flaky(n int32, status int, h http.HandlerFunc) (http.HandlerFunc, *atomic.Int32) {
	var seen atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) {
		if seen.Add(1) <= n {
			http.Error(w, "later", status)
			return
		}
		h(w, r)
	}, &seen
}

func mustRequest(t testing.TB, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequest(method, url, body)
	require.NoError(t, err)
	return req
}

// must returns v. It panics if err isn't nil.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
