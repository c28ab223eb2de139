// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"cmp"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/incoming"
	"github.com/retrip/retrip/internal/play"
)

// The rules for Retry-After apply to every dialect.
//
//retrip:promise P9
func TestDialects_ThroughTheTransport(t *testing.T) {
	for _, tt := range []struct {
		name    string
		dialect string
		status  int
		lines   []string
		least   time.Duration // before the second attempt
		want    int           // attempts
	}{
		{"never earlier than the server said", "github", 403, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 20"}, 20 * time.Second, 2},
		{"longer than MaxWait: the answer at once", "github", 403, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 3000"}, 0, 1},
		{"an ordinary 403 is final", "github", 403, nil, 0, 1},
		{"the server says don't", "openai", 503, []string{"X-Should-Retry: false"}, 0, 1},
		{"the server says do", "openai", 409, []string{"X-Should-Retry: true", "Retry-After-Ms: 700"}, 700 * time.Millisecond, 2},
		{"two lines joined", "openai", 503, []string{"Retry-After: 5, 20"}, 20 * time.Second, 2},
		{"an old form", "ratelimit", 429, []string{"RateLimit: limit=5, remaining=0, reset=20"}, 20 * time.Second, 2},
		{"whatever the error", "openai", 400, []string{"X-Should-Retry: true"}, 0, 2},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			base := play.Base(play.Reply(tt.status, tt.lines...), play.Reply(200))
			resp := do(t, &retrip.Transport{Base: base, Policy: retrip.Policy{Dialects: []string{tt.dialect}}}, play.Request(t, http.MethodGet, nil))
			play.Finish(t, resp)
			require.Equal(t, tt.want, base.Attempts())
			if tt.want == 1 {
				assert.Equal(t, tt.status, resp.StatusCode)
			} else {
				assert.GreaterOrEqual(t, base.At[1], tt.least)
			}
		})
	}
}

// The log names the header of a dialect that isn't understood, like other records: once,
// and then once a minute. Headers of dialects that the policy doesn't name are none of its
// business.
//
//retrip:promise P19
func TestDialects_NotUnderstood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := []string{"X-RateLimit-Reset: in a while, " + strings.Repeat("x", 200), "RateLimit: soon"}
		for _, tt := range []struct {
			dialects []string
			want     int
		}{
			{[]string{"x-ratelimit-reset"}, 1},
			{[]string{"github", "ratelimit"}, 1},
			{[]string{"openai"}, 0},
			{nil, 0},
		} {
			var log bytes.Buffer
			base := play.Base(play.Reply(429, lines...), play.Reply(503, lines...), play.Reply(200))
			tr := &retrip.Transport{Base: base, Logger: slog.New(slog.NewTextHandler(&log, nil)), Policy: retrip.Policy{Dialects: tt.dialects}}
			play.Finish(t, do(t, tr, play.Request(t, http.MethodGet, nil)))
			const said = `level=INFO msg="retrip: header not understood" method=GET url=http://example.com/path policy=default attempt=1 reason=X-Ratelimit-Reset status=429 error="X-Ratelimit-Reset is \"in a while, `
			assert.Equal(t, tt.want, strings.Count(log.String(), said+strings.Repeat("x", 88)+`\""`), "%v: %s", tt.dialects, &log)
			assert.Equal(t, tt.want, strings.Count(log.String(), "not understood"))
		}
	})
}

// A request made on behalf of an incoming retry says so to the next server,
// from its first attempt on.
//
//retrip:promise P2 P4
func TestRetryHeader_CountsOnFromTheIncomingAttempt(t *testing.T) {
	for _, tt := range []struct {
		incoming int
		policy   retrip.Policy
		want     []string
	}{
		{1, retrip.Policy{RetryHeader: "retry-attempt"}, []string{"", "2", "3", "4"}},
		{3, retrip.Policy{RetryHeader: "retry-attempt"}, []string{"3", "4", "5", "6"}},
		{3, retrip.Policy{RetryHeader: "retry-attempt", MaxAttempts: 1}, []string{"3"}},
		{3, retrip.Policy{MaxAttempts: 1}, []string{""}},
	} {
		base := play.Base(play.Reply(503))
		tt.policy.Backoff.Base = retrip.Off
		ctx, _ := incoming.WithAttempt(t.Context(), tt.incoming)
		ctx = retrip.WithPolicy(ctx, retrip.Policy{MaxAttempts: cmp.Or(tt.policy.MaxAttempts, 4)})
		req := play.Request(t, http.MethodGet, nil).WithContext(ctx)
		drop(t, &retrip.Transport{Base: base, Policy: tt.policy}, req)
		var seen []string
		for _, header := range base.Header {
			seen = append(seen, strings.Join(header["Retry-Attempt"], "+"))
		}
		assert.Equal(t, tt.want, seen)
		assert.Empty(t, req.Header, "the caller's request is unchanged")
	}
}

// At a gate, a refusal in a server's own words holds back the others as a 429 does, for as
// long as it says; one of all requests holds back every key.
//
//retrip:promise P9 P23
func TestDialects_AtAGate(t *testing.T) {
	refuse := func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
		if resp != nil && resp.StatusCode == 400 && strings.Contains(resp.Header.Get("X-Amzn-Errortype"), "Throttling") {
			return retrip.Throttled
		}
		return retrip.ByRule
	}
	for _, tt := range []struct {
		name         string
		policy       retrip.Policy
		status       int
		lines        []string
		mine, others time.Duration // how long requests of the same key and of others wait
	}{
		{"GitHub's 403", retrip.Policy{Dialects: []string{"github"}}, 403, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 20"}, 20 * time.Second, 0},
		{"GitHub's 403 with Retry-After", retrip.Policy{Dialects: []string{"github"}}, 403, []string{"Retry-After: 20"}, 20 * time.Second, 0},
		{"GitHub's 403 about a permission", retrip.Policy{Dialects: []string{"github"}}, 403, []string{"X-RateLimit-Remaining: 9", "X-RateLimit-Reset: 20"}, 0, 0},
		{"a 418", retrip.Policy{RetryOn: []int{418}}, 418, []string{"Retry-After: 20"}, 20 * time.Second, 0},
		{"a 418 that isn't retried", retrip.Policy{}, 418, []string{"Retry-After: 20"}, 0, 0},
		{"a 409 about its resource", retrip.Policy{RetryOn: []int{409}}, 409, []string{"Retry-After: 20"}, 0, 0},
		{"a 400 with a code", retrip.Policy{Classify: refuse}, 400, []string{"X-Amzn-ErrorType: ThrottlingException", "Retry-After: 20"}, 20 * time.Second, 0},
		{"Discord's limit of a route", retrip.Policy{Dialects: []string{"discord"}}, 429, []string{"Retry-After: 20", "X-RateLimit-Scope: user"}, 20 * time.Second, 0},
		{"Discord's limit of all", retrip.Policy{Dialects: []string{"discord"}}, 429, []string{"Retry-After: 20", "X-RateLimit-Global: true"}, 20 * time.Second, 20 * time.Second},
		{"a limit of all without a dialect", retrip.Policy{}, 429, []string{"Retry-After: 20", "X-RateLimit-Global: true"}, 20 * time.Second, 0},
		{"a 503", retrip.Policy{}, 503, []string{"Retry-After: 20"}, 20 * time.Second, 20 * time.Second},
	} {
		bubble(t, tt.name, func(t *testing.T) {
			p := tt.policy
			p.MaxAttempts = 2
			p.Gate = retrip.Gate{Enabled: retrip.On, Key: func(r *http.Request) string { return r.Header.Get("Route") }}
			tr := &retrip.Transport{Base: play.Base(play.Reply(tt.status, tt.lines...), play.Reply(200)), Policy: p}
			start := time.Now()
			send := func(route string) (waited time.Duration) {
				req := play.Request(t, http.MethodGet, nil)
				req.Header.Set("Route", route)
				play.Finish(t, do(t, tr, req))
				return time.Since(start)
			}
			var requests sync.WaitGroup
			requests.Go(func() { send("a") })
			synctest.Wait()
			for range 3 {
				requests.Go(func() {
					assert.GreaterOrEqual(t, send("a"), tt.mine)
					assert.True(t, tt.mine > 0 || time.Since(start) == 0)
				})
				requests.Go(func() {
					assert.GreaterOrEqual(t, send("b"), tt.others)
					assert.True(t, tt.others > 0 || time.Since(start) == 0)
				})
			}
			requests.Wait()
			assert.Equal(t, 5.0, play.Must(tr.HostState("example.com:80")).Tokens, "a refusal costs nothing")
		})
	}
}
