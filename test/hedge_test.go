// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// leg is what a hedgeBase does with one attempt: after a time it returns a status, an
// error or a panic, unless the attempt ends before.
type leg struct {
	after  time.Duration
	status int
	err    error
	panics any
	header http.Header
	serve  play.Step // what answers instead
	deaf   bool      // doesn't notice the end of the attempt
	exits  bool      // its goroutine ends
}

// hedgeBase makes the attempts of each request as its script says. It counts the response
// bodies that are open.
type hedgeBase struct {
	mu    sync.Mutex
	legs  []leg // of the next request; empty: usual
	seen  []*http.Request
	ended []time.Time
	open  atomic.Int32
}

// usual is how long an answer takes as a rule.
const usual = 20 * time.Millisecond

func (b *hedgeBase) RoundTrip(req *http.Request) (*http.Response, error) {
	b.mu.Lock()
	l := leg{after: usual, status: 200}
	if len(b.legs) > 0 {
		l, b.legs = b.legs[0], b.legs[1:]
	}
	n := len(b.seen)
	b.seen, b.ended = append(b.seen, req), append(b.ended, time.Time{})
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.ended[n] = time.Now()
	}()
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
	}
	done := req.Context().Done()
	if l.deaf {
		done = nil
	}
	select {
	case <-time.After(l.after):
	case <-done:
		return nil, req.Context().Err()
	}
	switch {
	case l.exits:
		runtime.Goexit()
	case l.panics != nil:
		panic(l.panics)
	case l.err != nil:
		return nil, l.err
	case l.serve != nil:
		return l.serve(req)
	}
	b.open.Add(1)
	header := l.header
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: l.status, Header: header, Request: req, ContentLength: -1,
		Body: &openBody{Reader: strings.NewReader("ok"), ctx: req.Context(), open: &b.open}}, nil
}

// running returns the number of attempts that go on.
func (b *hedgeBase) running() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, end := range b.ended {
		if end.IsZero() {
			n++
		}
	}
	return n
}

// script makes legs the next attempts.
func (b *hedgeBase) script(legs ...leg) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.legs = legs
}

// openBody is a body that counts as open until it is closed, and that ends with its
// request, as those of net/http do.
type openBody struct {
	io.Reader
	ctx  context.Context
	open *atomic.Int32
	once sync.Once
}

func (b *openBody) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	return b.Reader.Read(p)
}

func (b *openBody) Close() error {
	b.once.Do(func() { b.open.Add(-1) })
	return nil
}

// hedging returns a Transport that has learned that answers take the usual time, and
// that has two hedges saved up.
func hedging(t *testing.T, p retrip.Policy) (*retrip.Transport, *hedgeBase) {
	t.Helper()
	base := &hedgeBase{}
	p.Hedge = 0.2
	tr := &retrip.Transport{Base: base, Policy: p, Metrics: &retrip.Metrics{}}
	warm(t, tr)
	base.seen, base.ended = nil, nil
	return tr, base
}

func warm(t *testing.T, tr *retrip.Transport) {
	t.Helper()
	for range 20 {
		drop(t, tr, get(t.Context()))
	}
}

func get(ctx context.Context) *http.Request {
	req, err := http.NewRequestWithContext(ctx, "GET", "http://example.com/", nil)
	if err != nil {
		panic(err)
	}
	return req
}

const never = time.Hour

// good, bad and broken are attempts that take so many times the usual time.
func good(times float64) leg            { return leg{after: of(times), status: 200} }
func bad(times float64, status int) leg { return leg{after: of(times), status: status} }
func broken(times float64) leg          { return leg{after: of(times), err: errReset} }
func of(times float64) time.Duration    { return time.Duration(times * float64(usual)) }

// deaf is a leg that doesn't notice the end of its attempt.
func deaf(l leg) leg { l.deaf = true; return l }

var (
	errReset = errors.New("reset")
	hangs    = leg{after: never, status: 200}
)

// The first good answer wins, whichever attempt it comes from, and the other attempt is
// canceled at that instant. A failure never beats a running attempt. Nobody is asked to
// judge an attempt that has lost: Classify doesn't run after RoundTrip has returned.
//
//retrip:promise P21
func TestHedge_Winner(t *testing.T) {
	for name, tt := range map[string]struct {
		legs   []leg
		status int
		took   float64 // until RoundTrip returns, in the usual time
		result string
	}{
		"second is faster":            {[]leg{hangs, good(1)}, 200, 2, "won"},
		"first is faster":             {[]leg{good(2), hangs}, 200, 2, "lost"},
		"503 at once":                 {[]leg{good(10), bad(0, 503)}, 200, 10, "failed"},
		"429 at once":                 {[]leg{good(10), bad(0, 429)}, 200, 10, "failed"},
		"error at once":               {[]leg{good(10), broken(0)}, 200, 10, "failed"},
		"503 late":                    {[]leg{bad(2, 503), good(10)}, 200, 11, "won"},
		"error late":                  {[]leg{broken(2), good(10)}, 200, 11, "won"},
		"404 is an answer":            {[]leg{hangs, bad(1, 404)}, 404, 2, "won"},
		"504 of one, 404 of other":    {[]leg{bad(3, 404), bad(0, 504)}, 404, 3, "failed"},
		"the first ignores its end":   {[]leg{deaf(good(5)), good(1)}, 200, 5, "won"},
		"the second ignores its end":  {[]leg{good(2), deaf(good(5))}, 200, 2, "lost"},
		"the first fails after that":  {[]leg{deaf(broken(5)), good(1)}, 200, 5, "won"},
		"the second fails after that": {[]leg{good(3), deaf(broken(5))}, 200, 3, "lost"},
		"both at the same instant":    {[]leg{good(2), good(1)}, 200, 2, ""},
		"the first at its delay":      {[]leg{good(1)}, 200, 1, ""},
		"the first before its delay":  {[]leg{good(.5)}, 200, .5, "none"},
		"the first fails before that": {[]leg{bad(.5, 503), good(0)}, 200, .5, "none"},
		"the second exits":            {[]leg{good(3), {exits: true}}, 200, 3, "failed"},
		"a retry, however late":       {[]leg{bad(0, 503), good(20), good(0)}, 200, 20, "none"},
	} {
		for _, judge := range []bool{false, true} {
			bubble(t, fmt.Sprint(name, " judged ", judge), func(t *testing.T) {
				policy := retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}
				var judged atomic.Int32
				if judge {
					policy.Classify = func(*http.Request, *http.Response, error) retrip.Verdict { judged.Add(1); return retrip.ByRule }
				}
				tr, base := hedging(t, policy)
				base.legs = tt.legs
				began := time.Now()
				req := get(t.Context())
				resp := do(t, tr, req)
				took, asked := time.Since(began), judged.Load()
				assert.Equal(t, tt.status, resp.StatusCode)
				// The delay moves while nothing happens.
				assert.InDelta(t, of(tt.took).Seconds(), took.Seconds(), (usual / 3).Seconds())
				assert.Same(t, req, resp.Request)
				play.Finish(t, resp) // the winner's body lives
				returned := began.Add(took)
				synctest.Wait()
				for i, l := range tt.legs {
					if i < len(base.ended) && !l.deaf {
						assert.LessOrEqual(t, base.ended[i].Sub(returned), time.Duration(0), "attempt %d has ended", i)
					}
				}
				time.Sleep(10 * usual)
				assert.Zero(t, base.open.Load())
				assert.Equal(t, asked, judged.Load())
				m := play.Gather(t, tr.Metrics)["default"]
				if tt.result == "none" {
					assert.Zero(t, m["hedges_total"])
				} else if tt.result != "" {
					assert.EqualValues(t, 1, m["hedges_total "+tt.result])
					assert.EqualValues(t, 1, m["hedges_total"])
				}
			})
		}
	}
}

// Two failures are one: for the budget, for the backoff and for the caller, who gets a
// response rather than an error. Whatever a server said about retries holds, whichever
// attempt it was said to.
//
//retrip:promise P21 P3 P9
func TestHedge_BothFail(t *testing.T) {
	one, two := leg{after: of(2), err: errors.New("one")}, leg{after: of(2), err: errors.New("two")}
	late, quick := leg{after: of(4), err: one.err}, leg{err: two.err}
	later := func(l leg) leg { l.header = http.Header{"Retry-After": {"7"}}; return l }
	for name, tt := range map[string]struct {
		legs   []leg
		status int           // that RoundTrip returns if these were all attempts; 0: an error with both
		wait   time.Duration // before a retry; 0: it is forbidden
		reason retrip.Reason // of the retry
	}{
		"503 and 502":            {[]leg{bad(2, 503), bad(2, 502)}, 503, time.Second, retrip.ReasonServerError},
		"the first at last":      {[]leg{bad(4, 503), bad(0, 502)}, 503, time.Second, retrip.ReasonServerError},
		"503 and an error":       {[]leg{bad(2, 503), two}, 503, time.Second, retrip.ReasonServerError},
		"an error and 503":       {[]leg{one, bad(2, 503)}, 503, time.Second, retrip.ReasonServerError},
		"errors":                 {[]leg{one, two}, 0, time.Second, retrip.ReasonError},
		"the second error first": {[]leg{late, quick}, 0, time.Second, retrip.ReasonError},
		"the first says when":    {[]leg{later(bad(2, 503)), two}, 503, 7 * time.Second, retrip.ReasonServerError},
		"the second says when":   {[]leg{bad(2, 503), later(bad(2, 429))}, 503, 7 * time.Second, retrip.ReasonServerError},
		"the second forbids":     {[]leg{bad(2, 503), {status: 500, header: http.Header{"X-Should-Retry": {"false"}}}}, 503, 0, ""},
	} {
		for _, attempts := range []int{2, 4} {
			bubble(t, fmt.Sprintf("%s, %d attempts", name, attempts), func(t *testing.T) {
				policy := retrip.Policy{MaxAttempts: attempts, RetryHeader: "Retry-Attempt", Backoff: retrip.Backoff{Base: time.Second, Jitter: retrip.NoJitter}}
				tr, base := hedging(t, policy)
				var events []retrip.Event
				note := func(e retrip.Event) { events = append(events, e) }
				req := get(retrip.WithTrace(t.Context(), &retrip.Trace{Attempt: note, Hedge: note, Retry: note, GiveUp: note, Done: note}))
				base.legs = tt.legs
				resp, err := tr.RoundTrip(req)
				m := counts(t, tr.Metrics)
				assert.EqualValues(t, 1, m["hedges_total failed"])
				var numbers []string
				for _, r := range base.seen {
					numbers = append(numbers, r.Header.Get("Retry-Attempt"))
				}
				if attempts == 2 || tt.wait == 0 {
					assert.Equal(t, []string{"", "2"}, numbers)
					assert.EqualValues(t, 1, m["requests_total gave_up"])
					assert.Len(t, events, 4, "Attempt, Hedge, GiveUp, Done")
					assert.EqualValues(t, "failed", events[1].Reason)
					if tt.status == 0 {
						require.Error(t, err)
						e := play.AsError(t, err)
						assert.Equal(t, 2, e.Attempts)
						for _, leg := range tt.legs {
							assert.ErrorIs(t, err, leg.err)
						}
						return
					}
					require.NoError(t, err)
					assert.Equal(t, tt.status, resp.StatusCode)
					assert.EqualValues(t, 1, base.open.Load(), "only the caller's response is open")
					require.NoError(t, resp.Body.Close())
					return
				}
				require.NoError(t, err)
				assert.Equal(t, 200, resp.StatusCode)
				assert.EqualValues(t, 1, base.open.Load())
				require.NoError(t, resp.Body.Close())
				assert.Equal(t, []string{"", "2", "3"}, numbers, "the hedge is the second attempt")
				assert.Equal(t, tt.reason, events[2].Reason)
				assert.GreaterOrEqual(t, events[2].Wait, tt.wait, "as after one failure")
				assert.Less(t, events[2].Wait, 2*tt.wait)
				assert.EqualValues(t, 1, m["requests_total recovered"])
				assert.EqualValues(t, 1, m["retries_total"])
				state := play.Must(tr.HostState("example.com:80"))
				assert.EqualValues(t, 5, state.Tokens, "the retry succeeded")
			})
		}
	}
}

// Only a GET, HEAD or OPTIONS without a body gets a hedge, and only its first attempt: no
// key promises that two copies may run at once.
//
//retrip:promise P21
func TestHedge_Who(t *testing.T) {
	reader := func() io.Reader { return struct{ io.Reader }{strings.NewReader("body")} }
	with := func(p retrip.Policy) func(*http.Request) *http.Request {
		return func(r *http.Request) *http.Request { return r.WithContext(retrip.WithPolicy(r.Context(), p)) }
	}
	header := func(name string) func(*http.Request) *http.Request {
		return func(r *http.Request) *http.Request { r.Header.Set(name, "x"); return r }
	}
	for _, tt := range []struct {
		method string
		body   io.Reader
		change func(*http.Request) *http.Request
		policy retrip.Policy
		want   bool
	}{
		{method: "GET", want: true}, {method: "HEAD", want: true}, {method: "OPTIONS", want: true}, {method: "", want: true},
		{method: "GET", body: http.NoBody, want: true},
		{method: "GET", body: strings.NewReader("body")}, {method: "OPTIONS", body: reader()},
		{method: "GET", change: header("Idempotency-Key"), want: true},
		{method: "GET", change: header("Upgrade")},
		{method: "GET", policy: retrip.Policy{MaxAttempts: 1}},
		{method: "GET", change: with(retrip.Policy{MaxAttempts: 1})},
		{method: "GET", change: with(retrip.Policy{Hedge: retrip.Off})},
		{method: "GET", policy: retrip.Policy{Idempotent: func(*http.Request) bool { return false }}},
		{method: "GET", policy: retrip.Policy{Idempotent: func(*http.Request) bool { return false }, IdempotencyKey: retrip.On}},
		{method: "QUERY"}, {method: "QUERY", body: strings.NewReader("body")},
		{method: "POST"}, {method: "POST", body: strings.NewReader("body")}, {method: "PATCH"}, {method: "TRACE"},
		{method: "PUT", body: strings.NewReader("body")}, {method: "DELETE"},
		{method: "POST", change: header("Idempotency-Key")},
		{method: "POST", policy: retrip.Policy{IdempotencyKey: retrip.On}},
		{method: "POST", policy: retrip.Policy{Idempotent: func(*http.Request) bool { return true }}},
		{method: "POST", policy: retrip.Policy{IdempotentMethods: []string{"POST"}}},
	} {
		bubble(t, fmt.Sprint(tt.method, " ", tt.body != nil), func(t *testing.T) {
			tr := &retrip.Transport{Base: &hedgeBase{}, Policy: retrip.Policy{Hedge: 0.2}, Metrics: &retrip.Metrics{}}
			warm(t, tr)
			base := tr.Base.(*hedgeBase)
			base.seen = nil
			base.legs = []leg{{after: 10 * usual, status: 200}, {after: usual, status: 200}}
			p := tt.policy
			if p.Hedge == 0 {
				p.Hedge = 0.2
			}
			require.NoError(t, tr.SetPolicies(p, nil))
			req := play.Must(http.NewRequestWithContext(t.Context(), tt.method, "http://example.com/", tt.body))
			if tt.change != nil {
				req = tt.change(req)
			}
			drop(t, tr, req)
			if !tt.want {
				assert.Len(t, base.seen, 1)
				return
			}
			require.Len(t, base.seen, 2)
			assert.Equal(t, base.seen[0].Header, base.seen[1].Header)
		})
	}
}

// Whatever the state of the host forbids is a skip with its reason, and sends nothing.
//
//retrip:promise P21
func TestHedge_Skips(t *testing.T) {
	fail := func(t *testing.T, tr *retrip.Transport, base *hedgeBase, n, status int, after ...string) {
		for range n {
			base.legs = append(base.legs, leg{status: status, header: http.Header{"Retry-After": after}})
		}
		for i := 0; i < n && len(base.legs) > 0; i++ {
			try(tr, get(t.Context()))
		}
		base.legs = nil
	}
	now := retrip.Backoff{Base: retrip.Off, ThrottleBase: retrip.Off}
	for name, tt := range map[string]struct {
		policy  retrip.Policy
		prepare func(*testing.T, *retrip.Transport, *hedgeBase)
	}{
		"tokens":   {retrip.Policy{Backoff: now, MaxAttempts: 2, Budget: 1}, func(t *testing.T, tr *retrip.Transport, base *hedgeBase) { fail(t, tr, base, 2, 503) }},
		"paused":   {retrip.Policy{MaxAttempts: 2, MaxWait: 3 * time.Second, Deadline: time.Second}, func(t *testing.T, tr *retrip.Transport, base *hedgeBase) { fail(t, tr, base, 1, 503, "3") }},
		"gate":     {retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, Budget: retrip.Off}, func(t *testing.T, tr *retrip.Transport, base *hedgeBase) { fail(t, tr, base, 1, 429, "1") }},
		"low_rate": {retrip.Policy{}, func(*testing.T, *retrip.Transport, *hedgeBase) { time.Sleep(time.Minute) }},
		"spent": {retrip.Policy{}, func(t *testing.T, tr *retrip.Transport, base *hedgeBase) {
			for range 2 {
				base.legs = []leg{hangs, good(0)}
				drop(t, tr, get(t.Context()))
			}
		}},
		"breaker": {retrip.Policy{Breaker: retrip.Breaker{Ratio: 0.1, MinVolume: 2, OpenFor: time.Second}, Budget: retrip.Off, Backoff: now}, func(t *testing.T, tr *retrip.Transport, base *hedgeBase) {
			fail(t, tr, base, 4, 503)
			time.Sleep(1500 * time.Millisecond)
		}},
	} {
		bubble(t, name, func(t *testing.T) {
			tr, base := hedging(t, tt.policy)
			tt.prepare(t, tr, base)
			before := play.Gather(t, tr.Metrics)["default"]
			base.seen = nil
			base.legs = []leg{{after: 20 * usual, status: 200}, {status: 200}}
			drop(t, tr, get(t.Context()))
			assert.Len(t, base.seen, 1)
			after := counts(t, tr.Metrics)
			assert.EqualValues(t, 1, after["hedges_skipped_total "+name]-before["hedges_skipped_total "+name], "%v", after)
		})
	}
}

// The caller may go at any instant: then RoundTrip returns at once, with its error or with
// a response that came before, and both attempts end.
//
//retrip:promise P21 P10 P13
func TestHedge_Cancellation(t *testing.T) {
	for name, legs := range map[string][]leg{
		"the second wins":    {hangs, good(2)},
		"the first wins":     {good(3), hangs},
		"the first fails":    {bad(2, 503), good(2)},
		"the first errs":     {broken(2), good(2)},
		"the second fails":   {good(3), bad(1, 503)},
		"both fail":          {bad(2, 503), bad(2, 503), good(1)},
		"both hang":          {hangs, hangs},
		"both at one moment": {good(2), good(1)},
	} {
		for at := time.Duration(0); at <= 5*usual; at += usual / 4 {
			for _, cause := range []error{nil, errors.New("cause")} {
				synctest.Test(t, func(t *testing.T) {
					tr, base := hedging(t, retrip.Policy{Backoff: retrip.Backoff{Base: usual, Jitter: retrip.NoJitter}})
					ctx, cancel := context.WithCancelCause(t.Context())
					base.legs = legs
					began := time.Now()
					time.AfterFunc(at, func() { cancel(cause) })
					if at == 0 {
						cancel(cause)
					}
					resp, err := tr.RoundTrip(get(ctx))
					took := time.Since(began)
					assert.LessOrEqual(t, took, max(at, 5*usual), name)
					if err != nil {
						assert.Equal(t, at, took, "%s: it ends with the caller", name)
						if at > 0 || cause == nil {
							assert.ErrorIs(t, err, context.Canceled, name)
						}
						if cause != nil {
							assert.ErrorIs(t, err, cause, name)
						}
					} else {
						assert.NoError(t, resp.Body.Close())
					}
					cancel(nil)
					synctest.Wait()
					assert.Zero(t, base.open.Load(), "%s, %v: a body is open", name, at)
					assert.Zero(t, base.running(), "%s, %v: an attempt goes on", name, at)
					counts(t, tr.Metrics)
				})
			}
		}
	}
}

// A panic of either attempt, of its judgement or of a hook is a panic of RoundTrip, and
// leaves nothing behind. A panic after the other attempt has won is lost with its attempt.
//
//retrip:promise P21 P5
func TestHedge_Panics(t *testing.T) {
	panics := func(times float64) leg { return leg{after: of(times), panics: "boom"} }
	judge := func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
		if resp != nil && resp.StatusCode == 201 {
			panic("boom")
		}
		return retrip.ByRule
	}
	for name, tt := range map[string]struct {
		legs  []leg
		trace *retrip.Trace
		want  any
	}{
		"first":                  {[]leg{panics(2), hangs}, nil, "boom"},
		"second":                 {[]leg{hangs, panics(1)}, nil, "boom"},
		"both":                   {[]leg{panics(2), panics(1)}, nil, "boom"},
		"first, second answers":  {[]leg{deaf(panics(4)), good(1)}, nil, "boom"},
		"first, second failed":   {[]leg{panics(4), bad(1, 503)}, nil, "boom"},
		"second, first failed":   {[]leg{bad(2, 503), panics(3)}, nil, "boom"},
		"second, too late":       {[]leg{good(2), deaf(panics(3))}, nil, nil},
		"judgement of the first": {[]leg{bad(2, 201), hangs}, nil, "boom"},
		"of the second":          {[]leg{hangs, bad(1, 201)}, nil, "boom"},
		"hook":                   {[]leg{hangs, good(1)}, &retrip.Trace{Hedge: func(retrip.Event) { panic("boom") }}, "boom"},
	} {
		bubble(t, name, func(t *testing.T) {
			tr, base := hedging(t, retrip.Policy{Classify: judge})
			base.legs = tt.legs
			func() {
				defer func() { assert.Equal(t, tt.want, recover()) }()
				drop(t, tr, get(retrip.WithTrace(t.Context(), tt.trace)))
			}()
			time.Sleep(10 * usual)
			assert.Zero(t, base.open.Load())
			assert.Zero(t, base.running(), "an attempt goes on")
			m := counts(t, tr.Metrics)
			assert.EqualValues(t, 1, m["hedges_total"])
			// The Transport still works.
			warm(t, tr)
		})
	}
}
