// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retripotel_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/contrib/retripotel"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// world is a server in memory, with the telemetry of its clients.
type world struct {
	*memhttp.Server
	spans  *tracetest.SpanRecorder
	reader *sdkmetric.ManualReader
	config retripotel.Config

	mu      sync.Mutex
	headers []http.Header
	bodies  []string
}

func newWorld(t *testing.T, serve http.HandlerFunc) *world {
	w := &world{spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	w.Server = memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.mu.Lock()
		w.headers = append(w.headers, r.Header)
		w.bodies = append(w.bodies, string(body))
		w.mu.Unlock()
		serve(rw, r)
	}))
	w.config = retripotel.Config{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(w.spans)),
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(w.reader)),
		Propagator:     propagation.TraceContext{},
	}
	return w
}

// script serves statuses one after another, and repeats the last one.
func script(statuses ...int) http.HandlerFunc {
	var mu sync.Mutex
	return func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.WriteHeader(statuses[0])
		statuses = statuses[min(1, len(statuses)-1):]
	}
}

func (w *world) client(policy retrip.Policy) *http.Client { return w.over(w.Transport(), policy) }

func (w *world) over(base http.RoundTripper, policy retrip.Policy) *http.Client {
	return &http.Client{Transport: retripotel.New(&retrip.Transport{Base: base, Policy: policy}, w.config)}
}

func (w *world) do(t *testing.T, client *http.Client, method, path string, body io.Reader) *http.Response {
	t.Helper()
	resp, err := client.Do(play.MustRequest(t, method, w.URL+path, body))
	require.NoError(t, err)
	play.Finish(t, resp)
	return resp
}

// split returns the spans of attempts, in the order of their ends, and the
// spans around them.
func (w *world) split() (attempts, requests tracetest.SpanStubs) {
	for _, span := range tracetest.SpanStubsFromReadOnlySpans(w.spans.Ended()) {
		if span.SpanKind == trace.SpanKindClient {
			attempts = append(attempts, span)
		} else {
			requests = append(requests, span)
		}
	}
	return attempts, requests
}

func of(attributes []attribute.KeyValue, key attribute.Key) any {
	for _, a := range attributes {
		if a.Key == key {
			return a.Value.AsInterface()
		}
	}
	return nil
}

func (w *world) metrics(t *testing.T) map[string]metricdata.Aggregation {
	t.Helper()
	var data metricdata.ResourceMetrics
	require.NoError(t, w.reader.Collect(context.Background(), &data))
	found := map[string]metricdata.Aggregation{}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			require.NotContains(t, found, m.Name, "each metric has one scope")
			found[m.Name] = m.Data
		}
	}
	return found
}

// sum returns the sum of a metric's points that have all of the attributes, or
// their count for a histogram.
func sum(t *testing.T, data metricdata.Aggregation, attributes ...attribute.KeyValue) (sum float64, count uint64) {
	t.Helper()
	has := func(set attribute.Set) bool {
		for _, a := range attributes {
			if v, ok := set.Value(a.Key); !ok || v != a.Value {
				return false
			}
		}
		return true
	}
	switch data := data.(type) {
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			if has(p.Attributes) {
				sum, count = sum+p.Sum, count+p.Count
			}
		}
		return sum, count
	case metricdata.Sum[float64]:
		return total(data.DataPoints, has), 0
	case metricdata.Sum[int64]:
		return total(data.DataPoints, has), 0
	}
	t.Fatalf("%T", data)
	return 0, 0
}

func total[N int64 | float64](points []metricdata.DataPoint[N], has func(attribute.Set) bool) (sum float64) {
	for _, p := range points {
		if has(p.Attributes) {
			sum += float64(p.Value)
		}
	}
	return sum
}

func TestNew_ASpanForEachAttemptAndOneAroundThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, script(503, 502, 200))
		client := w.client(retrip.Policy{Backoff: retrip.Backoff{Base: 2 * time.Second, Jitter: retrip.NoJitter}})
		w.do(t, client, http.MethodPut, "/secret?key=secret", strings.NewReader("body"))

		attempts, requests := w.split()
		require.Len(t, attempts, 3)
		require.Len(t, requests, 1)
		around := requests[0]
		assert.Equal(t, "PUT with retries", around.Name)
		assert.Equal(t, trace.SpanKindInternal, around.SpanKind)
		assert.Equal(t, codes.Unset, around.Status.Code)
		assert.Equal(t, int64(200), of(around.Attributes, "http.response.status_code"))
		assert.Equal(t, int64(3), of(around.Attributes, "retrip.attempts"))
		assert.Equal(t, "default", of(around.Attributes, "retrip.policy"))
		assert.Nil(t, of(around.Attributes, "http.request.resend_count"))
		assert.Nil(t, of(around.Attributes, "retrip.reason"))
		require.Len(t, around.Events, 2)
		for i, event := range around.Events {
			assert.Equal(t, "retry", event.Name)
			assert.Equal(t, "server_error", of(event.Attributes, "retrip.reason"))
			assert.Equal(t, "backoff", of(event.Attributes, "retrip.wait_source"))
			assert.Equal(t, []float64{2, 4}[i], of(event.Attributes, "retrip.wait_seconds"))
		}
		assert.Equal(t, 6*time.Second, around.EndTime.Sub(around.StartTime))
		for i, span := range attempts {
			assert.Equal(t, around.SpanContext.SpanID(), span.Parent.SpanID(), "attempt %d", i+1)
			assert.Equal(t, []any{int64(503), int64(502), int64(200)}[i], of(span.Attributes, "http.response.status_code"))
			assert.Equal(t, []any{nil, int64(1), int64(2)}[i], of(span.Attributes, "http.request.resend_count"))
			parent := w.headers[i].Get("Traceparent")
			assert.Contains(t, parent, span.SpanContext.SpanID().String(), "the server's parent is the attempt")
			assert.Contains(t, parent, around.SpanContext.TraceID().String())
		}
		assert.Equal(t, []string{"body", "body", "body"}, w.bodies)
	})
}

func TestNew_ReasonsToGiveUp(t *testing.T) {
	for reason, tt := range map[string]struct {
		policy retrip.Policy
		method string
	}{
		"max_attempts":   {retrip.Policy{MaxAttempts: 1}, http.MethodGet},
		"not_idempotent": {retrip.Policy{}, http.MethodPost},
	} {
		testenv.Bubble(t, reason, func(t *testing.T) {
			w := newWorld(t, script(503))
			w.do(t, w.client(tt.policy), tt.method, "", nil)
			_, requests := w.split()
			require.Len(t, requests, 1)
			require.Len(t, requests[0].Events, 1)
			assert.Equal(t, "give up", requests[0].Events[0].Name)
			assert.Equal(t, reason, of(requests[0].Events[0].Attributes, "retrip.reason"))
			assert.Equal(t, reason, of(requests[0].Attributes, "retrip.reason"))
			assert.Equal(t, "503", of(requests[0].Attributes, "error.type"))
			assert.Equal(t, codes.Error, requests[0].Status.Code)

			_, n := sum(t, w.metrics(t)["retrip.request.duration"], attribute.String("retrip.reason", reason),
				attribute.Int("http.response.status_code", 503), attribute.Bool("retrip.retried", false))
			assert.EqualValues(t, 1, n)
		})
	}
}

func TestNew_RedirectsCountAsResends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		statuses := script(503, 307, 503, 200)
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/next")
			statuses(w, r)
		})
		w.do(t, w.client(retrip.Policy{}), http.MethodGet, "", nil)
		attempts, requests := w.split()
		require.Len(t, requests, 2)
		require.Len(t, attempts, 4)
		for i, span := range attempts {
			assert.Equal(t, []any{nil, int64(1), int64(2), int64(3)}[i], of(span.Attributes, "http.request.resend_count"))
		}
	})
}

// A hedge is an attempt after the first, although that goes on.
func TestNew_HedgesCountAsResends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests atomic.Int64
		w := newWorld(t, func(http.ResponseWriter, *http.Request) {
			n := requests.Add(1)
			if n == 41 {
				time.Sleep(time.Second)
			}
			time.Sleep(time.Duration(50-n) * time.Millisecond)
		})
		client := w.client(retrip.Policy{Hedge: 0.2})
		for range 41 {
			w.do(t, client, http.MethodGet, "", nil)
		}
		attempts, _ := w.split()
		last := attempts[len(attempts)-2:] // the hedge, and the attempt that it has beaten
		assert.ElementsMatch(t, []any{nil, int64(1)}, []any{of(last[0].Attributes, "http.request.resend_count"), of(last[1].Attributes, "http.request.resend_count")})
	})
}

func TestNew_Metrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/limited") {
				w.Header().Set("Retry-After", "3")
				w.WriteHeader(http.StatusTooManyRequests)
			}
		})
		client := w.client(retrip.Policy{MaxAttempts: 2})
		w.do(t, client, http.MethodGet, "", nil)
		w.do(t, client, "BREW", "", nil)
		w.do(t, client, http.MethodGet, "/limited", nil)

		metrics := w.metrics(t)
		policy := attribute.String("retrip.policy", "default")
		_, attempts := sum(t, metrics["http.client.request.duration"])
		assert.EqualValues(t, 4, attempts, "once for each attempt")
		requests := metrics["retrip.request.duration"]
		_, n := sum(t, requests, policy)
		assert.EqualValues(t, 3, n)
		_, n = sum(t, requests, attribute.String("http.request.method", "_OTHER"), attribute.Int("http.response.status_code", 200))
		assert.EqualValues(t, 1, n)
		seconds, n := sum(t, requests, attribute.Bool("retrip.retried", true), attribute.String("retrip.reason", "max_attempts"))
		assert.EqualValues(t, 1, n)
		assert.GreaterOrEqual(t, seconds, 3.0)
		seconds, n = sum(t, metrics["retrip.retry.delay"], policy,
			attribute.String("retrip.reason", "throttled"), attribute.String("retrip.wait_source", "server"))
		assert.EqualValues(t, 1, n)
		assert.GreaterOrEqual(t, seconds, 3.0)
		for name, data := range metrics {
			if points, ok := data.(metricdata.Histogram[float64]); ok && strings.HasPrefix(name, "retrip.") {
				for _, p := range points.DataPoints {
					assert.False(t, p.Attributes.HasValue("server.address"), "%s: bounded", name)
				}
			}
		}
	})
}

func TestNew_HostsAddUpAndGoBackToZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/down" {
				w.Header().Set("Retry-After", "2")
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		policy := retrip.Policy{MaxAttempts: 2}
		one, two := w.client(policy), w.client(policy)
		w.do(t, one, http.MethodGet, "/down", nil)
		w.do(t, two, http.MethodGet, "/down", nil)
		metrics := w.metrics(t)
		n, _ := sum(t, metrics["retrip.hosts.in_trouble"])
		assert.Equal(t, 2.0, n)
		n, _ = sum(t, metrics["retrip.hosts.failing"])
		assert.Equal(t, 2.0, n)
		tokens, _ := sum(t, metrics["retrip.budget.tokens_missing"], attribute.String("retrip.policy", "default"))
		assert.Equal(t, 1.0, tokens)
		paused, _ := sum(t, metrics["retrip.hosts.paused"])
		assert.Equal(t, 1.0, paused, "the first one only until its retry")
		open, _ := sum(t, metrics["retrip.hosts.breaker_open"])
		assert.Zero(t, open)
		time.Sleep(6 * time.Minute)
		n, _ = sum(t, w.metrics(t)["retrip.hosts.failing"])
		assert.Zero(t, n)
		time.Sleep(2 * time.Hour)
		n, _ = sum(t, w.metrics(t)["retrip.hosts.in_trouble"])
		assert.Zero(t, n)
		runtime.KeepAlive(one)
		runtime.KeepAlive(two)
	})
}

// TestNew_TransportsAreNotKept: an SDK that creates thousands of clients must
// not leave a callback behind for each.
func TestNew_TransportsAreNotKept(t *testing.T) {
	w := newWorld(t, script(503))
	gone := make(chan struct{})
	func() {
		transport := &retrip.Transport{Base: w.Transport(), Policy: retrip.Policy{MaxAttempts: 1}}
		w.do(t, &http.Client{Transport: retripotel.New(transport, w.config)}, http.MethodGet, "", nil)
		runtime.AddCleanup(transport, func(c chan struct{}) { close(c) }, gone)
	}()
	for range 1000 {
		runtime.GC()
		select {
		case <-gone:
			w.metrics(t)
			return
		default:
			runtime.Gosched()
		}
	}
	t.Fatal("it is still there")
}

// resending returns a base through which net/http seems to send every request n
// times.
func resending(n int) testenv.RoundTripper {
	return func(req *http.Request) (*http.Response, error) {
		for range n {
			conn, _ := net.Pipe()
			httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{Conn: conn})
		}
		return play.Reply(503)(req)
	}
}

// Each attempt has two, and they count once if the wait after it is canceled.
func TestNew_HiddenSends(t *testing.T) {
	for want, cancelAfter := range map[float64]time.Duration{8: time.Hour, 2: 500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, script(200))
			ctx, cancel := context.WithTimeout(t.Context(), cancelAfter)
			defer cancel()
			resp, err := w.over(resending(3), play.Steady).Do(play.MustRequest(t, http.MethodGet, w.URL, nil).WithContext(ctx))
			if err == nil {
				play.Finish(t, resp)
			}
			sends, _ := sum(t, w.metrics(t)["retrip.hidden_sends"], attribute.String("retrip.policy", "default"))
			assert.Equal(t, want, sends)
		})
	}
}

func TestNew_Errors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, script(200))
		lost := errors.New("read https://user:secret@example.com: connection lost")
		client := w.over(testenv.RoundTripper(play.Err(lost)), retrip.Policy{MaxAttempts: 2})
		_, err := client.Do(play.MustRequest(t, http.MethodGet, "https://example.com:8443/", nil))
		require.ErrorIs(t, err, lost)
		_, requests := w.split()
		require.Len(t, requests, 1)
		assert.Equal(t, codes.Error, requests[0].Status.Code)
		assert.Empty(t, requests[0].Status.Description, "error texts may contain secrets")
		assert.Equal(t, "example.com", of(requests[0].Attributes, "server.address"))
		assert.Equal(t, int64(8443), of(requests[0].Attributes, "server.port"))
		assert.Equal(t, "other", of(requests[0].Attributes, "error.type"))
	})
}

// What ended a request is said in the words of retrip, never as a Go type.
func TestNew_KindsOfErrors(t *testing.T) {
	one := retrip.Policy{MaxAttempts: 1}
	for want, tt := range map[string]struct {
		policy retrip.Policy
		base   testenv.RoundTripper
		cancel bool
	}{
		"timeout":            {policy: retrip.Policy{MaxAttempts: 1, AttemptTimeout: time.Second}},
		"canceled":           {policy: one, cancel: true},
		"connection_refused": {policy: one, base: testenv.RoundTripper(play.Err(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}))},
		"no_such_host":       {policy: one, base: testenv.RoundTripper(play.Err(&net.DNSError{IsNotFound: true}))},
		"breaker_open":       {policy: retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{MinVolume: 1, OpenFor: time.Hour}}, base: testenv.RoundTripper(play.Reply(503))},
		"_OTHER":             {policy: retrip.Policy{MaxAttempts: -1}, base: testenv.RoundTripper(play.Reply(200))},
	} {
		testenv.Bubble(t, want, func(t *testing.T) {
			w := newWorld(t, hangs)
			client := w.client(tt.policy)
			if tt.base != nil {
				client = w.over(tt.base, tt.policy)
			}
			for range 2 {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.cancel {
					time.AfterFunc(time.Second, cancel)
				}
				if resp, err := client.Do(play.MustRequest(t, http.MethodGet, w.URL, nil).WithContext(ctx)); err == nil {
					resp.Body.Close()
				}
			}
			_, requests := w.split()
			require.Len(t, requests, 2)
			assert.Equal(t, want, of(requests[1].Attributes, "error.type"))
			assert.Equal(t, codes.Error, requests[1].Status.Code)
			duration, ok := w.metrics(t)["retrip.request.duration"]
			assert.Equal(t, tt.policy.MaxAttempts > 0, ok, "a wrong policy counts nothing")
			if ok {
				_, n := sum(t, duration, attribute.String("error.type", want))
				assert.NotZero(t, n)
			}
		})
	}
}

// When it is too late for traces, New says so at once.
func TestNew_TooLate(t *testing.T) {
	used := &retrip.Transport{Base: play.Base(play.Reply(200))}
	play.Finish(t, testenv.Do(t, used, play.Request(t, http.MethodGet, nil)))
	assert.PanicsWithValue(t, "retripotel: New was called after the first request of the retrip.Transport: no attempt would have a span", func() { retripotel.New(used, retripotel.Config{}) })
	assert.NoError(t, used.Validate(), "it has its Base")

	twice := &retrip.Transport{Base: play.Base(play.Reply(200))}
	retripotel.New(twice, retripotel.Config{})
	assert.Panics(t, func() { retripotel.New(twice, retripotel.Config{}) })
}

func TestNew_ANilBaseIsAnError(t *testing.T) {
	tr := &retrip.Transport{Base: (*http.Transport)(nil)}
	client := &http.Client{Transport: retripotel.New(tr, retripotel.Config{})}
	require.ErrorContains(t, tr.Validate(), "Base")
	_, err := client.Do(play.MustRequest(t, http.MethodGet, "https://example.com/", nil))
	assert.ErrorContains(t, err, "Base")
}

func TestNew_IsTransparent(t *testing.T) {
	base := play.Base(play.Reply(200))
	limited := retrip.Policy{AttemptTimeout: time.Second}
	retry := &retrip.Transport{Base: base, Policy: limited}
	transport := retripotel.New(retry, retripotel.Config{})
	(&http.Client{Transport: transport}).CloseIdleConnections()
	assert.Equal(t, 1, base.Idle)
	assert.Same(t, retry, transport.Unwrap())
	assert.Empty(t, retry.Advice())

	twice := &retrip.Transport{Base: &retrip.Transport{}, Policy: limited}
	retripotel.New(twice, retripotel.Config{})
	assert.Contains(t, twice.Advice()[0], "another retrip.Transport")
	outer := &retrip.Transport{Base: transport, Policy: limited}
	assert.Contains(t, outer.Advice()[0], "another retrip.Transport")
}
