// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// Which requests are sent again, when, and how that is reported.
var contractSafe = []contractRow{
	{"P6 only what is idempotent is repeated", func(t *testing.T, e contractEnv) {
		e.unlimited = true
		h, seen := play.Flaky(99, 503, nil)
		s, tr := e.serve(t, h)
		for method, want := range map[string]int32{"GET": 4, "HEAD": 4, "OPTIONS": 4, "TRACE": 4, "PUT": 4, "DELETE": 4, "QUERY": 4, "POST": 1, "PATCH": 1, "LOCK": 1} {
			seen.Store(0)
			play.Finish(t, do(t, tr, play.Must(http.NewRequest(method, s.URL, nil))))
			assert.Equal(t, want, seen.Load(), method)
		}
		for _, key := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
			for _, value := range [][]string{{"k"}, {}, nil} {
				seen.Store(0)
				req := play.Must(http.NewRequest("POST", s.URL, nil))
				req.Header[key] = value
				play.Finish(t, do(t, tr, req))
				assert.EqualValues(t, 4, seen.Load(), "%s %q", key, value)
			}
		}
	}},
	{"P7 the body byte for byte on every attempt", func(t *testing.T, e contractEnv) {
		payload := play.Pattern(60 << 10)
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
		for _, body := range []io.Reader{strings.NewReader(string(payload)), play.Stream(payload), io.NewSectionReader(strings.NewReader("--"+string(payload)+"--"), 2, int64(len(payload)))} {
			got = nil
			resp := do(t, tr, play.Must(http.NewRequest("PUT", s.URL, body)))
			play.Finish(t, resp)
			assert.Equal(t, 200, resp.StatusCode)
			require.Len(t, got, 3, "%T", body)
			for _, b := range got {
				assert.True(t, b == string(payload), "%T: %d bytes", body, len(b))
			}
		}
	}},
	{"P7 a body at fault is the caller's fault", func(t *testing.T, e contractEnv) {
		for _, set := range []func(*http.Request){
			func(r *http.Request) { r.Body = io.NopCloser(play.BrokenAt("payload", 3)) },
			func(r *http.Request) { r.ContentLength = 8 },
			func(r *http.Request) { r.Body = io.NopCloser(io.NewSectionReader(play.Unreadable{N: 3}, 0, 7)) },
		} {
			base := play.Base(play.Err(io.ErrUnexpectedEOF))
			tr := e.transport(base)
			req := play.Request(t, "PUT", strings.NewReader("payload"))
			set(req)
			_, err := tr.RoundTrip(req)
			assert.Error(t, err)
			assert.NotErrorAs(t, err, new(*retrip.Error))
			assert.Equal(t, 1, base.Attempts())
			assert.Empty(t, play.Held(tr))
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
			resp := do(t, tr, play.MustRequest(t, "GET", s.URL, nil))
			play.Finish(t, resp)
			if code == 429 || code >= 500 {
				assert.EqualValues(t, 2, seen.Load(), code)
				assert.Equal(t, 200, resp.StatusCode)
			} else {
				assert.EqualValues(t, 1, seen.Load(), code)
				assert.Equal(t, code, resp.StatusCode)
			}
		}
	}},
	{"P8 a certificate that isn't trusted", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, func(http.ResponseWriter, *http.Request) {})
		if !strings.HasPrefix(s.URL, "https") {
			t.Skip("there is none")
		}
		tr.Base.(*http.Transport).TLSClientConfig = nil
		_, err := tr.RoundTrip(play.MustRequest(t, "GET", s.URL, nil))
		assert.ErrorAs(t, err, new(*tls.CertificateVerificationError))
		assert.Equal(t, 1, s.Listener.Dials())
	}},
	{"P8 a scheme that the base knows", func(t *testing.T, e contractEnv) {
		alternate := play.Base(play.Err(io.EOF), play.Reply(503), play.Reply(200))
		base := &http.Transport{}
		base.RegisterProtocol("http+unix", alternate)
		play.Finish(t, do(t, e.transport(base), play.MustRequest(t, "GET", "http+unix://socket/", nil)))
		assert.Equal(t, 3, alternate.Attempts())
	}},
	{"P11 a timeout never cuts a body", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, func(w http.ResponseWriter, r *http.Request) {
			play.Flush(w)
			for i := range 10 {
				play.LetPass(time.Minute)
				fmt.Fprint(w, i)
				play.Flush(w)
			}
		})
		tr.Policy.AttemptTimeout, tr.Policy.Deadline = 200*time.Millisecond, time.Second
		resp := do(t, tr, play.MustRequest(t, "GET", s.URL, nil))
		assert.Equal(t, "0123456789", play.Finish(t, resp))
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
		play.Finish(t, do(t, tr, play.MustRequest(t, "GET", s.URL, nil).WithContext(ctx)))
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
			resp := do(t, tr, play.MustRequest(t, "GET", s.URL, nil))
			play.Finish(t, resp)
			assert.Equal(t, 200, resp.StatusCode)
		}
		assert.EqualValues(t, 120, seen.Load())
		assert.Equal(t, 1, s.Listener.Dials())
	}},
	{"P13 safe for concurrent use, nothing left behind", func(t *testing.T, e contractEnv) {
		e.unlimited = true
		var mu sync.Mutex
		left := map[string]int{} // remaining failures, by path
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
			play.Echo(w, r)
		})
		c := &http.Client{Transport: tr, Timeout: time.Minute}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				want := fmt.Sprint("body ", i)
				req, err := http.NewRequest("PUT", fmt.Sprint(s.URL, "/", i), play.Stream([]byte(want)))
				if !assert.NoError(t, err) {
					return
				}
				resp, err := c.Do(req)
				if assert.NoError(t, err) && assert.Equal(t, 200, resp.StatusCode) {
					assert.Equal(t, want, play.Finish(t, resp))
				}
			})
		}
		wg.Wait()
		// A bubble panics at its end if one of its goroutines is still running.
	}},
	{"P18 net/http's own sends are counted", func(t *testing.T, e contractEnv) {
		s, tr := e.serve(t, func(http.ResponseWriter, *http.Request) {})
		sends := -1
		ctx := retrip.WithTrace(t.Context(), &retrip.Trace{Done: func(ev retrip.Event) { sends = ev.Sends }})
		play.Finish(t, do(t, tr, play.MustRequest(t, "GET", s.URL, nil).WithContext(ctx)))
		assert.Equal(t, 1, sends)
	}},
}
