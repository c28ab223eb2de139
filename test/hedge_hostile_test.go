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
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

// What a server says to the attempt that doesn't count holds for the host, as it would
// without a hedge.
//
//retrip:promise P9 P21
func TestHedge_Overheard(t *testing.T) {
	for name, legs := range map[string]func(refused leg) []leg{
		"the hedge, first is good": func(r leg) []leg { return []leg{good(4), r} },
		"the first, hedge is good": func(r leg) []leg { return []leg{r, good(2)} },
		"the hedge, first fails":   func(r leg) []leg { return []leg{bad(2, 500), r} },
		"the first, hedge fails":   func(r leg) []leg { return []leg{r, bad(2, 500)} },
		"the hedge, first breaks":  func(r leg) []leg { return []leg{broken(2), r} },
		"the first, hedge breaks":  func(r leg) []leg { return []leg{r, broken(2)} },
		"final":                    func(r leg) []leg { return []leg{r, good(2)} }, // Classify says that nothing is retried
	} {
		for _, gate := range []retrip.Switch{retrip.Off, retrip.On} {
			for _, status := range []int{503, 429, 500} {
				bubble(t, fmt.Sprintf("%s, gate %v, %d", name, gate, status), func(t *testing.T) {
					policy := retrip.Policy{MaxAttempts: 2, Gate: retrip.Gate{Enabled: gate}}
					if name == "final" {
						policy.Classify = func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.Final }
					}
					tr, base := hedging(t, policy)
					base.legs = legs(leg{after: of(2), status: status, header: http.Header{"Retry-After": {"7"}}})
					drop(t, tr, get(t.Context()))
					assert.Len(t, base.seen, 2)
					paused := play.Gather(t, tr.Metrics)["default"]["pauses_total"]
					if status == 500 || status == 429 && gate == retrip.Off || name == "final" {
						assert.Zero(t, paused, "the answer is about its own request")
						return
					}
					state := play.Must(tr.HostState("example.com:80"))
					assert.EqualValues(t, 1, paused)
					assert.InDelta(t, 7, state.PausedFor.Seconds(), 0.2)
					base.script(leg{status: 503}, leg{status: 200})
					began := time.Now()
					try(tr, get(t.Context()))
					assert.Greater(t, time.Since(began), 6500*time.Millisecond, "the retry, or the request, waits")
				})
			}
		}
	}
}

// It holds as soon as it is said: a retry of another request doesn't go out while the other
// attempt goes on.
//
//retrip:promise P9 P21
func TestHedge_OverheardAtOnce(t *testing.T) {
	refused := leg{after: 2 * usual, status: 503, header: http.Header{"Retry-After": {"7"}}}
	for name, legs := range map[string][]leg{"the first": {refused, good(10)}, "the hedge": {good(10), refused}} {
		for _, gate := range []retrip.Switch{retrip.Off, retrip.On} {
			bubble(t, fmt.Sprintf("%s, gate %v", name, gate), func(t *testing.T) {
				tr, base := hedging(t, retrip.Policy{Gate: retrip.Gate{Enabled: gate}})
				base.script(legs...)
				go drop(t, tr, get(t.Context()))
				time.Sleep(5 * usual)
				assert.Equal(t, 1, base.running(), "the race goes on")
				told := time.Now().Add(-2 * usual)
				base.script(leg{status: 500})
				drop(t, tr, get(t.Context()))
				assert.Greater(t, time.Since(told), 7*time.Second)
				assert.EqualValues(t, 1, play.Gather(t, tr.Metrics)["default"]["pauses_total"])
			})
		}
	}
}

// A failed first attempt doesn't wait for ever for its hedge, which may hang, or may want
// the very connection that the failure holds. The request is retried.
//
//retrip:promise P21
func TestHedge_FailureWaits(t *testing.T) {
	now := retrip.Backoff{Base: retrip.Off}
	bubble(t, "hangs", func(t *testing.T) {
		tr, base := hedging(t, retrip.Policy{Backoff: now})
		for _, first := range []leg{bad(2, 503), broken(2)} {
			base.script(first, hangs, good(1))
			began := time.Now()
			drop(t, tr, get(t.Context()))
			assert.Less(t, time.Since(began), 40*usual)
			synctest.Wait()
			assert.Zero(t, base.open.Load())
			assert.Zero(t, base.running())
		}
		m := counts(t, tr.Metrics)
		assert.EqualValues(t, 2, m["requests_total recovered"])
		assert.EqualValues(t, 2, m["hedges_total failed"])
		assert.EqualValues(t, 2, m["attempts_total timeout"])
	})
	bubble(t, "one connection", func(t *testing.T) {
		var n atomic.Int32
		s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(usual)
			if n.Add(1) == 21 {
				time.Sleep(usual)
				w.WriteHeader(503)
				_, _ = io.WriteString(w, strings.Repeat("x", 100<<10))
				return
			}
			_, _ = io.WriteString(w, "ok")
		}))
		base := s.Transport()
		base.MaxConnsPerHost = 1
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Hedge: 0.2, Backoff: now}, Metrics: &retrip.Metrics{}}
		for range 20 {
			getText(t, tr, s.URL)
		}
		began := time.Now()
		assert.Equal(t, "ok", getText(t, tr, s.URL))
		assert.Less(t, time.Since(began), 40*usual)
		assert.EqualValues(t, 1, counts(t, tr.Metrics)["requests_total recovered"])
		tr.CloseIdleConnections()
	})
}
