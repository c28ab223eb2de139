// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/testenv"
	"github.com/retrip/retrip/shed"
)

const ms = time.Millisecond

var protos = []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2, memhttp.H2C}

// TestMain makes garbage collections rare. The tests produce much garbage on a
// small heap, which would be collected again and again.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// each runs f in a bubble, once per protocol.
func each(t *testing.T, f func(t *testing.T, proto memhttp.Proto)) {
	for _, proto := range protos {
		t.Run(proto.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { f(t, proto) })
		})
	}
}

// sleeper serves for as long as the path says, such as /50ms.
func sleeper(w http.ResponseWriter, r *http.Request) {
	d, err := time.ParseDuration(strings.TrimPrefix(r.URL.Path, "/"))
	if err != nil {
		panic(err)
	}
	time.Sleep(d)
	w.WriteHeader(http.StatusNoContent)
}

// answered is a client's answer and the time it arrived.
type answered struct {
	status int
	header http.Header
	body   string
	took   time.Duration
	err    error
}

// do makes a request and reads the answer.
func do(ctx context.Context, rt http.RoundTripper, method, url string, body io.Reader, header ...string) (a answered) {
	start := time.Now()
	defer func() { a.took = time.Since(start) }()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return answered{err: err}
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Add(name, value)
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return answered{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answered{status: resp.StatusCode, header: resp.Header, body: string(text), err: err}
}

// meanwhile runs f in the background and returns a channel for its answer.
func meanwhile(f func() answered) <-chan answered {
	c := make(chan answered, 1)
	go func() { c <- f() }()
	synctest.Wait()
	return c
}

// counted returns the metrics of h by name and label values.
func counted(t *testing.T, h *shed.Handler) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(h))
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var name strings.Builder
			name.WriteString(strings.TrimPrefix(family.GetName(), "retrip_shed_"))
			for _, label := range m.GetLabel() {
				name.WriteString(" " + label.GetValue())
			}
			if v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount()); v != 0 {
				values[name.String()] = v
			}
		}
	}
	return values
}

func TestHandler_Refuses(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		h := &shed.Handler{Handler: http.HandlerFunc(sleeper), Limit: 1, QueueTime: 100 * ms}
		s := memhttp.NewServer(t, proto, h)
		rt := s.Transport()
		running := meanwhile(func() answered { return do(t.Context(), rt, "GET", s.URL+"/1s", nil) })

		queued := meanwhile(func() answered { return do(t.Context(), rt, "GET", s.URL+"/0s", nil) })
		a := do(t.Context(), rt, "GET", s.URL+"/0s", nil, "Retry-Attempt: 2")
		require.NoError(t, a.err)
		assert.Equal(t, 503, a.status)
		assert.Equal(t, 20*ms, a.took, "a retry waits a fifth of the time")
		a = do(t.Context(), rt, "GET", s.URL+"/0s", nil, "Retry-Attempt: 2")
		assert.Equal(t, 503, a.status)
		assert.Zero(t, a.took, "and is refused at once while the queue is that old")
		assert.Equal(t, []string{"false"}, a.header["X-Should-Retry"])
		assert.NotContains(t, a.header, "Retry-After", "it would pause the host")
		assert.Equal(t, "overloaded\n", a.body)
		a = <-queued
		assert.Equal(t, 503, a.status)
		assert.Equal(t, 100*ms, a.took)
		assert.Equal(t, []string{"false"}, a.header["X-Should-Retry"])

		last := meanwhile(func() answered {
			time.Sleep(850 * ms)
			return do(t.Context(), rt, "GET", s.URL+"/0s", nil)
		})
		assert.Equal(t, 204, (<-running).status)
		a = <-last
		assert.Equal(t, 204, a.status)
		assert.Equal(t, map[string]float64{
			"requests_total 1": 3, "requests_total 2": 2, "refused_total retry": 2, "refused_total queue_time": 1, "queue_seconds": 2, "limit": 1,
		}, counted(t, h))
	})
}

// A refusal keeps the connection open, unless reading the rest of the request
// would cost more.
func TestHandler_RefusalKeepsTheConnection(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		body  int
		dials int
	}{{0, 1}, {1000, 1}, {200 << 10, 1}, {8 << 20, 3}} {
		t.Run(fmt.Sprint(tt.body), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &shed.Handler{Handler: http.HandlerFunc(sleeper), Limit: 1, DeadlineHeader: "Timeout-Ms"}
				s := memhttp.NewServer(t, memhttp.HTTP1, h)
				rt := s.Transport()
				for range 3 {
					req, err := http.NewRequest("POST", s.URL+"/0s", strings.NewReader(strings.Repeat("x", tt.body)))
					require.NoError(t, err)
					req.Header.Set("Timeout-Ms", "0")
					resp, err := rt.RoundTrip(req)
					require.NoError(t, err)
					assert.Equal(t, 503, resp.StatusCode)
					_, err = io.Copy(io.Discard, resp.Body)
					require.NoError(t, err)
					resp.Body.Close()
					synctest.Wait()
				}
				assert.EqualValues(t, tt.dials, s.Listener.Dials())
			})
		})
	}
}

func TestHandler_ClientGoesInTheQueue(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		h := &shed.Handler{Handler: http.HandlerFunc(sleeper), Limit: 1, QueueTime: time.Second}
		s := memhttp.NewServer(t, proto, h)
		rt := s.Transport()
		running := meanwhile(func() answered { return do(t.Context(), rt, "GET", s.URL+"/500ms", nil) })
		ctx, cancel := context.WithCancel(t.Context())
		gone := meanwhile(func() answered { return do(ctx, rt, "GET", s.URL+"/1h", nil) })
		stays := meanwhile(func() answered { return do(t.Context(), rt, "GET", s.URL+"/0s", nil) })
		assert.Equal(t, 2.0, counted(t, h)["waiting_requests"])
		cancel()
		assert.ErrorIs(t, (<-gone).err, context.Canceled)
		synctest.Wait()
		assert.Equal(t, 1.0, counted(t, h)["waiting_requests"])
		assert.Equal(t, 1.0, counted(t, h)["refused_total canceled"])
		assert.Equal(t, 204, (<-running).status)
		assert.Equal(t, 500*ms, (<-stays).took)
	})
}

// A panic of the handler returns the slot and reaches net/http.
func TestHandler_Panics(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		h := &shed.Handler{Limit: 1, QueueTime: retrip.Off, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/panic" {
				panic(http.ErrAbortHandler)
			}
		})}
		s := memhttp.NewServer(t, proto, h)
		rt := s.Transport()
		for _, accept := range []string{"*/*", "text/event-stream"} {
			assert.Error(t, do(t.Context(), rt, "GET", s.URL+"/panic", nil, "Accept: "+accept).err)
			synctest.Wait()
			assert.Equal(t, 200, do(t.Context(), rt, "GET", s.URL, nil).status)
		}
		assert.Zero(t, counted(t, h)["running_requests"])
	})
}

func TestHandler_Deadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var deadlines []time.Duration
		h := &shed.Handler{Limit: 1, DeadlineHeader: "x-timeout-ms", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			left := time.Duration(-1)
			if at, ok := r.Context().Deadline(); ok {
				left = time.Until(at)
			}
			deadlines = append(deadlines, left)
			sleeper(w, r)
		})}
		s := memhttp.NewServer(t, memhttp.HTTP1, h)
		rt := s.Transport()
		get := func(path, timeout string) answered {
			return do(t.Context(), rt, "GET", s.URL+path, nil, "X-Timeout-Ms: "+timeout)
		}
		assert.Equal(t, 204, get("/0s", "1500").status)
		assert.Equal(t, 204, get("/0s", "whenever").status)
		for _, none := range []string{"0", "-20", "0.0000001"} {
			a := get("/0s", none)
			assert.Equal(t, 503, a.status, none)
			assert.Zero(t, a.took)
		}
		running := meanwhile(func() answered { return get("/50ms", "1000") })
		a := get("/0s", "30")
		assert.Equal(t, 503, a.status, "no time is left in the queue")
		assert.Equal(t, 30*ms, a.took)
		a = get("/0s", "60")
		assert.Equal(t, 204, a.status)
		assert.Equal(t, 20*ms, a.took)
		<-running
		assert.Equal(t, []time.Duration{1500 * ms, -1, 1000 * ms, 40 * ms}, deadlines)
		assert.Equal(t, 4.0, counted(t, h)["refused_total deadline"])
	})
}

// A deadline that the context already has ends the wait with the same reason.
func TestHandler_DeadlineOfTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &shed.Handler{Handler: http.HandlerFunc(sleeper), Limit: 1}
		running := meanwhile(func() answered {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/1s", nil))
			return answered{}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/0s", nil))
		assert.Equal(t, 503, w.Code)
		assert.Equal(t, 1.0, counted(t, h)["refused_total deadline"])
		<-running
	})
}

func TestHandler_Exempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var end chan struct{}
		occupied := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hold" {
				<-end
			}
		})
		for _, tt := range []struct {
			exempt func(*http.Request) bool
			free   []string
			counts []string
		}{
			{nil, []string{"/healthz", "/livez", "/readyz"}, []string{"/", "/healthz/", "/Healthz"}},
			{func(r *http.Request) bool { return r.URL.Path == "/ping" }, []string{"/ping"}, []string{"/healthz"}},
		} {
			h := &shed.Handler{Handler: occupied, Limit: 1, QueueTime: retrip.Off, Exempt: tt.exempt}
			serve := func(path string) answered {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
				return answered{status: w.Code}
			}
			end = make(chan struct{})
			running := meanwhile(func() answered { return serve("/hold") })
			synctest.Wait() // until /hold runs
			for _, path := range tt.free {
				assert.Equal(t, 200, serve(path).status, path)
			}
			for _, path := range tt.counts {
				assert.Equal(t, 503, serve(path).status, path)
			}
			close(end)
			assert.Equal(t, 200, (<-running).status)
		}
	})
}

func TestHandler_Defaults(t *testing.T) {
	w := httptest.NewRecorder()
	h := &shed.Handler{Limit: 7}
	h.ServeHTTP(w, httptest.NewRequest("GET", "/no/such/path", nil))
	assert.Equal(t, 404, w.Code, "of http.DefaultServeMux")
	assert.NoError(t, h.Validate())
	assert.Equal(t, 7.0, counted(t, h)["limit"])
	assert.True(t, math.IsInf(counted(t, &shed.Handler{Limit: retrip.Off})["limit"], 1))
}

func TestHandler_Validate(t *testing.T) {
	for _, tt := range []struct {
		handler *shed.Handler
		want    string
	}{
		{&shed.Handler{}, "shed: Handler.Limit is 0: it must be set to the requests per second that the server can do times the seconds that one takes while it keeps up, and a little more"},
		{&shed.Handler{Limit: -2}, "shed: Handler.Limit is -2: it must be set to the requests per second"},
		{&shed.Handler{Limit: 1, QueueTime: -time.Second}, "shed: Handler.QueueTime is -1s: it must be positive, 0 for the default or Off"},
		{&shed.Handler{Limit: 1, HoldTime: -2}, "shed: Handler.HoldTime is -2ns: it must be positive, 0 for the default or Off"},
		{&shed.Handler{Limit: 1, RetryShare: 1.5}, "shed: Handler.RetryShare is 1.5: it must be above 0 and at most 1, 0 for the default or Off"},
		{&shed.Handler{Limit: 1, RetryShare: -0.5}, "shed: Handler.RetryShare is -0.5: it must be above 0 and at most 1, 0 for the default or Off"},
		{&shed.Handler{Limit: 1, RetryShare: math.NaN()}, "shed: Handler.RetryShare is NaN: it must be above 0 and at most 1, 0 for the default or Off"},
		{&shed.Handler{Limit: 1, RetryHeader: "a b"}, `shed: Handler.RetryHeader is "a b": it must be the name of a header`},
		{&shed.Handler{Limit: 1, RetryHeader: "Host"}, `shed: Handler.RetryHeader is "Host": it must be the name of a header without another meaning`},
		{&shed.Handler{Limit: 1, DeadlineHeader: "Ümlaut"}, `shed: Handler.DeadlineHeader is "Ümlaut": it must be the name of a header`},
		{&shed.Handler{Limit: -2, QueueTime: -2}, "shed: Handler.QueueTime is -2ns"},
	} {
		tt.handler.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") })
		assert.ErrorContains(t, tt.handler.Validate(), tt.want)
		for _, path := range []string{"/", "/healthz"} {
			w := httptest.NewRecorder()
			tt.handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
			assert.Equal(t, 500, w.Code)
			assert.Equal(t, tt.handler.Validate().Error()+"\n", w.Body.String())
		}
	}
	for _, h := range []*shed.Handler{
		{Limit: retrip.Off, QueueTime: retrip.Off, RetryShare: retrip.Off, HoldTime: retrip.Off},
		{Limit: math.MaxInt, QueueTime: math.MaxInt64, RetryShare: 1, HoldTime: math.MaxInt64, RetryHeader: "X-Envoy-Attempt-Count"},
	} {
		assert.NoError(t, h.Validate())
		h.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		assert.Equal(t, 200, w.Code)
	}
}

// The query of the error is that of the docs, which ops tests.
func TestHandler_ValidateSaysHowToMeasure(t *testing.T) {
	docs, err := os.ReadFile("../docs/shed.md")
	require.NoError(t, err)
	match := regexp.MustCompile("(?s)```promql\n(max\\(.*?)\n```").FindSubmatch(docs)
	require.NotNil(t, match)
	assert.ErrorContains(t, new(shed.Handler).Validate(), string(match[1]))
}

// A route that becomes slow takes the places of the others, unless it has a
// Handler of its own.
func TestHandler_SlowRoute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		work := http.HandlerFunc(sleeper)
		routes := http.NewServeMux()
		routes.Handle("/", &shed.Handler{Handler: work, Limit: 4})
		routes.Handle("/9s", &shed.Handler{Handler: work, Limit: 2})
		for _, tt := range []struct {
			server http.Handler
			fast   int
		}{{&shed.Handler{Handler: work, Limit: 4}, 503}, {routes, 204}} {
			get := func(path string) answered {
				w := httptest.NewRecorder()
				tt.server.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
				return answered{status: w.Code}
			}
			var slow []<-chan answered
			for range 6 {
				slow = append(slow, meanwhile(func() answered { return get("/9s") }))
			}
			for range 8 {
				assert.Equal(t, tt.fast, get("/10ms").status)
			}
			for _, c := range slow {
				<-c
			}
		}
	})
}

// layers returns the URL of a chain of n servers whose last one always fails,
// each with Transports of the default policy, and the number of calls that have
// reached the last server.
func layers(t *testing.T, proto memhttp.Proto, n int, sheds bool) (http.RoundTripper, string, *atomic.Int64) {
	var calls atomic.Int64
	policy := retrip.Policy{RetryHeader: "Retry-Attempt", Budget: retrip.Off, Backoff: retrip.Backoff{Cap: 100 * ms}}
	next := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	for range n - 1 {
		url, rt := next.URL, &retrip.Transport{Base: next.Transport(), Policy: policy}
		var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a := do(r.Context(), rt, "GET", url, nil)
			if a.err != nil {
				a.status = http.StatusBadGateway
			}
			w.WriteHeader(a.status)
		})
		if sheds {
			h = &shed.Handler{Handler: h, Limit: 64}
		}
		next = memhttp.NewServer(t, proto, h)
	}
	return &retrip.Transport{Base: next.Transport(), Policy: policy}, next.URL, &calls
}

// Retries don't multiply across layers if each layer knows that it is serving a
// retry.
func TestHandler_Layers(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		for _, tt := range []struct {
			layers int
			sheds  bool
			calls  int64
		}{{1, true, 4}, {3, true, 10}, {5, true, 16}, {3, false, 64}, {5, false, 1024}} {
			rt, url, calls := layers(t, proto, tt.layers, tt.sheds)
			a := do(t.Context(), rt, "GET", url, nil)
			require.NoError(t, a.err)
			assert.Equal(t, 503, a.status)
			assert.Equal(t, tt.calls, calls.Load(), "%d layers, shed %v", tt.layers, tt.sheds)
		}
	})
}

// The context of a first attempt doesn't affect the handler's Transports.
func TestHandler_MarksRetriesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		leaf := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			got = append(got, strings.Join(r.Header["Attempt"], "+"))
			return &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		})
		rt := &retrip.Transport{Base: leaf, Policy: retrip.Policy{RetryHeader: "Attempt", MaxAttempts: 2}}
		h := &shed.Handler{Limit: 1, RetryHeader: "x-envoy-attempt-count", Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			do(r.Context(), rt, "GET", "http://example.com", nil)
		})}
		for _, attempt := range []string{"", "1", "2", "999999", "-1", "99999999999999999999"} {
			got = nil
			r := httptest.NewRequest("GET", "/", nil)
			if attempt != "" {
				r.Header.Set("X-Envoy-Attempt-Count", attempt)
			}
			h.ServeHTTP(httptest.NewRecorder(), r)
			want := []string{"", "2"}
			switch attempt {
			case "2", "999999":
				want = []string{attempt}
			case "99999999999999999999":
				want = []string{"1000000"}
			}
			assert.Equal(t, want, got, attempt)
		}
	})
}

// At ten times its capacity, the server still serves its capacity.
func TestHandler_Overload(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		const workers, seconds = 4, 1
		rate := testenv.Size(2000, 4000)
		h := &shed.Handler{Handler: http.HandlerFunc(sleeper), Limit: workers}
		s := memhttp.NewServer(t, proto, h)
		base := s.Transport()
		base.MaxIdleConnsPerHost = 10_000
		rt := &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: 300 * ms, RetryHeader: "Retry-Attempt"}}
		var good atomic.Int64
		var wg sync.WaitGroup
		start := time.Now()
		for range rate * seconds {
			time.Sleep(time.Second / time.Duration(rate))
			wg.Go(func() {
				if do(t.Context(), rt, "GET", s.URL+"/10ms", nil).status == 204 {
					good.Add(1)
				}
			})
		}
		took := time.Since(start).Seconds()
		wg.Wait()
		assert.GreaterOrEqual(t, float64(good.Load()), 0.9*100*workers*took)
		counts := counted(t, h)
		assert.Zero(t, counts["running_requests"])
		assert.Zero(t, counts["waiting_requests"])
	})
}

// A request that waits is served as soon as another has run for HoldTime.
func TestHandler_HoldTimeEndsAWait(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		h := &shed.Handler{Handler: http.HandlerFunc(sleeper), Limit: 2, QueueTime: 300 * ms, HoldTime: 100 * ms}
		s := memhttp.NewServer(t, proto, h)
		rt := s.Transport()
		get := func(path string, at time.Duration, header ...string) <-chan answered {
			return meanwhile(func() answered {
				time.Sleep(at)
				return do(t.Context(), rt, "GET", s.URL+path, nil, header...)
			})
		}
		hangs, ends := get("/1s", 0), get("/60ms", 10*ms) // until 100 ms and 70 ms
		hangsToo := get("/1s", 20*ms)                     // served at 70 ms, until 170 ms
		first, last := get("/200ms", 30*ms), get("/0s", 40*ms)
		retry := get("/0s", 60*ms, "Retry-Attempt: 2") // gives up before
		for _, tt := range []struct {
			c      <-chan answered
			status int
			took   time.Duration
		}{{hangs, 204, time.Second}, {ends, 204, 60 * ms}, {hangsToo, 204, 1050 * ms}, {first, 204, 270 * ms}, {last, 204, 130 * ms}, {retry, 503, 60 * ms}} {
			a := <-tt.c
			assert.Equal(t, tt.status, a.status)
			assert.Equal(t, tt.took, a.took)
		}
		assert.Zero(t, counted(t, h)["running_requests"])
	})
}

// A request whose client goes while it waits is never served, if its body has
// arrived.
func TestHandler_ServesNobody(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		for _, size := range []int{0, 1, 1000, 16 << 10} {
			for _, known := range []bool{true, false} {
				var served atomic.Int64
				h := &shed.Handler{Limit: 1, QueueTime: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if served.Add(1); r.ContentLength != 0 {
						text, err := io.ReadAll(r.Body)
						assert.NoError(t, err)
						assert.Len(t, text, size)
					}
					sleeper(w, r)
				})}
				s := memhttp.NewServer(t, proto, h)
				rt := s.Transport()
				post := func(ctx context.Context, path string) <-chan answered {
					var body io.Reader = strings.NewReader(strings.Repeat("x", size))
					if !known {
						body = struct{ io.Reader }{body}
					}
					return meanwhile(func() answered { return do(ctx, rt, "POST", s.URL+path, body) })
				}
				running := post(t.Context(), "/500ms")
				ctx, cancel := context.WithCancel(t.Context())
				goes, stays := post(ctx, "/1h"), post(t.Context(), "/100ms")
				time.Sleep(100 * ms)
				cancel()
				assert.ErrorIs(t, (<-goes).err, context.Canceled)
				assert.Equal(t, 204, (<-running).status)
				a := <-stays
				assert.Equal(t, 204, a.status, "%d %v", size, known)
				assert.Equal(t, 600*ms, a.took)
				assert.EqualValues(t, 2, served.Load())
				assert.Equal(t, 1.0, counted(t, h)["refused_total canceled"])
			}
		}
	})
}

// Work that a retry has started, and that goes on without it, makes calls of
// its own.
func TestHandler_BackgroundWork(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		var got []string
		leaf := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			got = append(got, strings.Join(r.Header["Retry-Attempt"], "+"))
			return &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		})
		rt := &retrip.Transport{Base: leaf, Policy: retrip.Policy{RetryHeader: "Retry-Attempt", MaxAttempts: 2, Budget: retrip.Off}}
		call := func(ctx context.Context) []string {
			got = nil
			do(ctx, rt, "GET", "http://example.com", nil)
			return got
		}
		own, inherited := []string{"", "2"}, []string{"3"}
		var kept context.Context
		h := &shed.Handler{Limit: 1, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			assert.Equal(t, inherited, call(r.Context()))
			assert.Equal(t, inherited, call(retrip.WithPolicy(r.Context(), retrip.Policy{AttemptTimeout: time.Second})))
			assert.Equal(t, inherited, call(retrip.WithTrace(r.Context(), nil)))
			assert.Equal(t, []string{"3", "4"}, call(retrip.WithPolicy(r.Context(), retrip.Policy{MaxAttempts: 2})))
			assert.Equal(t, []string{"3", "4"}, call(retrip.WithTrace(retrip.WithPolicy(r.Context(), retrip.Policy{MaxAttempts: 2}), nil)))
			ctx := retrip.WithPolicy(retrip.WithPolicy(r.Context(), retrip.Policy{MaxAttempts: 2}), retrip.Policy{AttemptTimeout: time.Second})
			assert.Equal(t, []string{"3", "4"}, call(ctx))
			assert.Equal(t, own, call(context.WithoutCancel(r.Context())), "it has begun")
			var cancel context.CancelFunc
			kept, cancel = context.WithTimeout(context.WithoutCancel(r.Context()), time.Hour)
			t.Cleanup(cancel)
			assert.Equal(t, inherited, call(kept), "it may be part of the request")
		})}
		s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r.WithContext(retrip.WithPolicy(r.Context(), retrip.Policy{MaxAttempts: 2})))
		}))
		assert.Equal(t, 200, do(t.Context(), s.Transport(), "GET", s.URL, nil, "Retry-Attempt: 3").status)
		assert.Equal(t, own, call(kept))
		assert.Equal(t, own, call(retrip.WithPolicy(kept, retrip.Policy{AttemptTimeout: time.Second})))
		assert.Equal(t, []string{"", "2", "3"}, call(retrip.WithPolicy(kept, retrip.Policy{MaxAttempts: 3})))
	})
}
