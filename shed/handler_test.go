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
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/testenv"
	"github.com/retrip/retrip/shed"
)

func TestHandler_Refuses(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		h := &shed.Handler{Handler: sleeping, Limit: 1, QueueTime: 100 * ms}
		s := newSite(t, proto, h)
		running, queued := s.getting("/1s"), s.getting("/0s")
		a := s.get("/0s", "Retry-Attempt: 2")
		require.NoError(t, a.err)
		assert.Equal(t, 503, a.status)
		assert.Equal(t, 20*ms, a.took, "a retry waits a fifth of the time")
		a = s.get("/0s", "Retry-Attempt: 2")
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
			return s.get("/0s")
		})
		assert.Equal(t, 204, (<-running).status)
		assert.Equal(t, 204, (<-last).status)
		assert.Equal(t, map[string]float64{
			"requests_total 1": 3, "requests_total 2": 2, "refused_total retry": 2, "refused_total queue_time": 1, "queue_seconds": 2, "limit": 1,
		}, counted(t, h))
	})
}

// A refusal keeps the connection open, unless reading the rest of the request
// would cost more.
func TestHandler_RefusalKeepsTheConnection(t *testing.T) {
	t.Parallel()
	for size, dials := range map[int]int{0: 1, 1000: 1, 200 << 10: 1, 8 << 20: 3} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, memhttp.HTTP1, &shed.Handler{Handler: sleeping, Limit: 1, DeadlineHeader: "Timeout-Ms"})
				for range 3 {
					body := strings.NewReader(strings.Repeat("x", size))
					assert.Equal(t, 503, do(t.Context(), s.base, "POST", s.URL+"/0s", body, "Timeout-Ms: 0").status)
					synctest.Wait()
				}
				assert.EqualValues(t, dials, s.Listener.Dials())
			})
		})
	}
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
		s := newSite(t, memhttp.HTTP1, h)
		for _, tt := range []struct {
			timeout string
			status  int
		}{{"1500", 204}, {"whenever", 204}, {"0", 503}, {"-20", 503}, {"0.0000001", 503}} {
			a := s.get("/0s", "X-Timeout-Ms: "+tt.timeout)
			assert.Equal(t, tt.status, a.status, tt.timeout)
			assert.Zero(t, a.took)
		}
		running := s.getting("/50ms", "X-Timeout-Ms: 1000")
		a := s.get("/0s", "X-Timeout-Ms: 30")
		assert.Equal(t, 503, a.status, "no time is left in the queue")
		assert.Equal(t, 30*ms, a.took)
		a = s.get("/0s", "X-Timeout-Ms: 60")
		assert.Equal(t, 204, a.status)
		assert.Equal(t, 20*ms, a.took)
		<-running
		assert.Equal(t, []time.Duration{1500 * ms, -1, 1000 * ms, 40 * ms}, deadlines)
		assert.Equal(t, 4.0, counted(t, h)["refused_total deadline"])

		// A deadline that the context already has ends the wait with the same reason.
		running = meanwhile(func() answered { return direct(h, "/1s") })
		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/0s", nil))
		assert.Equal(t, 503, w.Code)
		assert.Equal(t, 5.0, counted(t, h)["refused_total deadline"])
		<-running
	})
}

func TestHandler_Exempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &shed.Handler{Handler: sleeping, Limit: 1, QueueTime: retrip.Off, Exempt: func(r *http.Request) bool { return r.URL.Path == "/0s" }}
		running := meanwhile(func() answered { return direct(h, "/1s") })
		for path, status := range map[string]int{"/0s": 204, "/1ms": 503, "/healthz": 503} {
			assert.Equal(t, status, direct(h, path).status, path)
		}
		assert.Equal(t, 204, (<-running).status)
	})
}

// Whoever can reach the path of a health check gets no more by that than a health check
// needs.
func TestHandler_HealthChecks(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		hold, check := make(chan struct{}), make(chan struct{})
		h := &shed.Handler{Limit: 1, QueueTime: retrip.Off, HoldTime: retrip.Off, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			switch r.URL.Path + r.URL.RawQuery {
			case "/hold":
				<-hold
			case "/readyzhangs":
				<-check
			}
		})}
		s := newSite(t, proto, h)
		running := s.getting("/hold")
		for i, tt := range []struct {
			method, path string
			body         io.Reader
			status       int
		}{
			{"GET", "/livez", nil, 200}, {"HEAD", "/readyz", nil, 200}, {"GET", "/healthz", http.NoBody, 200}, {"GET", "/", nil, 503},
			{"GET", "/healthz/", nil, 503}, {"GET", "/Healthz", nil, 503}, {"POST", "/livez", nil, 503}, {"DELETE", "/livez", nil, 503},
			{"POST", "/livez", strings.NewReader("x"), 503}, {"GET", "/livez", strings.NewReader("x"), 503}, {"GET", "/livez", io.MultiReader(strings.NewReader("x")), 503},
		} {
			assert.Equal(t, tt.status, do(t.Context(), s.base, tt.method, s.URL+tt.path, tt.body).status, i)
		}
		var checks []<-chan answered
		for range 16 {
			assert.Equal(t, 200, s.get("/healthz").status)
			checks = append(checks, s.getting("/readyz?hangs"))
		}
		before := counted(t, h)
		assert.Equal(t, 503, s.get("/healthz").status, "it queues like any other request")
		check <- struct{}{}
		synctest.Wait()
		assert.Equal(t, 200, s.get("/healthz").status)
		assert.Equal(t, before["requests_total 1"]+1, counted(t, h)["requests_total 1"])
		checks = append(checks, s.getting("/readyz?hangs"))
		close(hold)
		assert.Equal(t, 200, (<-running).status)
		synctest.Wait()
		assert.Equal(t, 200, s.get("/healthz").status, "a place is free")
		close(check)
		for _, check := range checks {
			assert.Equal(t, 200, (<-check).status)
		}
		assertIdle(t, h)
	})
}

func TestHandler_Defaults(t *testing.T) {
	h := &shed.Handler{Limit: 7}
	assert.Equal(t, 404, direct(h, "/no/such/path").status, "of http.DefaultServeMux")
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
			a := direct(tt.handler, path)
			assert.Equal(t, 500, a.status)
			assert.Equal(t, tt.handler.Validate().Error()+"\n", a.body)
		}
	}
	for _, h := range []*shed.Handler{
		{Limit: retrip.Off, QueueTime: retrip.Off, RetryShare: retrip.Off, HoldTime: retrip.Off},
		{Limit: math.MaxInt, QueueTime: math.MaxInt64, RetryShare: 1, HoldTime: math.MaxInt64, RetryHeader: "X-Envoy-Attempt-Count"},
	} {
		assert.NoError(t, h.Validate())
		h.Handler = idle{}
		assert.Equal(t, 200, direct(h, "/").status)
	}

	// The query of the error is that of the docs, which ops tests.
	docs, err := os.ReadFile("../docs/shed.md")
	require.NoError(t, err)
	match := regexp.MustCompile("(?s)```promql\n(max\\(.*?)\n```").FindSubmatch(docs)
	require.NotNil(t, match)
	assert.ErrorContains(t, new(shed.Handler).Validate(), string(match[1]))
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
		for sheds, want := range map[bool]int64{true: 10, false: 64} {
			rt, url, calls := layers(t, proto, 3, sheds)
			assert.Equal(t, 503, do(t.Context(), rt, "GET", url, nil).status)
			assert.Equal(t, want, calls.Load(), "shed %v", sheds)
		}
	})
}

// outgoing makes a request of a handler's own with ctx, and returns the attempts that
// its tries state.
func outgoing(ctx context.Context) (attempts []string) {
	leaf := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
		attempts = append(attempts, strings.Join(r.Header["Attempt"], "+"))
		return &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	})
	do(ctx, &retrip.Transport{Base: leaf, Policy: retrip.Policy{RetryHeader: "Attempt", MaxAttempts: 2}}, "GET", "http://example.com", nil)
	return attempts
}

// The context of a first attempt doesn't affect the handler's Transports.
func TestHandler_MarksRetriesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		h := &shed.Handler{Limit: 1, RetryHeader: "x-envoy-attempt-count", Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			got = outgoing(r.Context())
		})}
		own := []string{"", "2"}
		direct(h, "/")
		assert.Equal(t, own, got)
		for attempt, want := range map[string][]string{"1": own, "-1": own, "2": {"2"}, "999999": {"999999"}, "99999999999999999999": {"1000000"}} {
			direct(h, "/", "X-Envoy-Attempt-Count: "+attempt)
			assert.Equal(t, want, got, attempt)
		}
	})
}

// Work that a retry has started, and that goes on without it, makes calls of
// its own.
func TestHandler_BackgroundWork(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		own, inherited, twice := []string{"", "2"}, []string{"3"}, []string{"3", "4"}
		timeout, two := retrip.Policy{AttemptTimeout: time.Second}, retrip.Policy{MaxAttempts: 2}
		var kept context.Context
		h := &shed.Handler{Limit: 1, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			assert.Equal(t, inherited, outgoing(ctx))
			assert.Equal(t, inherited, outgoing(retrip.WithPolicy(ctx, timeout)))
			assert.Equal(t, inherited, outgoing(retrip.WithTrace(ctx, nil)))
			assert.Equal(t, twice, outgoing(retrip.WithPolicy(ctx, two)))
			assert.Equal(t, twice, outgoing(retrip.WithTrace(retrip.WithPolicy(ctx, two), nil)))
			assert.Equal(t, twice, outgoing(retrip.WithPolicy(retrip.WithPolicy(ctx, two), timeout)))
			assert.Equal(t, own, outgoing(context.WithoutCancel(ctx)), "it has begun")
			var cancel context.CancelFunc
			kept, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Hour)
			t.Cleanup(cancel)
			assert.Equal(t, inherited, outgoing(kept), "it may be part of the request")
		})}
		s := newSite(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r.WithContext(retrip.WithPolicy(r.Context(), two)))
		}))
		assert.Equal(t, 200, s.get("", "Retry-Attempt: 3").status)
		assert.Equal(t, own, outgoing(kept))
		assert.Equal(t, own, outgoing(retrip.WithPolicy(kept, timeout)))
		assert.Equal(t, []string{"", "2", "3"}, outgoing(retrip.WithPolicy(kept, retrip.Policy{MaxAttempts: 3})))
	})
}

// assertIdle checks that no request is left.
func assertIdle(t *testing.T, h *shed.Handler) {
	t.Helper()
	counts := counted(t, h)
	assert.Zero(t, counts["running_requests"])
	assert.Zero(t, counts["waiting_requests"])
}

// A request that waits is served as soon as another has run for HoldTime.
func TestHandler_HoldTimeEndsAWait(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		h := &shed.Handler{Handler: sleeping, Limit: 2, QueueTime: 300 * ms, HoldTime: 100 * ms}
		s := newSite(t, proto, h)
		get := func(path string, at time.Duration, header ...string) <-chan answered {
			return meanwhile(func() answered {
				time.Sleep(at)
				return s.get(path, header...)
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
		assertIdle(t, h)
	})
}

// A body of which only the beginning was read during the wait arrives whole.
func TestHandler_LongBody(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		s := newSite(t, proto, &shed.Handler{Limit: 1, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			time.Sleep(50 * ms)
			_, _ = fmt.Fprint(w, n)
		})})
		running := s.getting("")
		a := do(t.Context(), s.base, "POST", s.URL, io.MultiReader(strings.NewReader(strings.Repeat("x", 100_000))))
		assert.Equal(t, "100000", a.body)
		assert.Equal(t, "0", (<-running).body)
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
				s := newSite(t, proto, h)
				post := func(ctx context.Context, path string) <-chan answered {
					var body io.Reader = strings.NewReader(strings.Repeat("x", size))
					if !known {
						body = struct{ io.Reader }{body}
					}
					return meanwhile(func() answered { return do(ctx, s.base, "POST", s.URL+path, body) })
				}
				running := post(t.Context(), "/500ms")
				ctx, cancel := context.WithCancel(t.Context())
				goes, stays := post(ctx, "/1h"), post(t.Context(), "/100ms")
				time.Sleep(100 * ms)
				assert.Equal(t, 2.0, counted(t, h)["waiting_requests"])
				cancel()
				assert.ErrorIs(t, (<-goes).err, context.Canceled)
				synctest.Wait()
				assert.Equal(t, 1.0, counted(t, h)["waiting_requests"])
				assert.Equal(t, 1.0, counted(t, h)["refused_total canceled"])
				assert.Equal(t, 204, (<-running).status)
				a := <-stays
				assert.Equal(t, 204, a.status, "%d %v", size, known)
				assert.Equal(t, 600*ms, a.took)
				assert.EqualValues(t, 2, served.Load())
			}
		}
	})
}
