// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/testenv"
)

// contractEnv is what one row of the contract runs against: a protocol, and a
// Transport that is set up one way or the other.
type contractEnv struct {
	proto memhttp.Proto
	full  bool // of options

	// unlimited takes the budget away, for a row of more failures than one
	// has tokens for.
	unlimited bool
}

func (e contractEnv) transport(base http.RoundTripper) *retrip.Transport {
	if !e.full {
		tr := &retrip.Transport{Base: base}
		if e.unlimited {
			tr.Policy.Budget = retrip.Unlimited
		}
		return tr
	}
	hook := func(retrip.Event) {}
	return &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			MaxAttempts: 4, Backoff: retrip.Backoff{Base: 50 * time.Millisecond, Cap: time.Second, Jitter: retrip.EqualJitter},
			Deadline: 10 * time.Minute, AttemptTimeout: time.Minute, MaxWait: 20 * time.Second, MaxReplayBody: 1 << 20, MaxSends: 20,
			Budget: retrip.Unlimited, Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1000},
			Classify: func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.ByRule },
		},
		Hosts:   map[string]retrip.Policy{"127.0.0.1": {Backoff: retrip.Backoff{Jitter: retrip.FullJitter}}, "*.example.com": {RetryOn: []int{408}}},
		Metrics: retrip.NewMetrics(),
		Logger:  slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Trace:   &retrip.Trace{Attempt: hook, Retry: hook, GiveUp: hook, Done: hook, Host: func(retrip.HostState) {}},
	}
}

// serve starts a server for h and returns a Transport in front of it.
func (e contractEnv) serve(t *testing.T, h http.HandlerFunc) (*memhttp.Server, *retrip.Transport) {
	s := memhttp.NewServer(t, e.proto, h)
	base := s.Transport()
	t.Cleanup(base.CloseIdleConnections)
	return s, e.transport(base)
}

func echo(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }

var contract = []struct {
	name string
	run  func(t *testing.T, e contractEnv)
}{
	{"P1 response as the base gave it", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "Sum")
			w.Header().Set("X-Method", r.Method)
			w.WriteHeader(http.StatusTeapot)
			_, _ = io.WriteString(w, "short and stout")
			w.Header().Set("Sum", "42")
		})
		var given *http.Response
		inner := tr.Base
		tr.Base = testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			resp, err := inner.RoundTrip(r)
			given = resp
			return resp, err
		})
		req, err := http.NewRequest("GET", s.URL, nil)
		require.NoError(t, err)
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		assert.Same(t, given, resp)
		assert.Same(t, req, resp.Request)
		assert.Equal(t, http.StatusTeapot, resp.StatusCode)
		assert.Equal(t, "short and stout", finish(t, resp))
		assert.Equal(t, "42", resp.Trailer.Get("Sum"))
	}},
	{"P2 request never modified, body closed", func(t *testing.T, e contractEnv) {
		h, seen := flaky(2, 503, echo)
		s, tr := e.serve(t, h)
		body := newSend("payload")
		req, err := http.NewRequestWithContext(t.Context(), "PUT", s.URL, body)
		require.NoError(t, err)
		req.Header.Set("X-A", "b")
		before, header := *req, req.Header.Clone()
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		assert.Equal(t, "payload", finish(t, resp))
		synctest.Wait()
		assert.EqualValues(t, 3, seen.Load())
		assert.EqualValues(t, 1, body.closed.Load())
		assert.Equal(t, header, req.Header)
		assert.Same(t, body, req.Body)
		assert.Nil(t, req.GetBody)
		assert.Equal(t, before.ContentLength, req.ContentLength)
		assert.Equal(t, before.Context(), req.Context())
	}},
	{"P3 the last response, unread, when attempts are used up", func(t *testing.T, e contractEnv) {
		h, seen := flaky(99, 503, nil)
		s, tr := e.serve(t, h)
		resp, err := (&http.Client{Transport: tr}).Get(s.URL)
		require.NoError(t, err)
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, "later\n", finish(t, resp))
		assert.EqualValues(t, 4, seen.Load())
	}},
	{"P3 the base's error after one attempt, a joined one after several", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, func(http.ResponseWriter, *http.Request) {})
		s.Listener.Refuse(true)
		var given []error
		inner := tr.Base
		tr.Base = testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			resp, err := inner.RoundTrip(r)
			given = append(given, err)
			return resp, err
		})
		req, err := http.NewRequest("GET", s.URL, nil)
		require.NoError(t, err)
		_, err = tr.RoundTrip(req.WithContext(retrip.WithPolicy(t.Context(), retrip.Policy{MaxAttempts: 1})))
		require.Len(t, given, 1)
		assert.Same(t, given[0], err)
		_, err = tr.RoundTrip(req)
		e2 := asError(t, err)
		assert.Equal(t, 4, e2.Attempts)
		assert.Equal(t, retrip.ReasonMaxAttempts, e2.Reason)
		require.Len(t, given, 5)
		for _, g := range given[1:] {
			assert.ErrorIs(t, err, g)
		}
	}},
	{"P4 1xx and httptrace", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</a.css>")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusOK)
		})
		var hints, conns, bytes int
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse:       func(int, textproto.MIMEHeader) error { hints++; return nil },
			GotConn:              func(httptrace.GotConnInfo) { conns++ },
			GotFirstResponseByte: func() { bytes++ },
		})
		req, err := http.NewRequestWithContext(ctx, "GET", s.URL, nil)
		require.NoError(t, err)
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		finish(t, resp)
		assert.Equal(t, []int{1, 1, 1}, []int{hints, conns, bytes})
	}},
	{"P4 redirects, cookies and replays stay http.Client's", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/" {
				http.SetCookie(w, &http.Cookie{Name: "a", Value: "1", Path: "/"})
				http.Redirect(w, r, "/next", http.StatusTemporaryRedirect)
				return
			}
			fmt.Fprintf(w, "%s %s", r.Method, r.Header.Get("Referer"))
			echo(w, r)
		})
		resp, err := (&http.Client{Transport: tr}).Post(s.URL+"/", "text/plain", strings.NewReader("again"))
		require.NoError(t, err)
		body := finish(t, resp)
		assert.True(t, strings.HasPrefix(body, "POST "), body)
		assert.True(t, strings.HasSuffix(body, "again"), body)
		c := &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		resp, err = c.Get(s.URL + "/")
		require.NoError(t, err)
		finish(t, resp)
		assert.Equal(t, http.StatusTemporaryRedirect, resp.StatusCode)
		assert.Len(t, resp.Cookies(), 1)
	}},
	{"P4 CloseIdleConnections reaches the base", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, func(http.ResponseWriter, *http.Request) {})
		c := &http.Client{Transport: tr}
		resp, err := c.Get(s.URL)
		require.NoError(t, err)
		finish(t, resp)
		synctest.Wait()
		assert.Equal(t, 1, s.Listener.Open())
		c.CloseIdleConnections()
		synctest.Wait()
		assert.Zero(t, s.Listener.Open())
	}},
	{"P5 nothing from the base, and a panic of it", func(t *testing.T, e contractEnv) {
		tr := e.transport(plays(fails(nil), func(*http.Request) (*http.Response, error) { panic("base") }, replies(200)))
		body := newSend("x")
		_, err := tr.RoundTrip(request(t, "PUT", body))
		assert.ErrorContains(t, err, "neither a response nor an error")
		assert.EqualValues(t, 1, body.closed.Load())
		body = newSend("x")
		assert.PanicsWithValue(t, "base", func() { _, _ = tr.RoundTrip(request(t, "PUT", body)) })
		assert.Positive(t, body.closed.Load())
		resp, err := tr.RoundTrip(request(t, "GET", nil))
		require.NoError(t, err)
		finish(t, resp)
	}},
	{"P6 only what is idempotent is repeated", func(t *testing.T, e contractEnv) {
		e.unlimited = true
		h, seen := flaky(99, 503, nil)
		s, tr := e.serve(t, h)
		for method, want := range map[string]int32{"GET": 4, "HEAD": 4, "OPTIONS": 4, "TRACE": 4, "PUT": 4, "DELETE": 4, "QUERY": 4, "POST": 1, "PATCH": 1, "LOCK": 1} {
			seen.Store(0)
			req, err := http.NewRequest(method, s.URL, nil)
			require.NoError(t, err)
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			finish(t, resp)
			assert.Equal(t, want, seen.Load(), method)
		}
		for _, key := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
			for _, value := range [][]string{{"k"}, {}, nil} {
				seen.Store(0)
				req, err := http.NewRequest("POST", s.URL, nil)
				require.NoError(t, err)
				req.Header[key] = value
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				finish(t, resp)
				assert.EqualValues(t, 4, seen.Load(), "%s %q", key, value)
			}
		}
	}},
	{"P7 the body byte for byte on every attempt", func(t *testing.T, e contractEnv) {
		payload := pattern(60 << 10)
		var got []string
		var mu sync.Mutex
		s, tr := e.serve(t, func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			mu.Lock()
			got = append(got, string(b))
			n := len(got)
			mu.Unlock()
			if n%3 != 0 {
				w.WriteHeader(502)
			}
		})
		for _, body := range []io.Reader{strings.NewReader(string(payload)), stream(payload), io.NewSectionReader(strings.NewReader("--"+string(payload)+"--"), 2, int64(len(payload)))} {
			got = nil
			req, err := http.NewRequest("PUT", s.URL, body)
			require.NoError(t, err)
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			finish(t, resp)
			assert.Equal(t, 200, resp.StatusCode)
			require.Len(t, got, 3, "%T", body)
			for _, b := range got {
				assert.True(t, b == string(payload), "%T: %d bytes", body, len(b))
			}
		}
	}},
	{"P8 5xx and 429 retry, all else passes", func(t *testing.T, e contractEnv) {
		var status, seen atomic.Int32
		s, tr := e.serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if seen.Add(1) == 1 {
				w.WriteHeader(int(status.Load()))
			}
		})
		for code := 200; code < 600; code++ {
			seen.Store(0)
			status.Store(int32(code))
			resp, err := tr.RoundTrip(mustRequest(t, "GET", s.URL, nil))
			require.NoError(t, err)
			finish(t, resp)
			if code == 429 || code >= 500 {
				assert.EqualValues(t, 2, seen.Load(), code)
				assert.Equal(t, 200, resp.StatusCode)
			} else {
				assert.EqualValues(t, 1, seen.Load(), code)
				assert.Equal(t, code, resp.StatusCode)
			}
		}
	}},
	{"P9 never earlier than the server said", func(t *testing.T, e contractEnv) {
		for _, status := range []int{429, 503} {
			var at []time.Time
			s, tr := e.serve(t, func(w http.ResponseWriter, _ *http.Request) {
				if at = append(at, time.Now()); len(at) == 1 {
					w.Header().Set("Retry-After", "7")
					w.WriteHeader(status)
				}
			})
			resp, err := tr.RoundTrip(mustRequest(t, "GET", s.URL, nil))
			require.NoError(t, err)
			finish(t, resp)
			require.Len(t, at, 2)
			assert.GreaterOrEqual(t, at[1].Sub(at[0]), 7*time.Second)
			assert.LessOrEqual(t, at[1].Sub(at[0]), 11*time.Second)
		}
	}},
	{"P9 a wait longer than MaxWait ends it at once", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3600")
			http.Error(w, "in an hour", http.StatusServiceUnavailable)
		})
		start := time.Now()
		resp, err := tr.RoundTrip(mustRequest(t, "GET", s.URL, nil))
		require.NoError(t, err)
		assert.Equal(t, "in an hour\n", finish(t, resp))
		assert.Zero(t, time.Since(start))
	}},
	{"P10 no wait that can't end before the deadline", func(t *testing.T, e contractEnv) {
		var seen int
		s, tr := e.serve(t, func(w http.ResponseWriter, _ *http.Request) {
			seen++
			w.Header().Set("Retry-After", "2")
			http.Error(w, "in 2 s", http.StatusServiceUnavailable)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
		defer cancel()
		start := time.Now()
		resp, err := tr.RoundTrip(mustRequest(t, "GET", s.URL, nil).WithContext(ctx))
		require.NoError(t, err)
		assert.Equal(t, "in 2 s\n", finish(t, resp))
		assert.Less(t, time.Since(start), 50*time.Millisecond)
		assert.Equal(t, 1, seen)
	}},
	{"P10 cancellation ends a wait at once", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "10")
			w.WriteHeader(503)
		})
		cause := errors.New("the user left")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		start := time.Now()
		_, err := tr.RoundTrip(mustRequest(t, "GET", s.URL, nil).WithContext(ctx))
		assert.Equal(t, time.Second, time.Since(start))
		assert.ErrorIs(t, err, context.Canceled)
		assert.ErrorIs(t, err, cause)
		e1 := asError(t, err)
		assert.Equal(t, retrip.ReasonCanceled, e1.Reason)
		assert.Equal(t, 503, e1.StatusCode)
		assert.Equal(t, "10", e1.Header.Get("Retry-After"))
		assert.False(t, e1.Timeout())
	}},
	{"P11 a timeout never cuts a body", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			for i := range 10 {
				time.Sleep(time.Minute)
				fmt.Fprint(w, i)
				_ = http.NewResponseController(w).Flush()
			}
		})
		tr.Policy.AttemptTimeout, tr.Policy.Deadline = 200*time.Millisecond, time.Second
		resp, err := tr.RoundTrip(mustRequest(t, "GET", s.URL, nil))
		require.NoError(t, err)
		assert.Equal(t, "0123456789", finish(t, resp))
	}},
	{"P11 an attempt that hangs is followed by another", func(t *testing.T, e contractEnv) {
		var seen atomic.Int32
		s, tr := e.serve(t, func(_ http.ResponseWriter, r *http.Request) {
			if seen.Add(1) == 1 {
				<-r.Context().Done()
			}
		})
		tr.Policy.AttemptTimeout = 50 * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		resp, err := tr.RoundTrip(mustRequest(t, "GET", s.URL, nil).WithContext(ctx))
		require.NoError(t, err)
		finish(t, resp)
		assert.EqualValues(t, 2, seen.Load())
	}},
	{"P12 a small error body keeps its connection", func(t *testing.T, e contractEnv) {
		var seen atomic.Int32
		s, tr := e.serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if seen.Add(1)%2 == 1 {
				w.WriteHeader(503)
				_, _ = w.Write(make([]byte, 64<<10))
			}
		})
		for range 60 {
			resp, err := tr.RoundTrip(mustRequest(t, "GET", s.URL, nil))
			require.NoError(t, err)
			finish(t, resp)
			assert.Equal(t, 200, resp.StatusCode)
		}
		assert.EqualValues(t, 120, seen.Load())
		assert.Equal(t, 1, s.Listener.Dials())
	}},
	{"P13 safe for concurrent use, nothing left behind", func(t *testing.T, e contractEnv) {
		e.unlimited = true
		var mu sync.Mutex
		left := map[string]int{} // failures to come, by path
		for i := range 20 {
			left[fmt.Sprint("/", i)] = i % 4
		}
		s, tr := e.serve(t, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			left[r.URL.Path]--
			fails := left[r.URL.Path] >= 0
			mu.Unlock()
			if fails {
				w.WriteHeader(503)
				return
			}
			echo(w, r)
		})
		c := &http.Client{Transport: tr, Timeout: time.Minute}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				want := fmt.Sprint("body ", i)
				req, err := http.NewRequest("PUT", fmt.Sprint(s.URL, "/", i), stream([]byte(want)))
				if !assert.NoError(t, err) {
					return
				}
				resp, err := c.Do(req)
				if assert.NoError(t, err) && assert.Equal(t, 200, resp.StatusCode) {
					assert.Equal(t, want, finish(t, resp))
				}
			})
		}
		wg.Wait()
		// A bubble ends with a panic if a goroutine of it is still there.
	}},
	{"P3 a caller that is gone before the first attempt", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, func(http.ResponseWriter, *http.Request) {})
		left := errors.New("the user left")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(left)
		_, err := tr.RoundTrip(mustRequest(t, "GET", s.URL, nil).WithContext(ctx))
		assert.Same(t, left, err)
		assert.Zero(t, s.Listener.Dials())
	}},
	{"P4 a base that signs sees what is sent and nothing else", func(t *testing.T, e contractEnv) {
		var seen atomic.Int32
		s, tr := e.serve(t, func(_ http.ResponseWriter, r *http.Request) {
			assert.Equal(t, strings.Join(r.Header.Values("X-Signed"), " "), fmt.Sprint(r.Header["Idempotency-Key"] != nil, r.Header["X-A"]))
			if seen.Add(1) <= 2 {
				panic(http.ErrAbortHandler)
			}
		})
		inner := tr.Base
		tr.Base = testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			_, keyed := r.Header["Idempotency-Key"]
			r = r.Clone(r.Context())
			r.Header.Set("X-Signed", fmt.Sprint(keyed, r.Header["X-A"]))
			return inner.RoundTrip(r)
		})
		req := mustRequest(t, "PUT", s.URL, strings.NewReader("payload"))
		req.Header.Set("X-A", "b")
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		finish(t, resp)
		assert.EqualValues(t, 3, seen.Load())
	}},
	{"P5 a base that clones, and panics", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, echo)
		inner, calls := tr.Base, 0
		tr.Base = cloning(testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if calls++; calls == 2 {
				panic("base")
			}
			return inner.RoundTrip(r)
		}))
		for call := range 3 {
			body := newSend("payload")
			send := func() {
				resp, err := tr.RoundTrip(mustRequest(t, "PUT", s.URL, body))
				require.NoError(t, err)
				assert.Equal(t, "payload", finish(t, resp))
				assert.NoError(t, resp.Request.Context().Err())
			}
			if call == 1 {
				assert.PanicsWithValue(t, "base", send)
			} else {
				send()
			}
			synctest.Wait()
			assert.Positive(t, body.closed.Load())
		}
	}},
	{"P6 an error proves what each of its branches proves", func(t *testing.T, e contractEnv) {
		e.unlimited = true
		dial := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		for _, err := range []error{errors.Join(dial, io.EOF), errors.Join(io.EOF, dial), fmt.Errorf("%w: %w", io.EOF, dial), fmt.Errorf("wrapped: %w", errors.Join(dial, dial, syscall.EPIPE))} {
			base := plays(fails(err))
			_, got := e.transport(base).RoundTrip(request(t, "POST", strings.NewReader("once")))
			assert.Equal(t, err, got)
			assert.Equal(t, 1, base.attempts())
		}
		base := plays(fails(errors.Join(dial, dial)), replies(200))
		resp, err := e.transport(base).RoundTrip(request(t, "POST", strings.NewReader("once")))
		require.NoError(t, err)
		finish(t, resp)
	}},
	{"P6 an inner Transport's history is no proof", func(t *testing.T, e contractEnv) {
		e.unlimited = true
		dial := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		base := plays(fails(io.EOF), fails(dial))
		inner := e.transport(base)
		inner.Policy.IdempotentMethods = []string{"POST"}
		_, err := e.transport(inner).RoundTrip(request(t, "POST", strings.NewReader("once")))
		assert.Error(t, err)
		assert.Equal(t, 4, base.attempts(), "by the inner one alone")
	}},
	{"P7 a body at fault is the caller's fault", func(t *testing.T, e contractEnv) {
		for _, set := range []func(*http.Request){
			func(r *http.Request) { r.Body = io.NopCloser(brokenAt("payload", 3)) },
			func(r *http.Request) { r.ContentLength = 8 },
			func(r *http.Request) { r.Body = io.NopCloser(io.NewSectionReader(unreadable{3}, 0, 7)) },
		} {
			base := plays(fails(io.ErrUnexpectedEOF))
			tr := e.transport(base)
			req := request(t, "PUT", strings.NewReader("payload"))
			set(req)
			_, err := tr.RoundTrip(req)
			assert.Error(t, err)
			assert.NotErrorAs(t, err, new(*retrip.Error))
			assert.Equal(t, 1, base.attempts())
			assert.Empty(t, tr.HostStates())
		}
	}},
	{"P8 a scheme that the base knows", func(t *testing.T, e contractEnv) {
		alternate := plays(fails(io.EOF), replies(503), replies(200))
		base := &http.Transport{}
		base.RegisterProtocol("http+unix", alternate)
		resp, err := e.transport(base).RoundTrip(mustRequest(t, "GET", "http+unix://socket/", nil))
		require.NoError(t, err)
		finish(t, resp)
		assert.Equal(t, 3, alternate.attempts())
	}},
	{"P12 a body that ignores its Close", func(t *testing.T, e contractEnv) {
		end := make(chan struct{})
		defer close(end)
		body := &ownBody{read: func([]byte) (int, error) { <-end; return 0, io.EOF }}
		base := plays(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 503, Header: http.Header{}, ContentLength: -1, Body: body, Request: r}, nil
		}, replies(200))
		start := time.Now()
		resp, err := e.transport(base).RoundTrip(request(t, "GET", nil))
		require.NoError(t, err)
		finish(t, resp)
		assert.LessOrEqual(t, time.Since(start), 150*time.Millisecond)
		assert.EqualValues(t, 1, body.closed.Load())
	}},
	{"P17 an error never hides the one before it", func(t *testing.T, e contractEnv) {
		first, second := errors.New("first"), errors.New("second")
		tr := e.transport(plays(fails(first), fails(second), replies(503, "Retry-After: 5")))
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, errors.New("slo"))
		defer cancel()
		time.AfterFunc(4*time.Second, cancel)
		_, err := tr.RoundTrip(request(t, "GET", nil).WithContext(ctx))
		for _, want := range []error{first, second, context.Canceled} {
			assert.ErrorIs(t, err, want)
		}
		assert.Equal(t, 503, asError(t, err).StatusCode)
	}},
	{"P18 net/http's own sends are counted", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, func(http.ResponseWriter, *http.Request) {})
		sends := -1
		ctx := retrip.WithTrace(t.Context(), &retrip.Trace{Done: func(ev retrip.Event) { sends = ev.Sends }})
		resp, err := tr.RoundTrip(mustRequest(t, "GET", s.URL, nil).WithContext(ctx))
		require.NoError(t, err)
		finish(t, resp)
		assert.Equal(t, 1, sends)
	}},
	{"P19 one reason, the same everywhere", func(t *testing.T, e contractEnv) {
		h, _ := flaky(99, 500, nil)
		s, tr := e.serve(t, h)
		var reasons []retrip.Reason
		note := func(ev retrip.Event) { reasons = append(reasons, ev.Reason) }
		ctx := retrip.WithTrace(t.Context(), &retrip.Trace{Retry: note, GiveUp: note, Done: note})
		resp, err := tr.RoundTrip(mustRequest(t, "GET", s.URL, nil).WithContext(ctx))
		require.NoError(t, err)
		finish(t, resp)
		assert.Equal(t, []retrip.Reason{"server_error", "server_error", "server_error", "max_attempts", "max_attempts"}, reasons)
	}},
}

func TestContract(t *testing.T) {
	for _, row := range contract {
		for _, full := range []bool{false, true} {
			for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2, memhttp.H2C} {
				setUp := "zero"
				if full {
					setUp = "full"
				}
				bubbled(t, fmt.Sprintf("%s/%s/%s", row.name, setUp, proto), func(t *testing.T) {
					row.run(t, contractEnv{proto: proto, full: full})
				})
			}
		}
	}
}

// An upgraded connection only exists over HTTP/1.1.
func TestContract_P4_Upgrade(t *testing.T) {
	for _, full := range []bool{false, true} {
		for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS} {
			bubbled(t, fmt.Sprint(full, proto), func(t *testing.T) {
				e := contractEnv{proto: proto, full: full}
				s, tr := e.serve(t, upgradeEcho)
				ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
				defer cancel()
				req := mustRequest(t, "GET", s.URL, nil).WithContext(ctx)
				req.Header.Set("Connection", "Upgrade")
				req.Header.Set("Upgrade", "echo")
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
				conn, ok := resp.Body.(io.ReadWriteCloser)
				require.True(t, ok)
				// Longer than every timeout of the Transport.
				time.Sleep(time.Hour)
				_, err = io.WriteString(conn, "hello\n")
				require.NoError(t, err)
				line, err := bufio.NewReader(conn).ReadString('\n')
				require.NoError(t, err)
				assert.Equal(t, "hello\n", line)
				require.NoError(t, conn.Close())
			})
		}
	}
}

func upgradeEcho(w http.ResponseWriter, r *http.Request) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + r.Header.Get("Upgrade") + "\r\n\r\n")
	_ = rw.Flush()
	_, _ = io.Copy(conn, rw)
}

func TestContract_P8_Hopeless(t *testing.T) {
	for _, full := range []bool{false, true} {
		for _, proto := range []memhttp.Proto{memhttp.HTTPS, memhttp.HTTP2} {
			bubbled(t, fmt.Sprint(full, proto), func(t *testing.T) {
				s := memhttp.NewServer(t, proto, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
				base := s.Transport()
				base.TLSClientConfig = nil
				_, err := contractEnv{proto: proto, full: full}.transport(base).RoundTrip(mustRequest(t, "GET", s.URL, nil))
				var want *tls.CertificateVerificationError
				assert.ErrorAs(t, err, &want)
				assert.Equal(t, 1, s.Listener.Dials())
			})
		}
	}
}
