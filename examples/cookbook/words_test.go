// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// The API fails, answers what isn't HTTP, and hangs; everything is logged.
func TestPathSecret_IsNowhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, func(n int, w http.ResponseWriter, r *http.Request) {
			switch n {
			case 1:
				answer(w, 503, "")
			case 2:
				conn, _, _ := w.(http.Hijacker).Hijack()
				fmt.Fprint(conn, "what?\r\n\r\n")
				conn.Close()
			case 8:
			case 4:
				answer(w, 302, "", "Location", "../elsewhere")
			default:
				<-r.Context().Done()
			}
		})
		var log strings.Builder
		client := &http.Client{Transport: &retrip.Transport{
			Base:   PathSecret{a.base(), "12345:s/e?cret"},
			Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			Policy: retrip.Policy{MaxAttempts: 3, AttemptTimeout: time.Second},
		}}
		for range 2 {
			_, err := client.Get("https://api.telegram.org/bot{secret}/get%2FMe?x=1")
			require.Error(t, err)
			fmt.Fprint(&log, err)
		}
		assert.Equal(t, "/bot12345:s/e?cret/get/Me", a.requests()[0].path)
		assert.Equal(t, "/bot12345:s/e?cret/elsewhere", a.requests()[4].path, "after a redirect, too")
		resp, _ := get(t, client, "https://api.telegram.org/bot{secret}/getMe")
		assert.Equal(t, "/bot{secret}/getMe", resp.Request.URL.Path)
		assert.Contains(t, log.String(), "telegram")
		assert.NotContains(t, log.String(), "cret/")
	})
}

// A server closes idle connections after five seconds, just as a POST arrives.
func TestIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		last := map[string]time.Time{} // when a connection was used
		a := newAPI(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			before, used := last[r.RemoteAddr]
			last[r.RemoteAddr] = time.Now()
			if used && time.Since(before) >= 5*time.Second {
				panic(http.ErrAbortHandler)
			}
		})
		for idle, lost := range map[time.Duration]bool{90 * time.Second: true, 4 * time.Second: false} {
			base := a.Transport()
			base.IdleConnTimeout = idle
			client := &http.Client{Transport: &retrip.Transport{Base: base}}
			post(t, client, "http://shop.internal/", "one")
			time.Sleep(5 * time.Second)
			_, err := client.Post("http://shop.internal/", "text/plain", strings.NewReader("two"))
			assert.Equal(t, lost, err != nil, idle)
			client.CloseIdleConnections()
		}
	})
}

// One service behind a gateway fails. By its name in Request.Host alone, it takes the
// retries of the other.
func TestVia_ServicesBehindOneAddress(t *testing.T) {
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host == "bad.internal" || r.Header.Get("Attempt") == "" {
			answer(w, 503, "")
		}
	}))
	defer gateway.Close()
	address := gateway.Listener.Addr().String()
	for inURL, status := range map[bool]int{true: 200, false: 503} {
		client := &http.Client{Transport: &retrip.Transport{Base: Via(address), Policy: retrip.Policy{
			RetryHeader: "Attempt", Backoff: retrip.Backoff{Base: time.Millisecond, Cap: time.Millisecond},
		}}}
		send := func(service string) int {
			req := play.MustRequest(t, http.MethodGet, "http://"+service+"/", nil)
			if !inURL {
				req.URL.Host = address
			}
			resp, _ := do(t, client, req)
			return resp.StatusCode
		}
		for range 10 {
			assert.Equal(t, 503, send("bad.internal"))
		}
		assert.Equal(t, status, send("good.internal"))
		client.CloseIdleConnections()
	}
}

// Tenants use up their own limit, and then the limit of all.
func TestLimits(t *testing.T) {
	for scope, waits := range map[string]bool{"key": false, "all": true} {
		play.Bubble(t, scope, func(t *testing.T) {
			a := newAPI(t, func(n int, w http.ResponseWriter, _ *http.Request) {
				if n == 1 {
					answer(w, 429, "", "Retry-After", "20", "Scope", scope)
				}
			})
			client := Limits(a.base(), func(r *http.Request) string { return r.Header.Get("Tenant") },
				func(resp *http.Response) bool { return resp.Header.Get("Scope") == "all" })
			began := time.Now()
			var done sync.WaitGroup
			for _, tenant := range []string{"a", "a", "b", "b"} {
				done.Go(func() {
					req := play.MustRequest(t, http.MethodPost, "http://api.internal/", strings.NewReader("x"))
					req.Header.Set("Tenant", tenant)
					resp, _ := do(t, client, req)
					assert.Equal(t, 200, resp.StatusCode)
					assert.Equal(t, waits || tenant == "a", time.Since(began) >= 20*time.Second, tenant)
				})
				time.Sleep(time.Millisecond)
			}
			done.Wait()
			assert.Len(t, a.requests(), 5)
		})
	}
}
