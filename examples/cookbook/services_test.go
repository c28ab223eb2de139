// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/play"

	"github.com/retrip/retrip/internal/testenv"
)

func TestLLMs_WaitsAsOpenAISaysAndStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n == 1 {
				answer(w, 429, `{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}`,
					"Retry-After", "13", "Retry-After-Ms", "12250", "X-Ratelimit-Remaining-Requests", "0", "X-Ratelimit-Reset-Requests", "12.25s")
				return
			}
			if n == 2 { // the tokens are used up, too, and nothing but the dialect says until when
				answer(w, 429, `{"error":{"type":"tokens","code":"rate_limit_exceeded"}}`, "X-Ratelimit-Remaining-Requests", "100",
					"X-Ratelimit-Reset-Requests", "1m0s", "X-Ratelimit-Remaining-Tokens", "0", "X-Ratelimit-Reset-Tokens", "20.5s")
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 5 { // longer than an attempt may wait for its headers
				fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"%d\"}}]}\n\n", i)
				w.(http.Flusher).Flush()
				time.Sleep(time.Minute)
			}
			io.WriteString(w, "data: [DONE]\n\n")
		})
		resp, stream := post(t, LLMs(a.base()), "https://api.openai.com/v1/chat/completions", `{"stream":true}`)
		assert.Equal(t, 200, resp.StatusCode)
		assert.Contains(t, stream, "[DONE]")
		require.Len(t, a.requests(), 3)
		assert.GreaterOrEqual(t, a.gap(1), 12250*time.Millisecond)
		assert.GreaterOrEqual(t, a.gap(2), 20500*time.Millisecond)
		assert.Less(t, a.gap(2), 40*time.Second, "not until the requests' limit is reset, which has some left")
		assert.Equal(t, `{"stream":true}`, a.requests()[2].body)
	})
}

// What a server says again and again, how often a client that a recipe makes asks, and
// that it passes the last response on.
func TestServices_WhatIsRepeated(t *testing.T) {
	const chat, mesh = "https://api.openai.com/v1/chat/completions", "http://orders.shop.svc.cluster.local/"
	for name, tt := range map[string]struct {
		recipe func(http.RoundTripper) *http.Client
		method string
		url    string
		status int
		header []string
		sends  int
		body   string
	}{
		"no credit":                      {LLMs, "POST", chat, 429, nil, 1, `{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}`},
		"a limit":                        {LLMs, "POST", chat, 429, nil, 4, `{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}`},
		"Anthropic is overloaded":        {LLMs, "POST", "https://api.anthropic.com/v1/messages", 529, []string{"X-Should-Retry", "true"}, 4, "{}"},
		"Anthropic has a limit":          {LLMs, "POST", "https://api.anthropic.com/v1/messages", 429, []string{"Retry-After", "45"}, 4, "{}"},
		"the word not to retry":          {LLMs, "POST", chat, 429, []string{"X-Should-Retry", "false"}, 1, "{}"},
		"a failure that may have worked": {LLMs, "POST", chat, 500, nil, 1, "{}"},
		"a request that is wrong":        {LLMs, "POST", chat, 400, nil, 1, "{}"},
		"a wait that is too long":        {LLMs, "POST", chat, 429, []string{"Retry-After", "3600"}, 1, "{}"},
		"no limit, but forbidden":        {GitHub, "GET", "https://api.github.com/user", 403, []string{"X-RateLimit-Remaining", "4711"}, 1, `{"message":"Resource not accessible by integration"}`},
		"longer than the callers have":   {Mesh, "GET", mesh, 503, []string{"Retry-After", "1"}, 1, ""},
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			a := newAPI(t, func(_ int, w http.ResponseWriter, _ *http.Request) { answer(w, tt.status, tt.body, tt.header...) })
			start := time.Now()
			resp, body := do(t, tt.recipe(a.base()), play.MustRequest(t, tt.method, tt.url, nil))
			assert.Equal(t, tt.status, resp.StatusCode)
			assert.Equal(t, tt.body, body, "the caller gets the last response")
			assert.Len(t, a.requests(), tt.sends)
			assert.Equal(t, tt.sends == 1, time.Since(start) == 0, "it doesn't wait in vain")
		})
	}
}

func TestGitHub_ThePrimaryLimitIsWaitedForAndThenItSucceeds(t *testing.T) {
	for _, status := range []int{403, 429} {
		testenv.Bubble(t, strconv.Itoa(status), func(t *testing.T) {
			reset := time.Now().Add(42 * time.Minute)
			a := newAPI(t, func(n int, w http.ResponseWriter, _ *http.Request) {
				if n == 2 { // others have used up the next hour's quota
					assert.False(t, time.Now().Before(reset), "none is too early")
					reset = time.Now().Add(64 * time.Minute)
				}
				if n < 3 {
					answer(w, status, `{"message":"API rate limit exceeded for user ID 1."}`, "X-RateLimit-Limit", "5000",
						"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
					return
				}
				answer(w, 200, `{"login":"octocat"}`)
			})
			resp, body := post(t, GitHub(a.base()), "https://api.github.com/user/repos", "{}")
			assert.Equal(t, 200, resp.StatusCode)
			assert.Contains(t, body, "octocat")
			assert.False(t, time.Now().Before(reset))
			assert.Len(t, a.requests(), 3)
		})
	}
}

func TestGitHub_ASecondaryLimitIsGivenAMinuteAndThenMore(t *testing.T) {
	for name, tt := range map[string]struct {
		method string
		status int
		header []string
	}{
		"GET":                   {http.MethodGet, 429, nil},
		"POST":                  {http.MethodPost, 429, nil},
		"GET, with Retry-After": {http.MethodGet, 429, []string{"Retry-After", "60"}},
		"GET, as a 403":         {http.MethodGet, 403, nil},
		"POST, as a 403":        {http.MethodPost, 403, nil},
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			a := newAPI(t, func(n int, w http.ResponseWriter, _ *http.Request) {
				if n < 5 {
					answer(w, tt.status, `{"message":"You have exceeded a secondary rate limit."}`, append(tt.header, "X-RateLimit-Remaining", "4711")...)
				}
			})
			req := play.MustRequest(t, tt.method, "https://api.github.com/repos/o/r/issues", nil)
			resp, _ := do(t, GitHub(a.base()), req)
			assert.Equal(t, 200, resp.StatusCode)
			require.Len(t, a.requests(), 5)
			for i, least := range []time.Duration{time.Minute, time.Minute, 2 * time.Minute, 4 * time.Minute} {
				assert.GreaterOrEqual(t, a.gap(i+1), least, "wait %d", i+1)
			}
		})
	}
}

// The charge goes on after its connection has broken or its attempt has timed out, and until
// it is made, the key is refused as "in progress".
func TestCharge_OneChargeHoweverOftenItIsSent(t *testing.T) {
	for name, takes := range map[string]time.Duration{"the connection breaks": 0, "it takes 20 s": 20 * time.Second, "it takes 50 s": 50 * time.Second} {
		testenv.Bubble(t, name, func(t *testing.T) {
			var mu sync.Mutex
			ready := map[string]time.Time{}
			a := newAPI(t, func(n int, w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				key := r.Header.Get("Idempotency-Key")
				at, again := ready[key]
				if !again {
					ready[key] = time.Now().Add(takes)
				}
				mu.Unlock()
				switch {
				case !again && takes == 0:
					panic(http.ErrAbortHandler)
				case !again:
					time.Sleep(takes)
				case time.Now().Before(at):
					answer(w, 409, `{"error":{"message":"a request with this key is in progress"}}`)
					return
				}
				answer(w, 200, `{"id":"pi_1"}`)
			})
			resp, err := Charge(t.Context(), Payments(a.base()), "order-1", url.Values{"amount": {"2000"}})
			require.NoError(t, err)
			assert.JSONEq(t, `{"id":"pi_1"}`, play.Finish(t, resp))
			assert.Len(t, ready, 1)
			for _, r := range a.requests() {
				assert.Equal(t, "amount=2000", r.body)
			}
		})
	}
}

// Slack refuses again after the first pause, and a later pause is too long.
func TestSlack_OthersWaitToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n < 3 || n > 12 {
				answer(w, 429, `{"ok":false,"error":"ratelimited"}`, "Retry-After", []string{"30", "3600"}[n/13])
				return
			}
			answer(w, 200, `{"ok":true}`)
		})
		client := Slack(a.base())
		var done sync.WaitGroup
		for i := range 10 {
			done.Go(func() {
				time.Sleep(time.Duration(i) * time.Second)
				_, body := post(t, client, "https://slack.com/api/chat.postMessage", `{"text":"hello"}`)
				assert.Contains(t, body, `"ok":true`)
			})
		}
		done.Wait()
		assert.Len(t, a.requests(), 12, "of ten messages, two were refused: later ones know the pause")
		began := time.Now()
		resp, _ := post(t, client, "https://slack.com/api/chat.postMessage", `{"text":"hello"}`)
		assert.Equal(t, 429, resp.StatusCode)
		assert.Less(t, time.Since(began), time.Minute)
	})
}

// Each route has a limit, which holds back only its own requests, and all have one that holds
// back everything.
func TestDiscord_OneLimitForARouteAndOneForAll(t *testing.T) {
	const a, b = "https://discord.com/api/v10/channels/1/messages", "https://discord.com/api/v10/channels/2/messages/3/crosspost"
	for scope, waits := range map[string]bool{"user": false, "global": true} {
		testenv.Bubble(t, scope, func(t *testing.T) {
			api := newAPI(t, func(n int, w http.ResponseWriter, _ *http.Request) {
				if n == 1 {
					answer(w, 429, `{"message":"You are being rate limited.","retry_after":20.5}`, "Retry-After", "21", "X-RateLimit-Scope", scope,
						"X-RateLimit-Remaining", "0", "X-RateLimit-Reset-After", "20.5")
				}
			})
			client, start := Discord(api.base()), time.Now()
			var done sync.WaitGroup
			for _, url := range []string{a, a, b, b} {
				done.Go(func() {
					resp, _ := post(t, client, url, `{"content":"hello"}`)
					assert.Equal(t, 200, resp.StatusCode)
					assert.Equal(t, waits || url == a, time.Since(start) >= 21*time.Second, url)
				})
				time.Sleep(time.Millisecond)
			}
			done.Wait()
			assert.Len(t, api.requests(), 5, "one was refused")
		})
	}
}

// upload uploads a file as docs/cookbook.md says.
func upload(ctx context.Context, client *http.Client, url string, file *os.File) (*http.Response, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, file)
	if err != nil {
		return nil, err
	}
	req.ContentLength = info.Size()
	return client.Do(req)
}

// TestObjectStore_SignsEachAttempt uses a store that refuses a signature for
// another time or another length.
func TestObjectStore_SignsEachAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		content := strings.Repeat("content ", 100_000)
		a := newAPI(t, func(n int, w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Amz-Date") != time.Now().UTC().Format("20060102T150405Z") || r.ContentLength != int64(len(content)) {
				answer(w, 403, "<Error><Code>RequestTimeTooSkewed</Code></Error>")
			} else if n < 5 {
				answer(w, 503, "<Error><Code>SlowDown</Code></Error>")
			}
		})
		name := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
		file, err := os.Open(name)
		require.NoError(t, err)
		defer file.Close()
		client := ObjectStore(a.base(), func(req *http.Request) error {
			req.Header.Set("X-Amz-Date", time.Now().UTC().Format("20060102T150405Z"))
			return nil
		})
		resp, err := upload(t.Context(), client, "https://bucket.s3.eu-central-1.amazonaws.com/key", file)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, 200, resp.StatusCode)
		require.Len(t, a.requests(), 5)
		for _, r := range a.requests() {
			assert.True(t, r.body == content, "the whole file")
		}
	})
}

func TestScraper_OneHostHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		a := newAPI(t, func(_ int, w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Host == "busy.example.com" && time.Since(began) < time.Minute:
				answer(w, 503, "", "Retry-After", "60")
			case r.Host == "down.example.com":
				answer(w, 502, "")
			case r.Host == "hangs.example.com":
				<-r.Context().Done()
			}
		})
		client := Scraper(a.base())
		var done sync.WaitGroup
		for i := range 100 {
			for host, want := range map[string]struct {
				status int
				within time.Duration
			}{"busy": {200, time.Hour}, "down": {502, time.Hour}, "well": {200, time.Second}, "hangs": {0, 61 * time.Second}} {
				done.Go(func() {
					time.Sleep(time.Duration(i) * 100 * time.Millisecond)
					start, status := time.Now(), 0
					if resp, err := client.Get("https://" + host + ".example.com/"); err == nil {
						status = resp.StatusCode
						resp.Body.Close()
					}
					if host != "down" { // whose breaker opens
						assert.Equal(t, want.status, status, host)
					}
					assert.LessOrEqual(t, time.Since(start), want.within, host)
				})
			}
		}
		done.Wait()
		sends := map[string]int{}
		for _, r := range a.requests() {
			sends[r.host]++
		}
		assert.LessOrEqual(t, sends["busy.example.com"], 102)
		assert.Less(t, sends["down.example.com"], 30, "of 100 pages")
	})
}

func TestMesh_SaysWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, func(n int, _ http.ResponseWriter, r *http.Request) {
			if n == 1 {
				<-r.Context().Done() // hangs
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://orders.shop.svc.cluster.local/", nil)
		require.NoError(t, err)
		resp, _ := do(t, Mesh(a.base()), req)
		assert.Equal(t, 200, resp.StatusCode)
		require.Len(t, a.requests(), 2)
		first, second := a.requests()[0].header, a.requests()[1].header
		assert.Equal(t, "400", first.Get("X-Envoy-Upstream-Rq-Timeout-Ms"))
		assert.Empty(t, first.Get("Retry-Attempt"))
		left, err := strconv.Atoi(second.Get("X-Envoy-Upstream-Rq-Timeout-Ms"))
		require.NoError(t, err)
		assert.True(t, 220 <= left && left <= 250, "%d", left)
		assert.Equal(t, "2", second.Get("Retry-Attempt"))
	})
}
