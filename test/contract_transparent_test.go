// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

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
	{"P5 a base that clones, and panics", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, play.Echo)
		inner, calls := tr.Base, 0
		tr.Base = cloning(testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if calls++; calls == 2 {
				panic("base")
			}
			return inner.RoundTrip(r)
		}))
		for call := range 3 {
			body := play.NewSend("payload")
			send := func() {
				resp := do(t, tr, play.MustRequest(t, "PUT", s.URL, body))
				assert.Equal(t, "payload", play.Finish(t, resp))
				assert.NoError(t, resp.Request.Context().Err())
			}
			if call == 1 {
				assert.PanicsWithValue(t, "base", send)
			} else {
				send()
			}
			synctest.Wait()
			assert.Positive(t, body.Closed.Load())
		}
	}},
}
