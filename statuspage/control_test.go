// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package statuspage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/control"
	"github.com/retrip/retrip/internal/lend"
	"github.com/retrip/retrip/internal/testenv"
)

// post sends h a form, in pairs of field and value, and returns the status and what
// became of the command.
func post(t *testing.T, h http.Handler, pairs ...string) (int, []result) {
	t.Helper()
	form := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		form.Add(pairs[i], pairs[i+1])
	}
	req := httptest.NewRequest(http.MethodPost, "/?format=json", strings.NewReader(form.Encode()))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	var c console
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &c), w.Body.String())
	return w.Code, c.Results
}

// ok is post for a command that must work in one Transport.
func ok(t *testing.T, h http.Handler, pairs ...string) {
	t.Helper()
	code, results := post(t, h, append(pairs, "who", "ann")...)
	require.Equal(t, http.StatusOK, code, results)
	require.Empty(t, results[0].Error)
}

// scene is a Transport whose base counts attempts, and its handlers.
type scene struct {
	tr       *retrip.Transport
	attempts atomic.Int64
	status   atomic.Int64
	control  http.Handler
	page     http.Handler
	log      bytes.Buffer
	metrics  *retrip.Metrics
}

func newScene(policy retrip.Policy) *scene {
	s := &scene{metrics: retrip.NewMetrics()}
	s.status.Store(200)
	if policy.Backoff.Base == 0 {
		policy.Backoff.Base = retrip.Off
	}
	s.tr = &retrip.Transport{Policy: policy, Hosts: map[string]retrip.Policy{"*.other.example": {}}, Metrics: s.metrics,
		Logger: slog.New(slog.NewTextHandler(&s.log, nil)),
		Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			s.attempts.Add(1)
			return answer(int(s.status.Load()))(r)
		})}
	all := map[string]*retrip.Transport{"shop": s.tr}
	s.control, s.page = Control(all), Handler(all)
	return s
}

// get sends a GET to a host, and returns the status, the number of attempts and the reason
// in the error.
func (s *scene) get(t *testing.T, host string) (status, attempts int, reason retrip.Reason) {
	t.Helper()
	return s.getWith(t, t.Context(), host)
}

func (s *scene) getWith(t *testing.T, ctx context.Context, host string) (status, attempts int, reason retrip.Reason) {
	t.Helper()
	before := s.attempts.Load()
	var given retrip.Reason
	ctx = retrip.WithTrace(ctx, &retrip.Trace{GiveUp: func(e retrip.Event) { given = e.Reason }})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/", nil)
	require.NoError(t, err)
	resp, err := s.tr.RoundTrip(req)
	attempts = int(s.attempts.Load() - before)
	if err != nil {
		var e *retrip.Error
		require.True(t, errors.As(err, &e), err)
		require.Equal(t, given, e.Reason)
		return 0, attempts, e.Reason
	}
	resp.Body.Close()
	return resp.StatusCode, attempts, given
}

// count returns a counter of the metrics.
func (s *scene) count(t *testing.T, name, label string) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s.metrics)
	families, err := reg.Gather()
	require.NoError(t, err)
	var sum float64
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetValue() == label {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

// A hold fails the requests to its host at once, and no others, until its time is over or
// it is undone. The reason is the same word everywhere.
//
//retrip:promise P19
func TestControl_Hold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(retrip.Policy{})
		status := func(host string) int { code, _, _ := s.get(t, host); return code }
		ok(t, s.control, "action", "hold", "host", "A.example:080", "for", "10m")
		code, attempts, reason := s.get(t, "a.example")
		assert.Equal(t, []any{0, 0, retrip.ReasonByHand}, []any{code, attempts, reason})
		assert.Equal(t, 200, status("b.example"))
		assert.Equal(t, 1.0, s.count(t, "retrip_give_ups_total", "by_hand"))
		state := must(s.tr.HostState("a.example:80"))
		assert.Equal(t, []any{1, retrip.ReasonByHand}, []any{state.Failed, state.LastGiveUp}, "it isn't green")
		assert.False(t, state.Held, "which says what rules do, not people")
		assert.Contains(t, s.log.String(), `level=WARN msg="retrip: by hand" action=forbid what="requests to a.example:80" for=10m0s who=ann`)
		assert.Contains(t, s.log.String(), "reason=by_hand")
		for _, text := range []string{get(t, s.page, "/").Body.String(), get(t, s.control, "/").Body.String()} {
			assert.Contains(t, text, "requests to a.example:80")
			assert.Contains(t, text, "10m0s")
			assert.Contains(t, text, "ann")
		}

		time.Sleep(10*time.Minute - 1)
		assert.Zero(t, status("a.example"))
		time.Sleep(time.Nanosecond)
		assert.Equal(t, 200, status("a.example"), "at the instant of its end")
		assert.Contains(t, s.log.String(), `level=INFO msg="retrip: by hand" action=over what="requests to a.example:80" for=10m0s who=ann`)
		assert.NotContains(t, get(t, s.page, "/").Body.String(), "ann")

		ok(t, s.control, "action", "hold", "host", "a.example:80", "for", "1h")
		ok(t, s.control, "action", "undo", "host", "a.example:80")
		assert.Equal(t, 200, status("a.example"))
		assert.Contains(t, s.log.String(), `action=allow what="requests to a.example:80"`)
	})
}

// A stop lets each request make its first attempt. It ends waits before retries at their
// end, and doesn't touch tokens.
func TestControl_Stop(t *testing.T) {
	for _, policy := range []string{"", "default"} {
		synctest.Test(t, func(t *testing.T) {
			s := newScene(retrip.Policy{Backoff: retrip.Backoff{Base: 10 * time.Second, Cap: 10 * time.Second, Jitter: retrip.NoJitter}})
			s.status.Store(503)
			var wg sync.WaitGroup
			wg.Go(func() {
				code, attempts, reason := s.get(t, "a.example")
				assert.Equal(t, []any{0, 1, retrip.ReasonByHand}, []any{code, attempts, reason})
			})
			synctest.Wait()
			ok(t, s.control, "action", "stop", "policy", policy, "for", "15s")
			wg.Wait()
			before := must(s.tr.HostState("a.example:80"))
			assert.Equal(t, before.Size, before.Tokens, "the retry wasn't made")
			code, attempts, reason := s.get(t, "a.example")
			assert.Equal(t, []any{503, 1, retrip.ReasonByHand}, []any{code, attempts, reason})
			_, attempts, reason = s.get(t, "x.other.example")
			if policy == "" {
				assert.Equal(t, []any{1, retrip.ReasonByHand}, []any{attempts, reason})
			} else {
				assert.Equal(t, 4, attempts, "of another policy")
			}
			assert.Equal(t, before.Size, must(s.tr.HostState("a.example:80")).Tokens)

			// A wait that ends at the very instant at which the stop ends.
			time.Sleep(time.Minute)
			ok(t, s.control, "action", "stop", "policy", policy, "for", "1m")
			time.Sleep(50 * time.Second)
			ok(t, s.control, "action", "undo", "policy", policy)
			wg.Go(func() {
				_, attempts, _ := s.get(t, "a.example")
				assert.Equal(t, 4, attempts)
			})
			synctest.Wait()
			ok(t, s.control, "action", "stop", "policy", policy, "for", "10s")
			wg.Wait()
		})
	}
}

// Forget gives a host its tokens back, ends its pause, closes its breaker and takes it off
// the page.
func TestControl_Forget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(retrip.Policy{Breaker: retrip.Breaker{MinVolume: 3, OpenFor: time.Hour}})
		s.status.Store(503)
		for range 5 {
			s.get(t, "a.example")
		}
		state := must(s.tr.HostState("a.example:80"))
		require.Equal(t, retrip.BreakerOpen, state.Breaker)
		require.Less(t, state.Tokens, state.Size)
		s.status.Store(200)
		_, attempts, reason := s.get(t, "a.example")
		require.Equal(t, []any{0, retrip.ReasonBreakerOpen}, []any{attempts, reason})
		ok(t, s.control, "action", "forget", "host", "a.example:80")
		assert.Equal(t, retrip.HostState{Host: "a.example:80", Policy: "default", Tokens: 5, Size: 5, Breaker: retrip.BreakerClosed}, must(s.tr.HostState("a.example:80")))
		code, _, _ := s.get(t, "a.example")
		assert.Equal(t, 200, code)
		assert.Contains(t, get(t, s.page, "/").Body.String(), calm)

		// The host can fail again as if for the first time.
		s.log.Reset()
		s.status.Store(503)
		for range 5 {
			s.get(t, "a.example")
		}
		assert.Contains(t, s.log.String(), "level=WARN msg=\"retrip: host\" host=a.example:80 change=breaker_open")
	})
}

// Requests that wait at a gate go when their host is forgotten, and fail when it is held.
func TestControl_Gates(t *testing.T) {
	for _, key := range []func(*http.Request) string{nil, func(*http.Request) string { return "tenant" }} {
		synctest.Test(t, func(t *testing.T) {
			s := newScene(retrip.Policy{MaxWait: time.Hour, Gate: retrip.Gate{Enabled: retrip.On, Key: key}})
			s.tr.Base = testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				s.attempts.Add(1)
				resp, err := answer(int(s.status.Load()))(r)
				if resp.StatusCode == 429 {
					resp.Header.Set("Retry-After", "600")
				}
				return resp, err
			})
			var wg sync.WaitGroup
			began := time.Now()
			var answered, byHand atomic.Int64
			crowd := func() {
				s.status.Store(429)
				for range 50 {
					wg.Go(func() {
						req := must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a.example/", nil))
						resp, err := s.tr.RoundTrip(req)
						var e *retrip.Error
						switch {
						case err == nil && resp.StatusCode == 200:
							answered.Add(1)
						case errors.As(err, &e) && e.Reason == retrip.ReasonByHand:
							byHand.Add(1)
						}
					})
					time.Sleep(time.Millisecond)
				}
				synctest.Wait()
				require.Equal(t, 50, must(s.tr.HostState("a.example:80")).Waiting)
				s.status.Store(200)
			}
			crowd()
			ok(t, s.control, "action", "forget", "host", "a.example:80")
			wg.Wait()
			assert.EqualValues(t, 50, answered.Load())
			assert.Less(t, time.Since(began), time.Second)
			assert.Empty(t, s.tr.HostStates())

			crowd()
			ok(t, s.control, "action", "hold", "host", "a.example:80", "for", "1h")
			wg.Wait()
			assert.EqualValues(t, 50, byHand.Load())
			assert.Less(t, time.Since(began), time.Second)
			assert.Zero(t, must(s.tr.HostState("a.example:80")).Waiting)
		})
	}
}

// A command that is wrong changes nothing. The error names field and value.
func TestControl_Refuses(t *testing.T) {
	long := strings.Repeat("x", 400)
	for _, tt := range []struct{ fields, want string }{
		{"", `action is ""`},
		{"action=drop", `action is "drop": it must be hold, stop, undo or forget`},
		{"action=hold&for=1m&who=a", "host is empty: the action hold needs it"},
		{"action=hold&host=a:80&who=a", "for is empty: the action hold needs it"},
		{"action=hold&host=a:80&for=1m", "who is empty"},
		{"action=hold&host=a:80&for=1m&who=%20", "who is empty"},
		{"action=hold&host=a:80&for=-5m&who=a", "for is -5m0s: it must be more than 0s and at most 24h0m0s"},
		{"action=hold&host=a:80&for=0s&who=a", "for is 0s"},
		{"action=hold&host=a:80&for=24h1ns&who=a", "for is 24h0m0.000000001s"},
		{"action=hold&host=a:80&for=2562047h47m&who=a", "for is 2562047h47m0s"},
		{"action=hold&host=a:80&for=9999999h&who=a", `for is "9999999h": it must be a duration such as 10m`},
		{"action=hold&host=a:80&for=soon&who=a", `for is "soon"`},
		{"action=hold&host=a&for=1m&who=a", `host: retrip: "a" is not a valid host`},
		{"action=hold&host=%00%ff:80&for=1m&who=a", "host: "},
		{"action=hold&host=http://u:secret@a/?secret&for=1m&who=a", "host: "},
		{"action=hold&host=" + long + ":80&for=1m&who=a", "host has 403 bytes: it must have at most 300"},
		{"action=hold&host=a:80&host=b:80&for=1m&who=a", "host is given 2 times"},
		{"action=hold&host=a:80&policy=default&for=1m&who=a", `policy is "default": the action hold doesn't take it`},
		{"action=hold&host=a:80&for=1m&who=a&fro=2m", `fro is "2m": the action hold doesn't take it`},
		{"action=stop&policy=nope&for=1m&who=a", `policy is "nope": there is no such pattern`},
		{"action=stop&policy=" + long + "&for=1m&who=a", "policy has 400 bytes"},
		{"action=undo&host=a:80&policy=default&who=a", "only one may be set"},
		{"action=undo&who=a", "nobody forbids all retries"},
		{"action=undo&host=a:80&who=a", "nobody forbids requests to a:80"},
		{"action=undo&policy=nope&who=a", "nobody forbids retries of policy nope"},
		{"action=forget&host=a:80&who=a", `host is "a:80": nothing is known of it`},
		{"action=forget&host=a:80&who=a&for=1m", `for is "1m": the action forget doesn't take it`},
		{"action=hold&host=a:80&for=1m&who=" + long, "who has 400 bytes: it must have at most 100"},
		{"action=hold&host=a:80&for=1m&who=a%0Alevel=WARN", `who is "a\nlevel=WARN": it must have only printable characters`},
		{"action=hold&host=a:80&for=1m&who=%ff", `who is "\xff"`},
		{"action=hold&host=a:80&for=1m&who=a&transport=none", `transport is "none": there is none of this name`},
		{"action=hold&host=a:80&for=1m&who=a&transport=nil", `transport is "nil"`},
		{"action=%zz", "invalid URL escape"},
	} {
		tr := &retrip.Transport{}
		h := Control(map[string]*retrip.Transport{"shop": tr, "nil": nil})
		req := httptest.NewRequest(http.MethodPost, "/?action=stop&for=1m&who=query&format=json", strings.NewReader(tt.fields))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		assert.Equal(t, http.StatusBadRequest, w.Code, tt.fields)
		var c console
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &c))
		require.Len(t, c.Results, 1)
		assert.Contains(t, c.Results[0].Error, tt.want)
		assert.NotContains(t, w.Body.String(), "secret")
		assert.Empty(t, c.Transports[0].ByHand)
	}
	// The body is bounded.
	code, _ := post(t, Control(nil), "action", strings.Repeat("x", 1<<20))
	assert.Equal(t, http.StatusRequestEntityTooLarge, code)
	// So is the number of orders.
	tr := &retrip.Transport{}
	h := Control(map[string]*retrip.Transport{"shop": tr})
	for i := range 100 {
		ok(t, h, "action", "hold", "host", fmt.Sprintf("h%d:80", i), "for", "1m")
	}
	code, results := post(t, h, "action", "hold", "host", "more:80", "for", "1m", "who", "ann")
	assert.Equal(t, http.StatusBadRequest, code)
	assert.Contains(t, results[0].Error, "100 orders hold")
	ok(t, h, "action", "hold", "host", "h1:80", "for", "2m")
}

// Without a name for the log, nothing is done, whoever asks.
func TestControl_WithoutName(t *testing.T) {
	tr := &retrip.Transport{}
	c, all := lend.Control(tr), control.Subject{}
	require.NoError(t, c.Give(t.Context(), all, "ann", time.Minute))
	require.Error(t, c.Give(t.Context(), all, "", time.Hour))
	require.Error(t, c.Undo(t.Context(), all, ""))
	orders, now := c.Orders()
	require.Len(t, orders, 1)
	assert.LessOrEqual(t, orders[0].Until-now, time.Minute)
	assert.NoError(t, c.Undo(t.Context(), all, "bob"))
}

// Pages of other sites can't use the browser of somebody who may use Control, GET changes
// nothing, and nothing that comes from outside becomes markup.
func TestControl_Browsers(t *testing.T) {
	tr := &retrip.Transport{Base: down, Policy: retrip.Policy{MaxAttempts: 1}}
	call(tr, `"><script>alert(1)</script>`)
	h := Control(map[string]*retrip.Transport{`<i>shop</i>`: tr})
	const form = `action=stop&for=1m&who=%3Cb%3Eeve`
	send := func(method, target string, header ...string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(method, target, strings.NewReader(form))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w
	}
	for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"}} {
		assert.Equal(t, http.StatusForbidden, send(http.MethodPost, "/", header...).Code, header)
	}
	for _, method := range []string{http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions} {
		w := send(method, "/")
		assert.Equal(t, http.StatusMethodNotAllowed, w.Code)
		assert.Equal(t, "GET, HEAD, POST", w.Header().Get("Allow"))
	}
	send(http.MethodGet, "/?"+form)
	w := send(http.MethodGet, "/")
	assert.Contains(t, w.Body.String(), "nothing is forbidden by hand")
	assert.Contains(t, w.Header().Get("Content-Security-Policy"), "frame-ancestors 'none'")

	w = send(http.MethodPost, "/", "Origin", "http://example.com")
	assert.Equal(t, http.StatusOK, w.Code)
	for _, never := range []string{"<script", "<i>shop", "<b>eve"} {
		assert.NotContains(t, w.Body.String(), never)
		assert.NotContains(t, get(t, Handler(map[string]*retrip.Transport{"a": tr}), "/").Body.String(), never)
	}
	assert.Contains(t, w.Body.String(), "all retries")
	w = get(t, Control(nil), "/")
	assert.Contains(t, w.Body.String(), "There are no Transports to control.")
}

// Orders outlive SetPolicies, and policies that are invalid are an error.
func TestControl_SetPolicies(t *testing.T) {
	s := newScene(retrip.Policy{})
	s.status.Store(503)
	ok(t, s.control, "action", "stop", "policy", "*.OTHER.example", "for", "1h")
	ok(t, s.control, "action", "hold", "host", "a.example:80", "for", "1h")
	require.NoError(t, s.tr.SetPolicies(retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}, nil))
	_, attempts, reason := s.get(t, "a.example")
	assert.Equal(t, []any{0, retrip.ReasonByHand}, []any{attempts, reason})
	_, attempts, _ = s.get(t, "x.other.example")
	assert.Equal(t, 4, attempts, "the policy is gone")
	require.NoError(t, s.tr.SetPolicies(retrip.Policy{MaxAttempts: 1}, map[string]retrip.Policy{"*.other.example": {MaxAttempts: 4}}))
	_, attempts, reason = s.get(t, "y.other.example")
	assert.Equal(t, []any{1, retrip.ReasonByHand}, []any{attempts, reason})
	_, attempts, reason = s.get(t, "c.example")
	assert.Equal(t, []any{1, retrip.ReasonMaxAttempts}, []any{attempts, reason}, "not an order's doing")

	wrong := &retrip.Transport{Policy: retrip.Policy{MaxAttempts: -5}}
	code, results := post(t, Control(map[string]*retrip.Transport{"wrong": wrong, "zero": {}}), "action", "stop", "for", "1m", "who", "ann")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, results[0].Error, "MaxAttempts is -5")
	assert.Equal(t, "forbids all retries for 1m0s", results[1].Done)
}

// What the state of a host tells is the newest reason, also of a host in trouble.
func TestControl_HoldInTrouble(t *testing.T) {
	s := newScene(retrip.Policy{MaxAttempts: 2})
	s.status.Store(503)
	s.get(t, "a.example")
	require.Equal(t, retrip.ReasonMaxAttempts, must(s.tr.HostState("a.example:80")).LastGiveUp)
	ok(t, s.control, "action", "hold", "host", "a.example:80", "for", "1m")
	s.get(t, "a.example")
	assert.Equal(t, retrip.ReasonByHand, must(s.tr.HostState("a.example:80")).LastGiveUp)
}

// A body that broke waits while a person forbids the request for its rest, for as long as
// Policy.Resume allows.
//
//retrip:promise P20
func TestControl_Bodies(t *testing.T) {
	for _, hold := range []string{"10s", "2m"} {
		for _, action := range [][]string{{"action", "hold", "host", "a.example:80"}, {"action", "stop"}} {
			synctest.Test(t, func(t *testing.T) {
				const whole = "0123456789"
				asked := 0
				tr := &retrip.Transport{Policy: retrip.Policy{Resume: time.Minute}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
					resp, err := answer(200)(r)
					resp.Header.Set("ETag", `"1"`)
					resp.ContentLength = 10
					if r.Header.Get("Range") == "" {
						resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(whole[:4]), iotest.ErrReader(io.ErrUnexpectedEOF)))
						return resp, err
					}
					asked++
					resp.StatusCode, resp.ContentLength = http.StatusPartialContent, 6
					resp.Header.Set("Content-Range", "bytes 4-9/10")
					resp.Body = io.NopCloser(strings.NewReader(whole[4:]))
					return resp, err
				})}
				h := Control(map[string]*retrip.Transport{"shop": tr})
				resp, err := tr.RoundTrip(must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a.example/", nil)))
				require.NoError(t, err)
				ok(t, h, append(action, "for", hold)...)
				began := time.Now()
				body, err := io.ReadAll(resp.Body)
				if hold == "10s" {
					assert.NoError(t, err)
					assert.Equal(t, whole, string(body))
					assert.Equal(t, 1, asked)
					assert.GreaterOrEqual(t, time.Since(began), 10*time.Second)
					assert.Less(t, time.Since(began), 30*time.Second)
				} else {
					assert.ErrorContains(t, err, "by_hand")
					assert.Zero(t, asked)
					assert.InDelta(t, 60, time.Since(began).Seconds(), 15)
				}
			})
		}
	}
}

// The account of a fleet isn't charged for a retry that a person forbids, and forgetting a
// host of this process doesn't touch the account.
func TestControl_Fleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(retrip.Policy{Backoff: retrip.Backoff{Base: 5 * time.Second, Jitter: retrip.NoJitter}})
		s.tr.Fleet = retrip.NewFleet(nil)
		defer s.tr.Fleet.Close()
		s.status.Store(503)
		var wg sync.WaitGroup
		wg.Go(func() { s.get(t, "a.example") })
		time.Sleep(time.Second)
		ok(t, s.control, "action", "stop", "for", "10s")
		wg.Wait()
		state := must(s.tr.HostState("a.example:80"))
		assert.Equal(t, state.FleetSize, state.FleetTokens)
		time.Sleep(time.Minute)
		s.get(t, "a.example")
		state = must(s.tr.HostState("a.example:80"))
		require.Less(t, state.FleetTokens, state.FleetSize)
		ok(t, s.control, "action", "forget", "host", "a.example:80")
		assert.Equal(t, state.FleetTokens, must(s.tr.HostState("a.example:80")).FleetTokens)
		assert.False(t, must(s.tr.HostState("a.example:80")).Held)
	})
}

// A Logger may use the Transport whose records it gets.
func TestControl_Logger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(retrip.Policy{})
		var records atomic.Int64
		s.tr.Logger = slog.New(slog.NewTextHandler(writer(func(text []byte) {
			if strings.Contains(string(text), "by hand") {
				records.Add(1)
				assert.NoError(t, s.tr.SetPolicies(retrip.Policy{}, nil))
				s.tr.HostStates()
			}
		}), nil))
		ok(t, s.control, "action", "stop", "for", "1m")
		ok(t, s.control, "action", "hold", "host", "a.example:80", "for", "1m")
		time.Sleep(time.Hour)
		code, _, _ := s.get(t, "a.example")
		assert.Equal(t, 200, code)
		assert.EqualValues(t, 4, records.Load())
	})
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

// Commands, requests, policies and looks at once: nothing is lost, and in the end nothing is
// forbidden.
func TestControl_Concurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(retrip.Policy{Backoff: retrip.Backoff{Base: time.Millisecond}, Gate: retrip.Gate{Enabled: retrip.On}, Breaker: retrip.Breaker{MinVolume: 5, OpenFor: time.Second}})
		s.tr.Logger = nil
		s.tr.Base = testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			time.Sleep(time.Millisecond)
			status := []int{200, 200, 429, 503}[s.attempts.Add(1)%4]
			return answer(status)(r)
		})
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 100 {
					req := must(http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://h%d.example/", (g+i)%3), nil))
					if resp, err := s.tr.RoundTrip(req); err == nil {
						resp.Body.Close()
					}
				}
			})
			wg.Go(func() {
				for i := range 100 {
					host := fmt.Sprintf("h%d.example:80", i%3)
					switch (g + i) % 6 {
					case 0:
						post(t, s.control, "action", "hold", "host", host, "for", "5ms", "who", "ann")
					case 1:
						post(t, s.control, "action", "stop", "for", "7ms", "who", "ann")
					case 2:
						post(t, s.control, "action", "forget", "host", host, "who", "ann")
					case 3:
						post(t, s.control, "action", "undo", "host", host, "who", "ann")
					case 4:
						assert.NoError(t, s.tr.SetPolicies(s.tr.Policy, nil))
					case 5:
						get(t, s.page, "/?format=json")
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Hour + time.Minute)
		for i := range 3 {
			_, attempts, reason := s.get(t, fmt.Sprintf("h%d.example", i))
			assert.Positive(t, attempts)
			assert.NotEqual(t, retrip.ReasonByHand, reason)
		}
		for _, state := range s.tr.HostStates() {
			assert.Zero(t, state.Waiting)
		}
		assert.NotContains(t, get(t, s.page, "/").Body.String(), "by hand")
	})
}

// The commands of the runbook do what they say.
func TestControl_Runbook(t *testing.T) {
	text, err := os.ReadFile("../docs/runbook.md")
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		s := newScene(retrip.Policy{})
		var actions []string
		for _, command := range regexp.MustCompile(`(?m)^curl .*$`).FindAllString(string(text), -1) {
			var pairs []string
			for _, field := range regexp.MustCompile(`-d (\w+)=(\S+)`).FindAllStringSubmatch(command, -1) {
				pairs = append(pairs, field[1:]...)
				if field[1] == "action" {
					actions = append(actions, field[2])
				}
			}
			code, results := post(t, s.control, pairs...)
			assert.Equal(t, http.StatusOK, code, "%s: %v", command, results)
			_, attempts, _ := s.get(t, "api.example.com:443")
			assert.Equal(t, pairs[3] == "undo", attempts == 1, command)
		}
		assert.Equal(t, []string{"hold", "stop", "forget", "undo"}, actions)
	})
}
