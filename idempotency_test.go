// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

// A policy may declare methods and requests idempotent, or not idempotent.
//
//retrip:promise P6
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
					return retrip.Unprocessed
				}
				return retrip.ByRule
			}
		}, 3},
		{"Classify doesn't vouch", "POST", func(p *retrip.Policy) {
			p.Classify = func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.Retryable }
		}, 1},
		{"a key of ours", "POST", func(p *retrip.Policy) { p.IdempotencyKey = retrip.On }, 3},
	} {
		play.Bubble(t, tt.name, func(t *testing.T) {
			base := play.Base(play.Reply(503), play.Reply(503), play.Reply(200))
			resp, err := (&retrip.Transport{Base: base, Policy: play.With(tt.change)}).RoundTrip(&http.Request{
				Method: tt.method, URL: &url.URL{Scheme: "http", Host: "example.com"}, Header: http.Header{}})
			require.NoError(t, err)
			play.Finish(t, resp)
			assert.Equal(t, tt.want, base.Attempts())
		})
	}
}

// Every attempt carries the same key, also if it is the caller's.
//
//retrip:promise P2 P4 P6
func TestIdempotencyKey(t *testing.T) {
	keyed := func(p *retrip.Policy) { p.IdempotencyKey = retrip.On }
	play.Bubble(t, "fresh, quoted, the same on all attempts", func(t *testing.T) {
		base := play.Base(play.Reply(503), play.Reply(503), play.Reply(200))
		tr := &retrip.Transport{Base: base, Policy: play.With(keyed)}
		seen := map[string]bool{}
		for range 3 {
			base.Reqs, base.Header = nil, nil
			req := play.Request(t, "POST", strings.NewReader("x"))
			header := req.Header
			if len(seen) == 2 {
				req.Header = nil
			}
			play.Finish(t, do(t, tr, req))
			require.Equal(t, 3, base.Attempts())
			key := base.Header[0].Get("Idempotency-Key")
			assert.Regexp(t, `^"[A-Z2-7]{26,}"$`, key)
			for _, h := range base.Header {
				assert.Equal(t, []string{key}, h["Idempotency-Key"])
			}
			assert.False(t, seen[key])
			seen[key] = true
			assert.Empty(t, header)
			assert.Empty(t, req.Header)
			assert.Equal(t, len(seen) == 3, req.Header == nil)
		}
	})
	for name, tt := range map[string]struct {
		method, header string
		idempotent     func(*http.Request) bool
		attempts       int
	}{
		"none where none is needed":                 {"GET", "", nil, 2},
		"the caller's own stays":                    {"POST", "Idempotency-Key", nil, 2},
		"the other of the caller's stays":           {"POST", "X-Idempotency-Key", nil, 2},
		"also where the policy forbids to go by it": {"POST", "Idempotency-Key", func(*http.Request) bool { return false }, 1},
		"and the other":                             {"POST", "X-Idempotency-Key", func(*http.Request) bool { return false }, 1},
	} {
		play.Bubble(t, name, func(t *testing.T) {
			base := play.Base(play.Reply(503), play.Reply(200))
			req := play.Request(t, tt.method, nil)
			if tt.header != "" {
				req.Header.Set(tt.header, "mine")
			}
			tr := &retrip.Transport{Base: base, Policy: play.With(keyed)}
			tr.Policy.Idempotent = tt.idempotent
			play.Finish(t, do(t, tr, req))
			require.Equal(t, tt.attempts, base.Attempts())
			assert.Same(t, req, base.Reqs[0])
			for _, h := range base.Header {
				assert.Equal(t, req.Header, h)
			}
		})
	}
}

// TestTransport_ForbiddenIsNotRepeatedByNetHTTPEither: net/http resends a
// request that has a key and a GetBody if its connection turns out to be dead.
// retrip must not add a GetBody to a request that the policy forbids to repeat.
//
//retrip:promise P6
func TestTransport_ForbiddenIsNotRepeatedByNetHTTPEither(t *testing.T) {
	for name, tt := range map[string]struct {
		idempotent func(*http.Request) bool
		want       int32
	}{
		"forbidden": {func(*http.Request) bool { return false }, 1},
		"allowed":   {nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var posts atomic.Int32
				server := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					if r.Method == http.MethodPost && posts.Add(1) == 1 {
						panic(http.ErrAbortHandler)
					}
				}))
				client := &http.Client{Transport: &retrip.Transport{Base: server.Transport(), Policy: retrip.Policy{Idempotent: tt.idempotent}}}
				resp, err := client.Get(server.URL) // leaves a connection in the pool
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				req := play.Must(http.NewRequest(http.MethodPost, server.URL, io.MultiReader(strings.NewReader("pay"))))
				req.Header.Set("Idempotency-Key", "foreign")
				if resp, err := client.Do(req); err == nil {
					resp.Body.Close()
				}
				assert.Equal(t, tt.want, posts.Load())
			})
		})
	}
}

// A server reads the caller's fields however the map spells their names. Each has one
// line on the wire, over all protocols.
//
//retrip:promise P4 P6
func TestHeaders_OneLineOnTheWire(t *testing.T) {
	for _, tt := range []struct {
		name, field string // of the caller's map
		values      []string
		read        string
		want        []string // by attempt; * is anything
	}{
		{"a key", "idempotency-key", []string{"mine"}, "Idempotency-Key", []string{"mine", "mine"}},
		{"a key in capitals", "IDEMPOTENCY-KEY", []string{"mine"}, "Idempotency-Key", []string{"mine", "mine"}},
		{"another key", "x-idempotency-key", []string{"mine"}, "Idempotency-Key", []string{"", ""}},
		{"no value", "idempotency-key", []string{}, "Idempotency-Key", []string{"*", "*"}},
		{"an attempt", "retry-attempt", []string{"7"}, "Retry-Attempt", []string{"7", "2"}},
		{"an attempt in capitals", "RETRY-ATTEMPT", []string{"7"}, "Retry-Attempt", []string{"7", "2"}},
		{"attempts", "Retry-attempt", []string{"7", "8"}, "Retry-Attempt", []string{"7+8", "2"}},
		{"none", "Other", []string{"7"}, "Retry-Attempt", []string{"", "2"}},
	} {
		for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2, memhttp.H2C} {
			play.Bubble(t, tt.name+" "+proto.String(), func(t *testing.T) {
				var seen []string
				server := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					seen = append(seen, strings.Join(r.Header[tt.read], "+"))
					w.WriteHeader(http.StatusServiceUnavailable)
				}))
				tr := &retrip.Transport{Base: server.Transport(), Policy: play.With(func(p *retrip.Policy) {
					p.IdempotencyKey, p.RetryHeader, p.MaxAttempts = retrip.On, "Retry-Attempt", 2
				})}
				req := play.MustRequest(t, "POST", server.URL, strings.NewReader("x"))
				req.Header = http.Header{tt.field: tt.values}
				play.Finish(t, do(t, tr, req))
				require.Len(t, seen, len(tt.want), "repeated, by its key")
				for i, want := range tt.want {
					if want == "*" {
						assert.Regexp(t, `^"[A-Z2-7]{26,}"$`, seen[i])
					} else {
						assert.Equal(t, want, seen[i])
					}
				}
				assert.Equal(t, http.Header{tt.field: tt.values}, req.Header)
			})
		}
	}
}

// A header that means something else doesn't carry the number of an attempt, and nor
// does one that net/http doesn't send from the map.
//
//retrip:promise P4
func TestRetryHeader_Refused(t *testing.T) {
	for _, name := range []string{"Host", "Content-Length", "transfer-encoding", "TRAILER", "User-Agent", "Authorization", "Proxy-Authorization", "Range", "If-Range",
		"if-none-match", "Cookie", "Connection", "Keep-Alive", "Te", "Upgrade", "Accept-Encoding", "Content-Type", "Expect", "Idempotency-Key", "X-Idempotency-Key"} {
		err := (&retrip.Transport{Policy: retrip.Policy{RetryHeader: name}}).Validate()
		assert.EqualError(t, err, `retrip: Policy.RetryHeader is "`+name+`": it must be the name of a header without another meaning, or "off"`)
		_, _, err = retrip.LoadPolicies(strings.NewReader("{\n\"retry_header\": \"" + name + "\"}"))
		assert.EqualError(t, err, `retrip: line 2: retry_header: it is "`+name+`": it must be the name of a header without another meaning, or "off"`)
	}
	for _, name := range []string{"Retry-Attempt", "X-Envoy-Attempt-Count", "x-attempt", "off", "OFF", "Hosts", "Content-Attempt", "X-Range"} {
		assert.NoError(t, (&retrip.Transport{Policy: retrip.Policy{RetryHeader: name}}).Validate(), name)
	}
}
