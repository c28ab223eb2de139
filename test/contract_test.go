// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// contractEnv is the environment of a row of the contract: a protocol, and a
// Transport with default settings or with everything set.
type contractEnv struct {
	proto memhttp.Proto
	full  bool // with all options

	// unlimited switches the budget off, for a row with more failures than the
	// budget has tokens.
	unlimited bool
}

func (e contractEnv) transport(base http.RoundTripper) *retrip.Transport {
	if !e.full {
		tr := &retrip.Transport{Base: base}
		if e.unlimited {
			tr.Policy.Budget = retrip.Off
		}
		return tr
	}
	hook := func(retrip.Event) {}
	return &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			MaxAttempts: 4, Backoff: retrip.Backoff{Base: 50 * time.Millisecond, Cap: time.Second, Jitter: retrip.EqualJitter},
			Deadline: 10 * time.Minute, AttemptTimeout: time.Minute, MaxWait: 20 * time.Second, MaxReplayBody: 1 << 20,
			Budget: retrip.Off, Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1000},
			Classify: func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.ByRule },
		},
		Hosts:   map[string]retrip.Policy{"127.0.0.1": {Backoff: retrip.Backoff{Jitter: retrip.FullJitter}}, "*.example.com": {RetryOn: []int{408}}},
		Metrics: &retrip.Metrics{},
		Logger:  slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Trace:   &retrip.Trace{Attempt: hook, Retry: hook, GiveUp: hook, Done: hook, Host: func(retrip.HostState) {}},
	}
}

// serve starts a server with the handler h and returns a Transport that reaches
// it.
func (e contractEnv) serve(t *testing.T, h http.HandlerFunc) (*memhttp.Server, *retrip.Transport) {
	s := memhttp.NewServer(t, e.proto, h)
	base := s.Transport()
	t.Cleanup(base.CloseIdleConnections)
	return s, e.transport(base)
}

// contractRow is a row of the contract. Its name begins with the number of the
// promise that it guards.
type contractRow struct {
	name string
	run  func(t *testing.T, e contractEnv)
}

func TestContract(t *testing.T) {
	for _, row := range slices.Concat(contractTransparent, contractSafe) {
		for _, full := range []bool{false, true} {
			for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2, memhttp.H2C} {
				setUp := "zero"
				if full {
					setUp = "full"
				}
				play.Bubble(t, fmt.Sprintf("%s/%s/%s", row.name, setUp, proto), func(t *testing.T) {
					row.run(t, contractEnv{proto: proto, full: full})
				})
			}
		}
	}
}

// A caller and a base see the same with retrip as without it.
var contractTransparent = []contractRow{
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
		req := play.Must(http.NewRequest("GET", s.URL, nil))
		resp := do(t, tr, req)
		assert.Same(t, given, resp)
		assert.Same(t, req, resp.Request)
		assert.Equal(t, http.StatusTeapot, resp.StatusCode)
		assert.Equal(t, "short and stout", play.Finish(t, resp))
		assert.Equal(t, "42", resp.Trailer.Get("Sum"))
	}},
	{"P2 request never modified, body closed", func(t *testing.T, e contractEnv) {
		h, seen := play.Flaky(2, 503, play.Echo)
		s, tr := e.serve(t, h)
		body := play.NewSend("payload")
		req := play.Must(http.NewRequestWithContext(t.Context(), "PUT", s.URL, body))
		req.Header.Set("X-A", "b")
		before, header := *req, req.Header.Clone()
		resp := do(t, tr, req)
		assert.Equal(t, "payload", play.Finish(t, resp))
		synctest.Wait()
		assert.EqualValues(t, 3, seen.Load())
		assert.EqualValues(t, 1, body.Closed.Load())
		assert.Equal(t, header, req.Header)
		assert.Same(t, body, req.Body)
		assert.Nil(t, req.GetBody)
		assert.Equal(t, before.ContentLength, req.ContentLength)
		assert.Equal(t, before.Context(), req.Context())
	}},
	{"P3 the last response, unread, when attempts are used up", func(t *testing.T, e contractEnv) {
		h, seen := play.Flaky(99, 503, nil)
		s, tr := e.serve(t, h)
		resp, err := (&http.Client{Transport: tr}).Get(s.URL)
		require.NoError(t, err)
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, "later\n", play.Finish(t, resp))
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
		e2 := play.AsError(t, err)
		assert.Equal(t, 4, e2.Attempts)
		assert.Equal(t, retrip.ReasonMaxAttempts, e2.Reason)
		require.Len(t, given, 5)
		for _, g := range given[1:] {
			assert.ErrorIs(t, err, g)
		}
	}},
	{"P4 CloseIdleConnections reaches the base", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, func(http.ResponseWriter, *http.Request) {})
		c := &http.Client{Transport: tr}
		resp, err := c.Get(s.URL)
		require.NoError(t, err)
		play.Finish(t, resp)
		synctest.Wait()
		assert.Equal(t, 1, s.Listener.Open())
		c.CloseIdleConnections()
		synctest.Wait()
		assert.Zero(t, s.Listener.Open())
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
		req := play.MustRequest(t, "PUT", s.URL, strings.NewReader("payload"))
		req.Header.Set("X-A", "b")
		play.Finish(t, do(t, tr, req))
		assert.EqualValues(t, 3, seen.Load())
	}},
	{"P4 an upgraded connection outlives every timeout", func(t *testing.T, e contractEnv) {
		if e.proto != memhttp.HTTP1 && e.proto != memhttp.HTTPS {
			t.Skip("there is none over HTTP/2")
		}
		s, tr := e.serve(t, func(w http.ResponseWriter, r *http.Request) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_ = rw.Flush()
			_, _ = io.Copy(conn, rw)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		req := play.MustRequest(t, "GET", s.URL, nil).WithContext(ctx)
		req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"echo"}}
		resp := do(t, tr, req)
		require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
		conn := resp.Body.(io.ReadWriteCloser)
		play.LetPass(time.Hour)
		_, err := io.WriteString(conn, "hello\n")
		require.NoError(t, err)
		line, err := bufio.NewReader(conn).ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, "hello\n", line)
		require.NoError(t, conn.Close())
	}},
	{"P5 nothing from the base, and a panic of it", func(t *testing.T, e contractEnv) {
		tr := e.transport(play.Base(play.Err(nil), func(*http.Request) (*http.Response, error) { panic("base") }, play.Reply(200)))
		body := play.NewSend("x")
		_, err := tr.RoundTrip(play.Request(t, "PUT", body))
		assert.ErrorContains(t, err, "neither a response nor an error")
		assert.EqualValues(t, 1, body.Closed.Load())
		body = play.NewSend("x")
		assert.PanicsWithValue(t, "base", func() { _, _ = tr.RoundTrip(play.Request(t, "PUT", body)) })
		assert.Positive(t, body.Closed.Load())
		play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
	}},
}
