// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
	"github.com/retrip/retrip/statuspage"
)

// pours answers a request with head, and then with more, again and again, after a pause.
func pours(head, more string, pause time.Duration) func(*hostileConn) {
	return func(c *hostileConn) {
		c.request()
		for ok := c.send(head); ok && c.server.written.Load() < 1e9; ok = c.send(more) {
			time.Sleep(pause)
		}
	}
}

// always answers each request with what text returns.
func always(text func() string) func(*hostileConn) {
	return func(c *hostileConn) {
		for c.request() {
			c.send(text())
		}
	}
}

// says answers a request with text, and waits, or not, until the client closes the
// connection.
func says(text string, waits bool) func(*hostileConn) {
	return func(c *hostileConn) {
		c.request()
		if c.send(text); waits {
			c.request() // there is none
		}
	}
}

// Four attempts at a hostile server: their duration, the bytes that the client
// gets and reads, and the number of connections.
//
//retrip:promise P12
func TestHostile(t *testing.T) {
	play.MeasureHeap(t)
	const kib = 1 << 10
	bomb := gzipBomb(t)
	// A drained body, the connection's buffer, and the bytes that net/http
	// reads ahead.
	const drained = 3*(256*kib+64*kib+32*kib) + 64*kib + 32*kib
	chunked := int64(drained)
	if !testenv.Go126 {
		chunked += 3 * (256*kib + 64*kib) // net/http reads on after Close
	}
	flood, drip := strings.Repeat("x", 4*kib), 10*time.Millisecond
	for _, tt := range []struct {
		name   string
		serve  func(*hostileConn)
		status int // 0 means an error
		time   time.Duration
		sent   int64 // bytes that the server can send
		read   int64 // bytes of bodies that the client reads
		conns  int
	}{
		{"endless error body", pours("HTTP/1.1 503 No\r\n\r\n", flood, 0), 503, 0, drained, 3 * (256*kib + 1), 4},
		{"endless chunked error body", pours("HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n", "1000\r\n"+flood+"\r\n", 0), 503, 0, chunked, 3 * (256*kib + 1), 4},
		{"dripping error body", pours("HTTP/1.1 503 No\r\nContent-Length: 1000\r\n\r\n", "x", drip), 503, 300 * time.Millisecond, kib, 100, 4},
		{"dripping headers", pours("HTTP/1.1 503 No\r\nX-Drip: ", "x", drip), 0, 4 * time.Second, 4 * kib, 0, 4},
		{"silence", says("", true), 0, 4 * time.Second, 0, 0, 4},
		{"a billion bytes of header in one line", pours("HTTP/1.1 503 No\r\nX-Long: ", flood, 0), 0, 0, 4 * 1200 * kib, 0, 4},
		{"a billion bytes of header fields", pours("HTTP/1.1 503 No\r\n", "X: "+flood+"\r\n", 0), 0, 0, 4 * 1200 * kib, 0, 4},
		{"a flood of 103", pours("", "HTTP/1.1 103 Early Hints\r\nLink: </"+flood+">\r\n\r\n", 0), 0, 0, 4 * 1200 * kib, 0, 4},
		{"a flood of 100", pours("", "HTTP/1.1 100 Continue\r\nX: "+flood+"\r\n\r\n", 0), 0, 0, 4 * 1200 * kib, 0, 4},
		{"a gzip bomb as error body", says("HTTP/1.1 503 No\r\nContent-Encoding: gzip\r\n\r\n"+bomb, false), 503, 0, int64(4 * (len(bomb) + kib)), 3 * (256*kib + 1), 4},
		{"a declared length of an exbibyte", says("HTTP/1.1 503 No\r\nContent-Length: 1152921504606846976\r\n\r\nx", true), 503, 0, kib, 0, 4},
		{"less body than declared", says("HTTP/1.1 503 No\r\nContent-Length: 1000\r\n\r\nx", false), 503, 0, kib, 3, 4},
		// If the retry comes before net/http has seen that bytes are left, it takes them for
		// the response.
		{"more body than declared", says("HTTP/1.1 503 No\r\nContent-Length: 1\r\n\r\nx"+ok200+"more", false), -1, 0, 20 * kib, 5, 4},
		{"two lengths", says("HTTP/1.1 503 No\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", false), 0, 0, kib, 0, 4},
		{"a negative length", says("HTTP/1.1 503 No\r\nContent-Length: -1\r\n\r\nxx", false), 0, 0, kib, 0, 4},
		{"a thousand cookies", always(func() string {
			return "HTTP/1.1 503 No\r\nContent-Length: 0\r\n" + strings.Repeat("Set-Cookie: a=b; Path=/\r\n", 1000) + "\r\n"
		}), 503, 0, 110 * kib, 0, 1},
		{"a response before the request, then silence", func(c *hostileConn) {
			c.send("HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno")
			c.request()
			c.request()
		}, -1, 4 * time.Second, kib, 8, 4},
		{"hang-up at once", func(*hostileConn) {}, 0, 0, 0, 0, 4},
		{"garbage", says(strings.Repeat("\x00\xff\r\n", kib), false), 0, 0, 20 * kib, 0, 4},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			s := newHostileServer(t, tt.serve)
			transport := &retrip.Transport{Base: s, Policy: hostilePolicy}
			var before runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			// The more earlier tests have left, the more garbage would be let grow.
			defer debug.SetGCPercent(debug.SetGCPercent(min(100, 1+100*(4<<20)/int(before.HeapAlloc))))
			req := play.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil))
			began := time.Now()
			resp, err := transport.RoundTrip(req)
			took := time.Since(began)
			s.measure()
			read := s.read.Load()
			synctest.Wait()
			switch {
			case tt.status == -1: // either outcome is possible
			case tt.status == 0:
				require.Error(t, err)
			default:
				require.NoError(t, err)
				assert.Equal(t, tt.status, resp.StatusCode)
			}
			if resp != nil {
				resp.Body.Close()
			}
			synctest.Wait()
			assert.LessOrEqual(t, took, tt.time)
			assert.LessOrEqual(t, s.written.Load(), tt.sent)
			assert.LessOrEqual(t, read, tt.read)
			assert.LessOrEqual(t, s.Dials(), tt.conns)
			peak := max(s.peak.Load(), before.HeapAlloc) - before.HeapAlloc
			assert.Less(t, peak, uint64(16<<20))
			t.Logf("%v, %d bytes sent, %d read of bodies, %d connections, at most %d KiB of heap", took, s.written.Load(), read, s.Dials(), peak>>10)
		})
	}
}

// Not even a policy without bounds makes the longest wait a short one.
//
//retrip:promise P9
func TestHostile_LongestWait(t *testing.T) {
	for name, tt := range map[string]struct {
		policy retrip.Policy
		field  string
	}{
		"of the server":  {retrip.Policy{MaxWait: math.MaxInt64}, "9223372037"},
		"of the backoff": {retrip.Policy{Backoff: retrip.Backoff{Base: math.MaxInt64, Cap: math.MaxInt64, Jitter: retrip.NoJitter}}, ""},
	} {
		bubble(t, name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Hour, cancel)
			base := play.Base(play.Reply(429, "Retry-After: "+tt.field), play.Reply(200))
			_, err := (&retrip.Transport{Base: base, Policy: tt.policy}).RoundTrip(play.Request(t, http.MethodGet, nil).WithContext(ctx))
			assert.ErrorIs(t, err, context.Canceled)
			assert.Equal(t, 1, base.Attempts())
		})
	}
}

// However long what a server or a caller has sent, the log, errors, hooks and pages show a few KiB
// of it, and a request keeps little of an attempt that is over.
//
//retrip:promise P15 P17
func TestHostile_SizesAreBounded(t *testing.T) {
	const size, few = 1 << 19, 8 << 10
	n := 0
	garbage := func() string { n++; return strings.Repeat(string(rune('a'+n%26)), size) } // no two are equal
	says := func(format string) func(*testing.T) http.RoundTripper {
		return func(t *testing.T) http.RoundTripper {
			return newHostileServer(t, func(c *hostileConn) {
				c.request()
				c.send(fmt.Sprintf(format, garbage()))
			}).Base
		}
	}
	fails := func(err func() error) func(*testing.T) http.RoundTripper {
		return func(*testing.T) http.RoundTripper {
			return testenv.RoundTripper(func(*http.Request) (*http.Response, error) { return nil, err() })
		}
	}
	fail := func() error { return errors.New(garbage()) }
	for name, tt := range map[string]struct {
		base    func(*testing.T) http.RoundTripper // one that fails, if it is nil
		request func(req *http.Request)
	}{
		"not HTTP":             {base: says("%s\r\n")},
		"status":               {base: says("HTTP/1.1 %s OK\r\n\r\n")},
		"field":                {base: says("HTTP/1.1 200 OK\r\n%s\r\n\r\n")},
		"an error of the base": {},
		"wrapped":              {base: fails(func() error { return &url.Error{Op: "Get", URL: "http://a/?" + garbage(), Err: fail()} })},
		"control characters":   {base: fails(func() error { return errors.New(strings.Repeat("\x1b[31m\r\u2028", size/8)) })},
		"header": {base: func(*testing.T) http.RoundTripper {
			return testenv.RoundTripper(play.Reply(503, "X-Ratelimit-Reset: "+garbage(), "Retry-After: "+garbage()))
		}},
		"path":                  {request: func(req *http.Request) { req.URL.Path = "/" + strings.Repeat("%", size) }},
		"scheme":                {request: func(req *http.Request) { req.URL.Scheme, req.URL.Opaque = garbage(), "x" }},
		"method":                {request: func(req *http.Request) { req.Method = garbage() }},
		"host":                  {request: func(req *http.Request) { req.URL.Host = garbage() }},
		"port":                  {request: func(req *http.Request) { req.URL.Host = "a:" + strings.Repeat("1", size) }},
		"host that isn't ASCII": {request: func(req *http.Request) { req.URL.Host = strings.Repeat("\u202e", size) }},
		"gate": {request: func(req *http.Request) {
			*req = *req.WithContext(retrip.WithPolicy(req.Context(), retrip.Policy{Gate: retrip.Gate{Key: func(*http.Request) string { return garbage() }}}))
		}},
	} {
		bubble(t, name, func(t *testing.T) {
			var log bytes.Buffer
			policy := hostilePolicy
			policy.IdempotentMethods, policy.Dialects, policy.Gate.Enabled = nil, []string{"x-ratelimit-reset"}, play.Toggle(name == "gate")
			policy.Idempotent = func(*http.Request) bool { return true }
			if tt.base == nil {
				tt.base = fails(fail)
			}
			tr := &retrip.Transport{Base: tt.base(t), Policy: policy, Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
			tr.Trace = &retrip.Trace{
				Retry: func(e retrip.Event) { assert.LessOrEqual(t, len(e.URL()), few) },
				Host:  func(s retrip.HostState) { assert.LessOrEqual(t, len(s.Host), few) },
			}
			req := play.Request(t, http.MethodGet, nil)
			if tt.request != nil {
				tt.request(req)
			}
			if err := try(tr, req); err != nil {
				assert.LessOrEqual(t, len(err.Error()), few)
				assert.False(t, strings.ContainsFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }))
				if e := (*retrip.Error)(nil); errors.As(err, &e) { // else there was one attempt
					for _, earlier := range e.Err.(interface{ Unwrap() []error }).Unwrap()[1:] {
						assert.LessOrEqual(t, len(earlier.Error()), 64<<10)
					}
				}
			}
			for record := range strings.Lines(log.String()) {
				assert.LessOrEqual(t, len(record), few)
			}
			assert.NotEmpty(t, log.String())
			for _, s := range tr.HostStates() {
				assert.LessOrEqual(t, len(s.Host), few)
			}
			page := httptest.NewRecorder()
			statuspage.Handler(map[string]*retrip.Transport{"": tr}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/", nil))
			assert.Less(t, page.Body.Len(), 4*few)
		})
	}
}

// Long names of gates are kept short, and are different gates nevertheless.
//
//retrip:promise P15 P23
func TestGate_LongNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := strings.Repeat("x", 1<<20)
		tr := &retrip.Transport{Base: play.Keep(play.Reply(429, "Retry-After: 20"), play.Reply(200)), Policy: retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}}}
		ask := func(name string) (took time.Duration) {
			policy := retrip.Policy{Gate: retrip.Gate{Key: func(*http.Request) string { return name }}, MaxAttempts: 1}
			began := time.Now()
			resp := do(t, tr, play.Request(t, http.MethodGet, nil).WithContext(retrip.WithPolicy(t.Context(), policy)))
			require.NoError(t, resp.Body.Close())
			return time.Since(began)
		}
		assert.Zero(t, ask(long+"a"))
		assert.Zero(t, ask(long+"b"))
		assert.GreaterOrEqual(t, ask(long+"a"), 20*time.Second)
	})
}

// Every connection leads to one backend. The first one is down, then all are: a new connection is
// made by a probe, at the third answer of 5xx in a row, and where retries are refused, now and then;
// if only those of a route are, only after ten requests to it without a success.
//
//retrip:promise P11
func TestHostile_BackendIsDown(t *testing.T) {
	play.EachProto(t, func(t *testing.T, proto memhttp.Proto) {
		var first, all atomic.Value
		s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := memhttp.RequestConn(r)
			if down := first.CompareAndSwap(nil, c) || first.Load() == c || all.Load() != nil; down && r.URL.Path != "/well" {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		transport := &retrip.Transport{Base: s.Transport(), Policy: retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 0.8}}}
		dials := func(path string, n int, every time.Duration) int {
			before := s.Listener.Dials()
			for range n {
				_ = testenv.Try(transport, play.MustRequest(t, "GET", s.URL+path, nil)) // an open breaker refuses some
				time.Sleep(every)
			}
			return s.Listener.Dials() - before
		}
		require.Equal(t, 3, dials("/", 40, time.Second), "one after each probe")

		transport = &retrip.Transport{Base: s.Transport(), Policy: retrip.Policy{Backoff: retrip.Backoff{Jitter: retrip.NoJitter}}}
		first.Store((*memhttp.Conn)(nil))
		all.Store(true)
		require.Equal(t, 2, dials("/", 1, 0)+dials("/well", 1, 0))
		for every, want := range map[time.Duration]float64{20 * time.Millisecond: 20, 2 * time.Second: 100} {
			assert.InDelta(t, want, dials("/", 1000, every), 3, every)
		}
		for range 12 {
			dials("/well", 25, 0)
			dials("/", 5, 0)
		}
		dials("/well", 1, time.Second)
		assert.Zero(t, dials("/", 9, time.Second)+dials("/well", 1, 0)+dials("/", 9, time.Second))
		assert.Equal(t, 2, dials("/", 20, time.Second))
	})
}

func TestHostile_NoURL(t *testing.T) {
	assert.NoError(t, testenv.Try(&retrip.Transport{Base: testenv.Status(503), Policy: retrip.Policy{MaxAttempts: 1}}, &http.Request{Method: "GET"}))
}

// A host with a request in flight at any time keeps no state when it is well again.
//
//retrip:promise P15
func TestHostile_AlwaysInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(r *http.Request) (*http.Response, error) {
			time.Sleep(3 * time.Second)
			return testenv.Status(200).RoundTrip(r)
		}
		transport := &retrip.Transport{Base: play.Keep(play.Reply(503), slow)}
		for range 400 {
			go func() { _ = testenv.Try(transport, play.MustRequest(t, "GET", "http://a/", nil)) }()
			time.Sleep(2 * time.Second)
		}
		assert.Empty(t, transport.HostStates())
		time.Sleep(time.Second)
	})
}
