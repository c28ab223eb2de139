// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// The base, hooks, callbacks and bodies panic at random, callers go, and hooks
// replace the policies. Whatever meets whatever, all bodies are closed, no slot
// of a gate stays taken, the metrics add up, and every host heals.
//
//retrip:promise P5
func TestTransport_PanicStorm(t *testing.T) {
	for seed := range uint64(testenv.Size(40, 1500)) {
		synctest.Test(t, func(t *testing.T) {
			w := &panicStorm{draws: rand.New(rand.NewPCG(seed, 77)), metrics: retrip.NewMetrics()}
			w.play(t)
		})
		require.False(t, t.Failed(), "seed %d", seed)
	}
}

type panicStorm struct {
	transport *retrip.Transport
	metrics   *retrip.Metrics

	mu     sync.Mutex // guards what follows
	draws  *rand.Rand
	bodies []*stormBody
	calm   bool
}

func (w *panicStorm) draw(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.draws.IntN(n)
}

func (w *panicStorm) odds(percent int) bool { return w.draw(100) < percent }

func (w *panicStorm) millis(n int) time.Duration { return time.Duration(w.draw(n)) * time.Millisecond }

func (w *panicStorm) mayPanic() {
	w.mu.Lock()
	calm := w.calm
	w.mu.Unlock()
	if !calm && w.odds(3) {
		panic("boom")
	}
}

// stormBody is a body whose first Close may panic.
type stormBody struct {
	io.Reader
	w      *panicStorm
	panics bool
	closed bool
}

func (b *stormBody) Close() error {
	b.w.mu.Lock()
	again := b.closed
	b.closed = true
	b.w.mu.Unlock()
	if b.panics && !again {
		panic("boom")
	}
	return nil
}

func (w *panicStorm) body(r io.Reader, panics bool) *stormBody {
	b := &stormBody{Reader: r, w: w, panics: panics}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bodies = append(w.bodies, b)
	return b
}

// RoundTrip is the base.
func (w *panicStorm) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		if w.odds(80) {
			_, _ = io.ReadAll(req.Body)
		}
		if w.odds(95) {
			defer req.Body.Close()
		} else {
			time.AfterFunc(time.Second, func() { req.Body.Close() })
		}
	}
	w.mu.Lock()
	calm := w.calm
	w.mu.Unlock()
	if calm {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
	}
	w.mayPanic()
	timer := time.NewTimer(w.millis(300))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-req.Context().Done():
		return nil, context.Cause(req.Context())
	case <-req.Cancel: //lint:ignore SA1019 net/http obeys it
		return nil, errors.New("net/http: request canceled")
	}
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, ContentLength: -1, Request: req}
	if w.odds(30) {
		resp.Header.Set("Retry-After", []string{"0", "1", "2", "100"}[w.draw(4)])
	}
	content := io.Reader(strings.NewReader("content"))
	var err error
	switch n := w.draw(20); {
	case n < 8:
	case n < 12:
		resp.StatusCode = http.StatusServiceUnavailable
	case n < 16:
		resp.StatusCode = http.StatusTooManyRequests
	case n < 17:
		content = io.MultiReader(strings.NewReader("con"), iotest.ErrReader(io.ErrUnexpectedEOF))
	case n < 18:
		err = io.EOF // together with a response
	default:
		return nil, io.ErrUnexpectedEOF
	}
	resp.Body = w.body(content, w.odds(5))
	return resp, err
}

func (w *panicStorm) policy() retrip.Policy {
	p := retrip.Policy{
		MaxAttempts: 1 + w.draw(4),
		Budget:      []retrip.Budget{{}, {Size: 1}, {Shared: 3}, retrip.Unlimited}[w.draw(4)],
		MaxWait:     5 * time.Second,
	}
	if w.odds(50) {
		p.AttemptTimeout = 200 * time.Millisecond
	}
	if w.odds(30) {
		p.Deadline = time.Second
	}
	if w.odds(50) {
		p.Breaker = retrip.Breaker{Ratio: 0.5, MinVolume: 4, OpenFor: time.Second}
	}
	if w.odds(60) {
		p.Gate.Enabled = retrip.On
	}
	if w.odds(30) {
		p.Gate.Key = func(req *http.Request) string { w.mayPanic(); return req.URL.Path }
	}
	if w.odds(30) {
		p.Classify = func(*http.Request, *http.Response, error) retrip.Verdict { w.mayPanic(); return retrip.ByRule }
	}
	if w.odds(30) {
		p.Idempotent = func(*http.Request) bool { w.mayPanic(); return true }
	}
	if w.odds(20) {
		p.WholeBody = 100
	}
	return p
}

func (w *panicStorm) request(t *testing.T) (req *http.Request, cancel context.CancelFunc) {
	ctx := t.Context()
	switch w.draw(3) {
	case 0:
		ctx, cancel = context.WithCancel(ctx)
		time.AfterFunc(w.millis(1500), cancel)
	case 1:
		ctx, cancel = context.WithTimeout(ctx, w.millis(3000))
	default:
		ctx, cancel = context.WithCancel(ctx)
	}
	switch w.draw(5) {
	case 0:
		ctx = retrip.WithPolicy(ctx, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.Off}, Breaker: retrip.Breaker{Ratio: retrip.Off}})
	case 1:
		ctx = retrip.WithPolicy(ctx, retrip.Policy{Budget: retrip.Unlimited})
	}
	method := []string{http.MethodGet, http.MethodPut, http.MethodPost}[w.draw(3)]
	req, err := http.NewRequestWithContext(ctx, method, "http://a.test/"+string(rune('a'+w.draw(3))), nil)
	assert.NoError(t, err)
	if method != http.MethodGet {
		// A panic in Close of a request's body may come on any goroutine.
		body := func() io.ReadCloser { return w.body(strings.NewReader("body"), false) }
		req.Body = body()
		if w.odds(50) {
			req.GetBody = func() (io.ReadCloser, error) { return body(), nil }
		}
	}
	if w.odds(10) {
		gone := make(chan struct{})
		req.Cancel = gone //lint:ignore SA1019 net/http obeys it
		time.AfterFunc(w.millis(1500), func() { close(gone) })
	}
	return req, cancel
}

// call makes a request and survives a panic.
func (w *panicStorm) call(t *testing.T) {
	defer func() {
		if p := recover(); p != nil {
			assert.Equal(t, "boom", p)
		}
	}()
	req, cancel := w.request(t)
	defer cancel()
	resp, err := w.transport.RoundTrip(req)
	assert.NotEqual(t, resp == nil, err == nil, "a response or an error")
	if resp != nil {
		defer resp.Body.Close() // even if a Read panics
		_, _ = io.ReadAll(resp.Body)
	}
}

func (w *panicStorm) play(t *testing.T) {
	w.transport = &retrip.Transport{Base: w, Policy: w.policy(), Metrics: w.metrics}
	hook := func(retrip.Event) {
		w.mayPanic()
		if w.odds(5) {
			assert.NoError(t, w.transport.SetPolicies(w.policy(), nil))
			w.transport.HostStates()
		}
	}
	if w.odds(70) {
		w.transport.Trace = &retrip.Trace{Attempt: hook, Retry: hook, GiveUp: hook, Done: hook, Host: func(retrip.HostState) { hook(retrip.Event{}) }}
	}
	if w.odds(30) {
		w.transport.Fleet = retrip.NewFleet(nil)
	}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 40 {
				w.call(t)
				time.Sleep(w.millis(100))
			}
		})
	}
	callers.Wait()
	time.Sleep(3 * time.Second)
	synctest.Wait()
	for _, s := range w.transport.HostStates() {
		assert.Zero(t, s.Waiting)
	}
	for policy, s := range gather(t, w.metrics) {
		checkIdentities(t, policy, s)
	}
	for _, b := range w.bodies {
		assert.True(t, b.closed, "%v is open", b.Reader)
	}
	time.Sleep(2 * time.Hour)
	assert.Empty(t, w.transport.HostStates())
	w.calm = true
	resp, err := w.transport.RoundTrip(play.Request(t, http.MethodGet, nil))
	if assert.NoError(t, err) {
		play.Finish(t, resp)
	}
}
