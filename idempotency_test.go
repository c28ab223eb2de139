// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// A policy may declare methods and requests idempotent, or not idempotent.
func TestIdempotent_Policy(t *testing.T) {
	no := func(*http.Request) bool { return false }
	yes := func(*http.Request) bool { return true }
	for _, tt := range []struct {
		name   string
		method string
		change func(*retrip.Policy)
		want   int
	}{
		{"a POST isn't", "POST", func(*retrip.Policy) {}, 1},
		{"a CONNECT isn't", "CONNECT", func(*retrip.Policy) {}, 1},
		{"a QUERY is (RFC 10008)", "QUERY", func(*retrip.Policy) {}, 3},
		{"a QUERY in lower case isn't", "query", func(*retrip.Policy) {}, 1},
		{"methods are case-sensitive", "get", func(*retrip.Policy) {}, 1},
		{"no method is GET", "", func(*retrip.Policy) {}, 3},
		{"further methods", "REPORT", func(p *retrip.Policy) { p.IdempotentMethods = []string{"REPORT"} }, 3},
		{"declared", "POST", func(p *retrip.Policy) { p.Idempotent = yes }, 3},
		{"forbidden", "GET", func(p *retrip.Policy) { p.Idempotent = no }, 1},
		{"forbidden, but vouched for", "GET", func(p *retrip.Policy) { p.Idempotent = no; p.Unprocessed = []int{503} }, 3},
		{"unprocessed", "POST", func(p *retrip.Policy) { p.Unprocessed = []int{503} }, 3},
		{"another status unprocessed", "POST", func(p *retrip.Policy) { p.Unprocessed = []int{429} }, 1},
		{"Classify vouches", "POST", func(p *retrip.Policy) {
			p.Classify = func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
				if resp.StatusCode == 503 {
					return retrip.NotProcessed
				}
				return retrip.ByRule
			}
		}, 3},
		{"Classify doesn't vouch", "POST", func(p *retrip.Policy) {
			p.Classify = func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.Retryable }
		}, 1},
		{"a key of ours", "POST", func(p *retrip.Policy) { p.IdempotencyKey = retrip.On }, 3},
	} {
		bubbled(t, tt.name, func(t *testing.T) {
			base := plays(replies(503), replies(503), replies(200))
			resp, err := (&retrip.Transport{Base: base, Policy: with(tt.change)}).RoundTrip(&http.Request{
				Method: tt.method, URL: &url.URL{Scheme: "http", Host: "example.com"}, Header: http.Header{}})
			require.NoError(t, err)
			finish(t, resp)
			assert.Equal(t, tt.want, base.attempts())
		})
	}
}

// Every attempt carries the same key, also if it is the caller's.
func TestIdempotencyKey(t *testing.T) {
	keyed := func(p *retrip.Policy) { p.IdempotencyKey = retrip.On }
	bubbled(t, "fresh, quoted, the same on all attempts", func(t *testing.T) {
		base := plays(replies(503), replies(503), replies(200))
		tr := &retrip.Transport{Base: base, Policy: with(keyed)}
		seen := map[string]bool{}
		for range 3 {
			base.reqs, base.header = nil, nil
			req := request(t, "POST", strings.NewReader("x"))
			header := req.Header
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			finish(t, resp)
			require.Equal(t, 3, base.attempts())
			key := base.header[0].Get("Idempotency-Key")
			assert.Regexp(t, `^"[A-Z2-7]{26,}"$`, key)
			for _, h := range base.header {
				assert.Equal(t, []string{key}, h["Idempotency-Key"])
			}
			assert.False(t, seen[key])
			seen[key] = true
			assert.Empty(t, header)
			assert.Empty(t, req.Header)
		}
	})
	bubbled(t, "a request without a header map", func(t *testing.T) {
		base := plays(replies(200))
		req := request(t, "POST", nil)
		req.Header = nil
		resp, err := (&retrip.Transport{Base: base, Policy: with(keyed)}).RoundTrip(req)
		require.NoError(t, err)
		finish(t, resp)
		assert.NotEmpty(t, base.header[0].Get("Idempotency-Key"))
		assert.Nil(t, req.Header)
	})
	bubbled(t, "the caller's own stays", func(t *testing.T) {
		base := plays(replies(503), replies(200))
		req := request(t, "POST", nil)
		req.Header.Set("Idempotency-Key", "mine")
		resp, err := (&retrip.Transport{Base: base, Policy: with(keyed)}).RoundTrip(req)
		require.NoError(t, err)
		finish(t, resp)
		for _, h := range base.header {
			assert.Equal(t, []string{"mine"}, h["Idempotency-Key"])
		}
		assert.Same(t, req, base.reqs[0])
	})
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		bubbled(t, name+" of the caller's stays, also where the policy forbids to go by it", func(t *testing.T) {
			base := plays(replies(503))
			req := request(t, "POST", nil)
			req.Header.Set(name, "mine")
			tr := &retrip.Transport{Base: base, Policy: with(keyed)}
			tr.Policy.Idempotent = func(*http.Request) bool { return false }
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			finish(t, resp)
			require.Equal(t, 1, base.attempts())
			assert.Equal(t, http.Header{name: {"mine"}}, base.header[0])
		})
	}
	bubbled(t, "none where none is needed", func(t *testing.T) {
		base := plays(replies(503), replies(200))
		resp, err := (&retrip.Transport{Base: base, Policy: with(keyed)}).RoundTrip(request(t, "GET", nil))
		require.NoError(t, err)
		finish(t, resp)
		assert.NotContains(t, base.header[0], "Idempotency-Key")
		assert.NotContains(t, base.header[1], "Idempotency-Key")
	})
}
