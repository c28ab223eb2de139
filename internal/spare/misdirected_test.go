// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// A 421 is about its connection: it is retried once, over another one, or not at all. It
// proves that the request hasn't been processed.
//
//retrip:promise P6 P8 P11
func TestMisdirected(t *testing.T) {
	noop := func(*freshWorld) {}
	for name, tt := range map[string]struct {
		set       func(w *freshWorld)
		misdirect int // connections that answer with a 421
		attempts  int
		status    int
	}{
		"retried":          {noop, 1, 2, 200},
		"everywhere":       {noop, 9, 2, 421},
		"by Classify":      {func(w *freshWorld) { w.transport.Policy.RetryOn, w.transport.Policy.Classify = nil, retries421 }, 1, 2, 200},
		"Final":            {func(w *freshWorld) { w.transport.Policy.Classify = final }, 1, 1, 421},
		"by default":       {func(w *freshWorld) { w.transport.Policy.RetryOn = nil }, 1, 1, 421},
		"plain":            {func(w *freshWorld) { w.transport.Policy.AttemptTimeout, w.transport.Trace = 0, nil }, 1, 2, 200},
		"not kept":         {func(w *freshWorld) { w.base.DisableKeepAlives = true }, 1, 2, 200},
		"another Base":     {func(w *freshWorld) { w.transport.Base = testenv.RoundTripper(w.base.RoundTrip) }, 1, 1, 421},
		"MaxConnsPerHost":  {func(w *freshWorld) { w.base.MaxConnsPerHost = 1 }, 1, 1, 421},
		"a single attempt": {func(w *freshWorld) { w.transport.Policy.MaxAttempts = 1 }, 1, 1, 421},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			eachBubble(t, name+" "+method, play.Protos, func(w *freshWorld) {
				var mu sync.Mutex
				conns, bodies := map[*memhttp.Conn]int{}, []string(nil)
				w.handle = func(rw http.ResponseWriter, r *http.Request) {
					mu.Lock()
					defer mu.Unlock()
					conn := memhttp.RequestConn(r)
					if conns[conn] == 0 {
						conns[conn] = len(conns) + 1
					}
					bodies = append(bodies, play.ReadAll(w.t, r.Body))
					if conns[conn] <= tt.misdirect {
						rw.WriteHeader(http.StatusMisdirectedRequest)
					}
				}
				w.transport.Policy.RetryOn = []int{421}
				var gaveUp []retrip.Reason
				w.transport.Trace.GiveUp = func(e retrip.Event) { gaveUp = append(gaveUp, e.Reason) }
				tt.set(w)
				for range 2 {
					clear(conns)
					bodies = nil
					resp := testenv.Do(w.t, w.transport, play.MustRequest(w.t, method, w.server.URL, strings.NewReader("x")))
					play.Finish(w.t, resp)
					assert.Equal(w.t, tt.status, resp.StatusCode)
					assert.Equal(w.t, strings.Repeat("x", tt.attempts), strings.Join(bodies, ""))
					assert.Len(w.t, conns, tt.attempts, "each attempt has its own connection")
				}
				if name != "a single attempt" {
					assert.Empty(w.t, gaveUp)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				assert.LessOrEqual(w.t, w.server.Listener.Open(), 1)
			})
		}
	}
}

// It is retried once, also if the connection of the retry is lost: what follows doesn't go
// back to the connection of the 421.
//
//retrip:promise P8 P11
func TestMisdirected_Lost(t *testing.T) {
	eachBubble(t, "lost", []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS}, func(w *freshWorld) {
		conns := map[*memhttp.Conn]bool{}
		w.handle = func(rw http.ResponseWriter, r *http.Request) {
			conn := memhttp.RequestConn(r)
			assert.False(w.t, conns[conn])
			if conns[conn] = true; len(conns) == 2 {
				conn.Close()
				panic(http.ErrAbortHandler)
			}
			rw.WriteHeader(http.StatusMisdirectedRequest)
		}
		w.transport.Policy.RetryOn = []int{421}
		resp := testenv.Do(w.t, w.transport, play.MustRequest(w.t, http.MethodGet, w.server.URL, nil))
		play.Finish(w.t, resp)
		assert.Equal(w.t, 421, resp.StatusCode)
		assert.Len(w.t, conns, 3)
	})
}

func retries421(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
	if resp != nil && resp.StatusCode == http.StatusMisdirectedRequest {
		return retrip.Retryable
	}
	return retrip.ByRule
}

func final(*http.Request, *http.Response, error) retrip.Verdict { return retrip.Final }
