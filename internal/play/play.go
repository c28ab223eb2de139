// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package play has what tests of several packages share: a Base that plays a script,
// requests and bodies, stories, the pure core on simulated time. It imports the root package, so
// only external tests (package x_test) may use it.
package play

import (
	"io"
	"math"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/lend"
	"github.com/retrip/retrip/internal/memhttp"
)

// The draws that yield the ends of an interval.
const (
	Lowest  = 0
	Highest = math.MaxUint64
)

// MeasureHeap collects garbage as often as in a program until t ends, whatever the
// TestMain of the package has set: garbage counts as part of the heap.
func MeasureHeap(t *testing.T) {
	t.Helper()
	rare := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(rare) })
}

func Rules(t testing.TB, p retrip.Policy) Judge {
	t.Helper()
	r, _, err := lend.Rules(p)
	require.NoError(t, err)
	return Judge{r}
}

// Judge asks the machine one question at a time, of calls whose attempts the test counts.
type Judge struct{ *decide.Rules }

// Decision is what an action says of an attempt.
type Decision struct {
	Retry, AtGate, Wakes bool
	Change               host.Change
	Wait                 time.Duration
	Reason               decide.Reason
}

func (r Judge) step(h *host.Record, c *decide.Call, e decide.Event, now time.Duration, draw uint64) Decision {
	var a decide.Action
	c.Step(r.Rules, h, &e, &a, now, draw)
	if a.Do == decide.Send {
		c.Attempts--
	}
	return Decision{a.Do < decide.Answer, a.AtGate || a.Do == decide.Queue, a.Wakes, a.Change, a.Wait, a.Reason}
}

func (r Judge) ForOthers() Judge { return Judge{r.Rules.ForOthers()} }

// First decides before the first attempt, and Wake at the end of a wait.
func (r Judge) First(h *host.Record, c *decide.Call, now time.Duration, draw uint64) Decision {
	return r.step(h, c, decide.Event{Kind: decide.Began}, now, draw)
}

func (r Judge) Wake(h *host.Record, c *decide.Call, now time.Duration, draw uint64) Decision {
	return r.step(h, c, decide.Event{Kind: decide.Due}, now, draw)
}

// Next decides after an attempt.
func (r Judge) Next(h *host.Record, c *decide.Call, o decide.Outcome, now time.Duration, draw uint64) Decision {
	c.Attempts = max(c.Attempts, 1)
	return r.step(h, c, decide.Event{Kind: decide.Ended, Outcome: o}, now, draw)
}

// Return gives back what the call has taken, because its caller has gone.
func (r Judge) Return(h *host.Record, c *decide.Call) (wakes bool) {
	return r.step(h, c, decide.Event{Kind: decide.Gone}, 0, 0).Wakes
}

// Repeatable returns the outcome of a request that may be repeated.
func Repeatable(status int) decide.Outcome {
	return decide.Outcome{Status: status, Repeatable: true, Replay: true}
}

// Fail makes one attempt at h that fails in a way that a retry may fix, and
// returns the decision.
func Fail(h *host.Record, r Judge, now time.Duration) Decision {
	return r.Next(h, &decide.Call{Attempts: 1}, Repeatable(http.StatusServiceUnavailable), now, Lowest)
}

// Drain spends all tokens of h.
func Drain(t testing.TB, h *host.Record, now time.Duration) {
	t.Helper()
	r := Rules(t, retrip.Policy{})
	for Fail(h, r, now).Retry {
	}
	require.Equal(t, decide.BudgetExhausted, Fail(h, r, now).Reason)
}

// Pause makes h ask all clients for a pause of word from now on.
func Pause(t testing.TB, h *host.Record, word, now time.Duration) {
	t.Helper()
	o := Repeatable(http.StatusServiceUnavailable)
	o.RetryAfter = word
	r := Rules(t, retrip.Policy{MaxAttempts: 1, MaxWait: word})
	r.Next(h, &decide.Call{Attempts: 1}, o, now, Lowest)
	require.Equal(t, word, r.State(h, now).PausedFor)
}

var Protos = []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2, memhttp.H2C}

func EachProto(t *testing.T, f func(t *testing.T, proto memhttp.Proto)) {
	t.Helper()
	for _, proto := range Protos {
		Bubble(t, proto.String(), func(t *testing.T) { f(t, proto) })
	}
}

// Echo answers with the body of the request.
func Echo(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }

// Flaky answers the first n requests with status, and the others with h.
func Flaky(n int32, status int, h http.HandlerFunc) (http.HandlerFunc, *atomic.Int32) {
	var seen atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) {
		if seen.Add(1) <= n {
			http.Error(w, "later", status)
			return
		}
		h(w, r)
	}, &seen
}

func MustRequest(t testing.TB, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequest(method, url, body)
	require.NoError(t, err)
	return req
}

// Must returns v. It panics if err isn't nil.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

type Zeros struct{}

func (Zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Toggle returns a Switch that is on or off.
func Toggle(on bool) retrip.Switch {
	if on {
		return retrip.On
	}
	return retrip.Off
}

// Held returns the states of the hosts from which t may hold requests back.
func Held(t *retrip.Transport) (held []retrip.HostState) {
	for _, s := range t.HostStates() {
		if s.Held {
			held = append(held, s)
		}
	}
	return held
}
