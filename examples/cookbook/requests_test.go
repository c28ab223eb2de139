// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// Ten jobs take four polls each. Polls are no failures: they cost no tokens.
func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			switch {
			case n > 40:
				answer(w, 202, "pending")
			case n%4 == 1:
				answer(w, 202, "pending", "Retry-After", "20")
			case n%4 != 0:
				answer(w, 202, "pending")
			default:
				answer(w, 200, "done")
			}
		})
		client := Poll(a.base())
		for range 10 {
			resp, body := get(t, client, "http://jobs.internal/7")
			assert.Equal(t, 200, resp.StatusCode)
			assert.Equal(t, "done", body)
		}
		assert.GreaterOrEqual(t, a.gap(1), 20*time.Second)
		assert.InDelta(t, 3.75, a.gap(2).Seconds(), 1.3)
		state, err := client.Transport.(*retrip.Transport).HostState("jobs.internal:80")
		require.NoError(t, err)
		assert.Equal(t, state.Size, state.Tokens)

		began := time.Now()
		resp, _ := get(t, client, "http://jobs.internal/8")
		assert.Equal(t, 202, resp.StatusCode, "the job takes too long")
		assert.InDelta(t, 600, time.Since(began).Seconds(), 6)
	})
}

// A new cluster has no names for some time: a POST isn't lost.
func TestNoSuchHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		missing := play.Err(&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", IsNotFound: true}})
		for _, classify := range []func(*http.Request, *http.Response, error) retrip.Verdict{NoSuchHost, nil} {
			base := play.Base(missing, missing, play.Reply(200))
			client := &http.Client{Transport: &retrip.Transport{Base: base, Policy: retrip.Policy{Classify: classify}}}
			resp, err := client.Post("http://orders.internal/", "text/plain", strings.NewReader("order"))
			if classify == nil {
				assert.ErrorContains(t, err, "no such host")
				assert.Equal(t, 1, base.Attempts())
				continue
			}
			require.NoError(t, err)
			play.Finish(t, resp)
			assert.Equal(t, 3, base.Attempts())
		}
	})
}

func TestPerStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for status, attempts := range map[int]int{500: 1, 503: 3, 502: 4} {
			base := play.Keep(play.Reply(status))
			client := &http.Client{Transport: PerStatus{&retrip.Transport{Base: base}, map[int]int{500: 1, 503: 3}}}
			resp, _ := get(t, client, "http://shop.internal/")
			assert.Equal(t, status, resp.StatusCode)
			assert.Equal(t, attempts, base.Attempts(), status)
			client.CloseIdleConnections()
			assert.Equal(t, 1, base.Idle)
		}
	})
}

func TestByRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for path, attempts := range map[string]int{"/reports/7": 2, "/reportss": 4} {
			base := play.Keep(play.Reply(503))
			routes := ByRoute{&retrip.Transport{Base: base}, []Route{{"/reports/", retrip.Policy{MaxAttempts: 2}}}}
			get(t, &http.Client{Transport: routes}, "http://shop.internal"+path)
			assert.Equal(t, attempts, base.Attempts(), path)
		}
	})
}

func TestGraphQL_RepeatsReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for body, attempts := range map[string]int{
			`{"query": "{ me { name } }"}`:                                           4,
			`{"query": "query Me { me { name } }", "variables": {"to": "mutation"}}`: 4,
			`{"query": "mutation { pay }"}`:                                          1,
			`{"query": "query A { me }\nmutation B { pay }", "operationName": "B"}`:  1,
			`{"query": "\u006dutation { pay }"}`:                                     1,
			`{"extensions": {"persistedQuery": {"sha256Hash": "00"}}}`:               1,
			`[{"query": "mutation { pay }"}]`:                                        1,
			`query { me }`:                                                           1,
		} {
			base := play.Keep(play.Reply(503))
			post(t, GraphQL(base), "http://graph.internal/", body)
			assert.Equal(t, attempts, base.Attempts(), body)
		}
		base := play.Keep(play.Reply(503))
		get(t, GraphQL(base), "http://graph.internal/?query={me}")
		assert.Equal(t, 4, base.Attempts())
	})
}

func TestCodeInBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const says = `{"__type":"com.amazon.coral.availability#ThrottlingException","message":"Rate exceeded"}`
		for status, body := range map[int]string{400: says, 403: says, 404: "{}"} {
			a := newAPI(t, func(n int, w http.ResponseWriter, _ *http.Request) {
				if n == 1 {
					answer(w, status, body)
				}
			})
			client := &http.Client{Transport: &retrip.Transport{Base: a.base(), Policy: retrip.Policy{
				Classify: CodeInBody(400, "ThrottlingException", retrip.Throttled), Backoff: retrip.Backoff{Jitter: retrip.NoJitter},
			}}}
			post(t, client, "http://dynamodb.internal/", "{}")
			if status == 400 {
				assert.Len(t, a.requests(), 2)
				assert.GreaterOrEqual(t, a.gap(1), time.Second, "as after a 429")
			} else {
				assert.Len(t, a.requests(), 1)
			}
		}
	})
}

func TestWaitInBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const says = `{"message": "slow down", "retry_after": 11.2}`
		a := newAPI(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			switch n {
			case 1:
				answer(w, 429, says)
			case 2:
				answer(w, 200, "")
			case 3:
				answer(w, 429, `{"retry_after": 1e300}`)
			default:
				answer(w, 429, says, "Retry-After", "3600")
			}
		})
		client := &http.Client{Transport: &retrip.Transport{Base: Edited{a.base(), WaitInBody}}}
		get(t, client, "http://chat.internal/")
		assert.InDelta(t, 15, a.gap(1).Seconds(), 3.1)
		resp, _ := get(t, client, "http://chat.internal/")
		assert.Equal(t, 429, resp.StatusCode)
		resp, body := get(t, client, "http://chat.internal/")
		assert.Equal(t, says, body)
		assert.Equal(t, "3600", resp.Header.Get("Retry-After"))
		assert.Len(t, a.requests(), 4)
	})
}

func TestIgnoreRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for host, attempts := range map[string]int{"old.internal": 4, "new.internal": 1} {
			base := play.Keep(play.Reply(503, "Retry-After: 86400"))
			client := &http.Client{Transport: &retrip.Transport{Base: Edited{base, IgnoreRetryAfter("old.internal")}}}
			get(t, client, "http://"+host+"/")
			assert.Equal(t, attempts, base.Attempts(), host)
		}
	})
}
