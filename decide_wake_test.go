// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// Edges of decisions that mutation testing has found to be held by no other
// test.

// A wait that fits the deadline, or MaxWait, to the nanosecond is begun.
func TestNext_PauseThatJustFits(t *testing.T) {
	const now, word = time.Minute, 10 * time.Second
	for _, tt := range []struct {
		name    string
		policy  retrip.Policy
		call    retrip.Call
		retries bool
	}{
		{"deadline", retrip.Policy{}, retrip.Call{Attempts: 1, Deadline: now + word}, true},
		{"a nanosecond before the deadline", retrip.Policy{}, retrip.Call{Attempts: 1, Deadline: now + word - 1}, false},
		{"MaxWait", retrip.Policy{MaxWait: word}, retrip.Call{Attempts: 1}, true},
		{"a nanosecond more than MaxWait", retrip.Policy{MaxWait: word - 1}, retrip.Call{Attempts: 1}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var h retrip.Host
			pause(t, &h, word, now)
			d := h.Next(rulesOf(t, tt.policy), &tt.call, repeatable(http.StatusInternalServerError), now, drawLowest)
			assert.Equal(t, tt.retries, d.Retry)
			if !tt.retries {
				assert.Equal(t, retrip.ReasonHostPaused, d.Reason)
			}
		})
	}
}

// How long a waiter has waited counts from when its wait began, not from the
// epoch, and a pause renewed to exactly its deadline is still waited for.
func TestWake_CountsFromTheBeginOfTheWait(t *testing.T) {
	const now = time.Hour
	var h retrip.Host
	r := rulesOf(t, retrip.Policy{MaxWait: 30 * time.Second})
	call := &retrip.Call{Attempts: 1, Deadline: now + 15*time.Second}
	require.True(t, h.Next(r, call, repeatable(http.StatusServiceUnavailable), now, drawLowest).Retry)
	pause(t, &h, 10*time.Second, now+5*time.Second)
	d := h.Wake(r, call, now+5*time.Second, drawLowest)
	assert.True(t, d.Retry)
	assert.Equal(t, 10*time.Second, d.Wait)
}

// Return may be called twice, and after an outcome: nothing is given back that
// isn't held.
func TestReturn_GivesBackOnce(t *testing.T) {
	r := rulesOf(t, retrip.Policy{})
	tokens := func(h *retrip.Host) float64 { return h.State(r, 0).Tokens }
	var h retrip.Host
	drain(t, &h, 0)
	call := &retrip.Call{Attempts: 1}
	h.Return(r, call)
	require.Zero(t, tokens(&h))

	var two retrip.Host
	first, second := &retrip.Call{Attempts: 1}, &retrip.Call{Attempts: 1}
	for _, c := range []*retrip.Call{first, second} {
		require.True(t, two.Next(r, c, repeatable(http.StatusServiceUnavailable), 0, drawLowest).Retry)
	}
	require.InDelta(t, 4, tokens(&two), 1e-9)
	two.Return(r, first)
	two.Return(r, first)
	assert.InDelta(t, 4.5, tokens(&two), 1e-9)
	second.Attempts++
	two.Next(r, second, repeatable(http.StatusOK), 0, drawLowest)
	assert.InDelta(t, 5, tokens(&two), 1e-9)
	require.True(t, two.Next(r, first, repeatable(http.StatusServiceUnavailable), 0, drawLowest).Retry)
	two.Return(r, second)
	assert.InDelta(t, 4.5, tokens(&two), 1e-9)
}

// A probe whose outcome is known is given back no second time: no further
// probe takes its place.
func TestReturn_GivesAProbeBackOnce(t *testing.T) {
	const window, openFor = time.Minute, 10 * time.Second
	r := rulesOf(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 0.5, MinVolume: 2, Window: window, OpenFor: openFor, Probes: 2}})
	var h retrip.Host
	for range 2 {
		call := &retrip.Call{}
		require.True(t, h.First(r, call, 0, drawLowest).Retry)
		h.Next(r, call, repeatable(http.StatusServiceUnavailable), 0, drawLowest)
	}
	now := 2 * openFor
	probe := &retrip.Call{}
	require.True(t, h.First(r, probe, now, drawLowest).Retry)
	h.Next(r, probe, repeatable(http.StatusOK), now, drawLowest)
	h.Return(r, probe)
	now += openFor / 2
	require.True(t, h.First(r, &retrip.Call{}, now, drawLowest).Retry, "the second probe")
	assert.Equal(t, retrip.ReasonBreakerOpen, h.First(r, &retrip.Call{}, now+openFor/2, drawLowest).Reason, "a third one")
}

// What the gate lets through at once, at the end of a wait too, the breaker may
// still refuse.
func TestWake_AsksGateAndBreaker(t *testing.T) {
	r := rulesOf(t, retrip.Policy{Gate: retrip.On, Breaker: retrip.Breaker{Ratio: 0.5, MinVolume: 2, OpenFor: time.Minute}})
	var h retrip.Host
	waiting := &retrip.Call{}
	require.True(t, h.First(r, waiting, 0, drawLowest).Retry)
	require.True(t, h.Next(r, waiting, repeatable(http.StatusInternalServerError), 0, drawLowest).Retry)
	for range 3 {
		call := &retrip.Call{}
		h.First(r, call, 0, drawLowest)
		h.Next(r, call, repeatable(http.StatusInternalServerError), 0, drawLowest)
	}
	require.Equal(t, "open", h.State(r, 0).Breaker)
	assert.Equal(t, retrip.ReasonBreakerOpen, h.Wake(r, waiting, time.Second, drawLowest).Reason)
}

// Under a gate it is 429 and 503 that pause a host, no other status.
func TestGate_PausesFor429And503Only(t *testing.T) {
	r := rulesOf(t, retrip.Policy{Gate: retrip.On})
	for status, pauses := range map[int]bool{429: true, 503: true, 500: false, 502: false} {
		var h retrip.Host
		o := repeatable(status)
		o.RetryAfter = time.Second
		h.Next(r, &retrip.Call{Attempts: 1}, o, 0, drawLowest)
		assert.Equal(t, pauses, h.State(r, 0).PausedFor > 0, status)
	}
}

func TestNext_ReasonOf499(t *testing.T) {
	var h retrip.Host
	d := h.Next(rulesOf(t, retrip.Policy{RetryOn: []int{499}}), &retrip.Call{Attempts: 1}, repeatable(499), 0, drawLowest)
	assert.Equal(t, retrip.ReasonStatus, d.Reason)
}

// Each change of a host's state is told once: by the hook, and by the counters.
func TestHost_TellsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status, header := http.StatusServiceUnavailable, http.Header{"Retry-After": {"1"}}
		base := hookedBase(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: header, Body: http.NoBody, Request: req}, nil
		})
		var told []string
		var log strings.Builder
		metrics := retrip.NewMetrics()
		transport := &retrip.Transport{
			Base: base, Metrics: metrics, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Policy: retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 0.5, MinVolume: 2, Window: time.Minute, OpenFor: time.Second, Probes: 1}},
			Trace: &retrip.Trace{Host: func(s retrip.HostState) {
				what := s.Breaker
				if s.PausedFor > 0 {
					what += ", paused"
				}
				told = append(told, what)
			}},
		}
		call := func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/", nil)
			require.NoError(t, err)
			if resp, err := transport.RoundTrip(req); err == nil {
				resp.Body.Close()
			}
		}
		call() // pauses
		header = http.Header{}
		time.Sleep(2 * time.Second)
		call() // opens
		time.Sleep(2 * time.Second)
		status = http.StatusOK
		call() // probes, and closes
		call()
		assert.Equal(t, []string{"closed, paused", "open", "half-open", "closed"}, told)
		lines := regexp.MustCompile(`level=(\S+) msg="retrip: host" host=example.com:80 change=(\S+) policy=default breaker=(\S+) open_for=\S+ paused_for=(\S+)`)
		var logged [][]string
		for _, match := range lines.FindAllStringSubmatch(log.String(), -1) {
			logged = append(logged, match[1:])
		}
		assert.Equal(t, [][]string{{"WARN", "paused", "closed", "1s"}, {"WARN", "breaker_open", "open", "0s"}, {"INFO", "breaker_closed", "closed", "0s"}}, logged)

		reg := prometheus.NewPedanticRegistry()
		require.NoError(t, reg.Register(metrics))
		families, err := reg.Gather()
		require.NoError(t, err)
		var counted []string
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, label := range m.GetLabel() {
					if f.GetName() == "retrip_breaker_transitions_total" && label.GetName() == "to" && m.GetCounter().GetValue() == 1 {
						counted = append(counted, label.GetValue())
					}
				}
				if f.GetName() == "retrip_pauses_total" && m.GetCounter().GetValue() == 1 {
					counted = append(counted, "paused")
				}
			}
		}
		slices.Sort(counted)
		assert.Len(t, counted, 4, "%v", counted)
	})
}

type hookedBase func(*http.Request) (*http.Response, error)

func (f hookedBase) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
