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

func TestWaitIn(t *testing.T) {
	telegram := WaitIn(429, "", `"retry_after": *([0-9.]+)`, "")
	for name, tt := range map[string]struct {
		edit     func(*http.Response)
		status   int
		body     string
		header   []string
		want     time.Duration
		attempts int
	}{
		"in the body":                    {telegram, 429, `{"parameters":{"retry_after":11.2}}`, nil, 11200 * time.Millisecond, 2},
		"with a unit of the service":     {WaitIn(503, "", `"retryDelay": *"([0-9.]+s)"`, ""), 503, `{"details":[{"retryDelay":"17s"}]}`, nil, 17 * time.Second, 2},
		"in a sentence":                  {WaitIn(429, "", `try after ([^ ]+Z)`, ""), 429, "Please try after 2000-01-01T00:00:20.5Z.", nil, 20500 * time.Millisecond, 2},
		"more than anyone waits":         {telegram, 429, `{"retry_after":86400}`, nil, 0, 1},
		"nothing named":                  {telegram, 429, `{"retry_after":null}`, nil, 0, 2},
		"in an answer of another status": {telegram, 503, `{"retry_after":86400}`, nil, 0, 2},
		"besides Retry-After":            {telegram, 429, `{"retry_after":5}`, []string{"Retry-After", "3600"}, 0, 1},
		"in a header":                    {WaitIn(429, "X-Rate-Limit-Time-Reset-Ms", "(.+)", "ms"), 429, "", []string{"X-Rate-Limit-Time-Reset-Ms", "15000"}, 15 * time.Second, 2},
		"in a part of a header":          {WaitIn(400, "X-Business-Use-Case-Usage", `regain_access": *([0-9]+)`, "m"), 400, "", []string{"X-Business-Use-Case-Usage", `{"6":[{"estimated_time_to_regain_access":1}]}`}, time.Minute, 2},
		"in a header that isn't there":   {WaitIn(503, "X-Rate-Limit-Time-Reset-Ms", "(.+)", "ms"), 503, "", nil, 0, 2},
	} {
		play.Bubble(t, name, func(t *testing.T) {
			a := newAPI(t, func(n int, w http.ResponseWriter, _ *http.Request) {
				if n == 1 {
					answer(w, tt.status, tt.body, tt.header...)
				} else {
					answer(w, 200, tt.body, tt.header...)
				}
			})
			p := retrip.Policy{RetryOn: []int{400}, MaxWait: time.Minute}
			client := &http.Client{Transport: &retrip.Transport{Base: Edited{a.base(), tt.edit}, Policy: p}}
			resp, body := get(t, client, "http://chat.internal/")
			require.Len(t, a.requests(), tt.attempts)
			assert.Equal(t, tt.body, body)
			assert.Equal(t, tt.attempts == 2, resp.Header.Get("Retry-After") == "", "a good answer isn't edited")
			if tt.want > 0 {
				assert.InDelta(t, 1.25*tt.want.Seconds(), a.gap(1).Seconds(), tt.want.Seconds()/4+0.01)
			}
		})
	}
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
