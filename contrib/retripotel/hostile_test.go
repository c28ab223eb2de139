// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retripotel_test

import (
	"bufio"
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
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/contrib/retripotel"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// unended counts the spans that have begun and not ended.
type unended struct {
	mu    sync.Mutex
	spans map[trace.SpanID]string
}

func (u *unended) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.spans[s.SpanContext().SpanID()] = s.Name()
}

func (u *unended) OnEnd(s sdktrace.ReadOnlySpan) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.spans, s.SpanContext().SpanID())
}

func (u *unended) Shutdown(context.Context) error   { return nil }
func (u *unended) ForceFlush(context.Context) error { return nil }

func (u *unended) names() (names []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, name := range u.spans {
		names = append(names, name)
	}
	return names
}

// TestNew_SpansEndOnEveryPath ends requests in every possible way.
func TestNew_SpansEndOnEveryPath(t *testing.T) {
	wait := retrip.Policy{Backoff: retrip.Backoff{Base: time.Minute, Jitter: retrip.NoJitter}}
	for name, tt := range map[string]struct {
		policy retrip.Policy
		base   http.RoundTripper // nil means the server
		serve  http.HandlerFunc
		cancel time.Duration // the caller cancels after this time
		left   []string      // spans without an end
	}{
		"it succeeds":                 {serve: script(200)},
		"attempts are used up":        {serve: script(503)},
		"canceled in a wait":          {policy: wait, serve: script(503), cancel: 10 * time.Second},
		"canceled in an attempt":      {serve: hangs, cancel: 10 * time.Second},
		"canceled while a body comes": {serve: trickles, cancel: 10 * time.Second},
		"an attempt times out":        {policy: retrip.Policy{AttemptTimeout: time.Second}, serve: hangs},
		"a deadline":                  {policy: retrip.Policy{Deadline: 2 * time.Second}, serve: hangs},
		"a base that panics":          {base: panicking, serve: script(200)},
		"a base that answers nothing": {base: nothing, serve: script(200)},
		"a policy that is wrong":      {policy: retrip.Policy{MaxAttempts: -2}, serve: script(200)},
		"a breaker that is open":      {policy: retrip.Policy{Breaker: retrip.Breaker{MinVolume: 1, OpenFor: time.Hour}}, serve: script(503)},
		"a connection that breaks":    {serve: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			w := newWorld(t, tt.serve)
			spans := &unended{spans: map[trace.SpanID]string{}}
			w.config.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
			base := tt.base
			if base == nil {
				base = w.Transport()
			}
			client := &http.Client{Transport: retripotel.New(&retrip.Transport{Base: base, Policy: tt.policy}, w.config)}
			for range 3 {
				ctx, cancel := context.WithCancel(t.Context())
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, cancel)
				}
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL, nil)
				require.NoError(t, err)
				func() {
					defer func() { _ = recover() }()
					if resp, err := client.Do(req); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				}()
				cancel()
			}
			assert.Empty(t, spans.names())
		})
	}
}

func hangs(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func trickles(w http.ResponseWriter, r *http.Request) {
	io.WriteString(w, "begins")
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

var nothing = testenv.RoundTripper(func(*http.Request) (*http.Response, error) { return nil, nil })

// TestNew_ABodyThatIsNeverClosed: the span of the attempt stays open as long as
// the body, and the span of the request doesn't.
func TestNew_ABodyThatIsNeverClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, script(503, 200))
		spans := &unended{spans: map[trace.SpanID]string{}}
		w.config.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
		req := play.MustRequest(t, http.MethodGet, w.URL, nil)
		resp, err := w.client(retrip.Policy{}).Do(req)
		require.NoError(t, err)
		assert.Equal(t, []string{"HTTP GET"}, spans.names())
		require.NoError(t, resp.Body.Close())
		assert.Empty(t, spans.names())
	})
}

// TestNew_APanicIsTold: if the base panics, the span of the attempt has an
// error.
func TestNew_APanicIsTold(t *testing.T) {
	w := newWorld(t, script(200))
	transport := retripotel.New(&retrip.Transport{Base: panicking}, w.config)
	req := play.MustRequest(t, http.MethodGet, w.URL, nil)
	assert.PanicsWithValue(t, "base", func() { transport.RoundTrip(req) })
	attempts, requests := w.split()
	require.Len(t, attempts, 1)
	require.Len(t, requests, 1)
	assert.Equal(t, codes.Error, attempts[0].Status.Code)
	assert.Equal(t, codes.Error, requests[0].Status.Code)
}

// TestNew_AnUpgradeIsHandedOn: the body of a 101 can be written to.
func TestNew_AnUpgradeIsHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Upgrade", "echo")
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(http.StatusSwitchingProtocols)
			conn, buffered, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			line, _ := buffered.ReadString('\n')
			io.WriteString(conn, line)
		})
		req := play.MustRequest(t, http.MethodGet, w.URL, nil)
		req.Header.Set("Upgrade", "echo")
		req.Header.Set("Connection", "Upgrade")
		resp, err := w.client(retrip.Policy{}).Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		conn, ok := resp.Body.(io.ReadWriteCloser)
		require.True(t, ok, "%T", resp.Body)
		_, err = io.WriteString(conn, "hello\n")
		require.NoError(t, err)
		line, err := bufio.NewReader(conn).ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, "hello\n", line)
	})
}

// TestNew_ContextsOfResponses: requests with the context of a response, such as
// the next page, count once each, even if they run at once.
func TestNew_ContextsOfResponses(t *testing.T) {
	w := newWorld(t, script(200))
	client := &http.Client{Transport: retripotel.New(&retrip.Transport{
		Base:   firstFails{w.Transport()},
		Policy: retrip.Policy{Backoff: retrip.Backoff{Base: time.Millisecond}, Budget: retrip.Off, RetryHeader: "Retry-Attempt"},
	}, w.config)}
	first := do(t, client, http.MethodGet, w.URL, "")
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

// firstFails fails the first attempt of each request.
type firstFails struct{ base http.RoundTripper }

func (f firstFails) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Header.Get("Retry-Attempt") == "" {
		return nil, errors.New("connection lost")
	}
	return f.base.RoundTrip(req)
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
		do(t, w.client(retrip.Policy{}), http.MethodGet, w.URL, "")
		attempts, requests := w.split()
		assert.Len(t, attempts, 2)
		assert.Len(t, requests, 1)
		assert.NotEmpty(t, w.headers[1].Get("Traceparent"))
		_, n := sum(t, w.metrics(t)["retrip.request.duration"], attribute.Bool("retrip.retried", true))
		assert.EqualValues(t, 1, n)
	})
}
