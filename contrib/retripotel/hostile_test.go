// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retripotel_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/contrib/retripotel"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// unended returns the names of the spans that have begun and not ended.
func (w *world) unended() (names []string) {
	for _, s := range w.spans.Started() {
		if s.EndTime().IsZero() {
			names = append(names, s.Name())
		}
	}
	return names
}

var panicking testenv.RoundTripper = func(*http.Request) (*http.Response, error) { panic("base") }

// TestNew_SpansEndOnEveryPath ends requests in every possible way.
func TestNew_SpansEndOnEveryPath(t *testing.T) {
	wait := retrip.Policy{Backoff: retrip.Backoff{Base: time.Minute, Jitter: retrip.NoJitter}}
	for name, tt := range map[string]struct {
		policy retrip.Policy
		base   http.RoundTripper // nil means the server
		serve  http.HandlerFunc
		cancel time.Duration // the caller cancels after this time
	}{
		"it succeeds":                 {serve: script(200)},
		"attempts are used up":        {serve: script(503)},
		"canceled in a wait":          {policy: wait, serve: script(503), cancel: 10 * time.Second},
		"canceled in an attempt":      {serve: hangs, cancel: 10 * time.Second},
		"canceled while a body comes": {serve: trickles, cancel: 10 * time.Second},
		"an attempt times out":        {policy: retrip.Policy{AttemptTimeout: time.Second}, serve: hangs},
		"a deadline":                  {policy: retrip.Policy{Deadline: 2 * time.Second}, serve: hangs},
		"a base that panics":          {base: panicking, serve: script(200)},
		"a base that answers nothing": {base: testenv.RoundTripper(play.Err(nil)), serve: script(200)},
		"a policy that is wrong":      {policy: retrip.Policy{MaxAttempts: -2}, serve: script(200)},
		"a breaker that is open":      {policy: retrip.Policy{Breaker: retrip.Breaker{MinVolume: 1, OpenFor: time.Hour}}, serve: script(503)},
		"a connection that breaks":    {serve: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			w := newWorld(t, tt.serve)
			client := w.client(tt.policy)
			if tt.base != nil {
				client = w.over(tt.base, tt.policy)
			}
			for range 3 {
				ctx, cancel := context.WithCancel(t.Context())
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, cancel)
				}
				func() {
					defer func() { _ = recover() }()
					if resp, err := client.Do(play.MustRequest(t, http.MethodGet, w.URL, nil).WithContext(ctx)); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				}()
				cancel()
			}
			assert.NotEmpty(t, w.spans.Started())
			assert.Empty(t, w.unended())
		})
	}
}

func hangs(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func trickles(w http.ResponseWriter, r *http.Request) {
	io.WriteString(w, "begins")
	play.Flush(w)
	<-r.Context().Done()
}

// TestNew_ABodyThatIsNeverClosed: the span of the attempt stays open as long as
// the body, and the span of the request doesn't.
func TestNew_ABodyThatIsNeverClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, script(503, 200))
		resp, err := w.client(retrip.Policy{}).Get(w.URL)
		require.NoError(t, err)
		assert.Equal(t, []string{"HTTP GET"}, w.unended())
		require.NoError(t, resp.Body.Close())
		assert.Empty(t, w.unended())
	})
}

// TestNew_ContextsOfResponses: requests with the context of a response, such as
// the next page, count once each, even if they run at once.
func TestNew_ContextsOfResponses(t *testing.T) {
	w := newWorld(t, script(200))
	server := w.Transport()
	client := w.over(testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
		if req.Header.Get("Retry-Attempt") == "" {
			return nil, errors.New("connection lost")
		}
		return server.RoundTrip(req)
	}), retrip.Policy{Backoff: retrip.Backoff{Base: time.Millisecond}, Budget: retrip.Off, RetryHeader: "Retry-Attempt"})
	first := w.do(t, client, http.MethodGet, "", nil)
	const pages = 20
	var all sync.WaitGroup
	for range pages {
		all.Go(func() {
			resp, err := client.Do(play.MustRequest(t, http.MethodGet, w.URL, nil).WithContext(first.Request.Context()))
			if assert.NoError(t, err) {
				play.Finish(t, resp)
			}
		})
	}
	all.Wait()
	metrics := w.metrics(t)
	_, n := sum(t, metrics["retrip.request.duration"])
	assert.EqualValues(t, 1+pages, n)
	_, n = sum(t, metrics["retrip.retry.delay"])
	assert.EqualValues(t, 1+pages, n, "each retry once")
}

// TestNew_Globals: a Config without providers uses those of OpenTelemetry.
func TestNew_Globals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, script(503, 200))
		tracer, meter, propagator := otel.GetTracerProvider(), otel.GetMeterProvider(), otel.GetTextMapPropagator()
		otel.SetTracerProvider(w.config.TracerProvider)
		otel.SetMeterProvider(w.config.MeterProvider)
		otel.SetTextMapPropagator(w.config.Propagator)
		defer func() {
			otel.SetTracerProvider(tracer)
			otel.SetMeterProvider(meter)
			otel.SetTextMapPropagator(propagator)
		}()
		w.config = retripotel.Config{}
		w.do(t, w.client(retrip.Policy{}), http.MethodGet, "", nil)
		attempts, requests := w.split()
		assert.Len(t, attempts, 2)
		assert.Len(t, requests, 1)
		assert.NotEmpty(t, w.headers[1].Get("Traceparent"))
		_, n := sum(t, w.metrics(t)["retrip.request.duration"], attribute.Bool("retrip.retried", true))
		assert.EqualValues(t, 1, n)
	})
}
