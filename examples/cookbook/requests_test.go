// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// A service says when to ask again: later than MaxWait would allow by default, or so often
// that four attempts, or two hundred, are soon used up. Polls are no failures.
func TestPoll(t *testing.T) {
	for name, tt := range map[string]struct {
		method     string
		pending    []string // headers of the 202s
		polls      int      // that many 202s; 0: for ever
		status     int
		from, till time.Duration
	}{
		"asks for two minutes":      {"GET", []string{"Retry-After", "120"}, 3, 200, 6 * time.Minute, 9 * time.Minute},
		"asks for a second":         {"GET", []string{"Retry-After", "1"}, 0, 202, 594 * time.Second, 10 * time.Minute},
		"never ends":                {"GET", nil, 0, 202, 594 * time.Second, 10 * time.Minute},
		"accepts a DELETE":          {"DELETE", nil, 0, 202, 0, 0},
		"has a day":                 {"GET", []string{"Retry-After", "86400"}, 0, 202, 0, 0},
		"fails, and hangs, between": {"GET", nil, 8, 200, 40 * time.Second, 90 * time.Second},
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			a := newAPI(t, func(n int, w http.ResponseWriter, r *http.Request) {
				switch fails := tt.polls == 8; {
				case fails && n == 3:
					answer(w, 503, "")
				case fails && n == 6:
					<-r.Context().Done()
				case tt.polls == 0 || n <= tt.polls:
					answer(w, 202, "pending", tt.pending...)
				default:
					answer(w, 200, "done")
				}
			})
			client, began := Poll(a.base()), time.Now()
			resp, _ := do(t, client, play.MustRequest(t, tt.method, "http://jobs.internal/7", nil))
			assert.Equal(t, tt.status, resp.StatusCode)
			assert.GreaterOrEqual(t, time.Since(began), tt.from)
			assert.LessOrEqual(t, time.Since(began), tt.till)
			state, err := client.Transport.(*retrip.Transport).HostState("jobs.internal:80")
			require.NoError(t, err)
			assert.Equal(t, state.Size, state.Tokens)
		})
	}
}

// A new cluster has no names for some time, and some names never come: a POST isn't lost,
// and never sent twice.
func TestNoSuchHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		missing := play.Err(&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", IsNotFound: true}})
		broken := play.Err(&net.OpError{Op: "read", Err: syscall.ECONNRESET})
		for _, tt := range []struct {
			base     *play.Script
			attempts int
			fails    string
		}{
			{play.Base(missing, missing, play.Reply(200)), 3, ""},
			{play.Keep(missing), 4, "no such host"},
			{play.Base(missing, broken), 2, "connection reset"},
		} {
			client := &http.Client{Transport: &retrip.Transport{Base: tt.base, Policy: retrip.Policy{Classify: NoSuchHost}}}
			resp, err := client.Post("http://orders.internal/", "text/plain", strings.NewReader("order"))
			assert.Equal(t, tt.attempts, tt.base.Attempts())
			if tt.fails != "" {
				assert.ErrorContains(t, err, tt.fails)
				continue
			}
			require.NoError(t, err)
			play.Finish(t, resp)
		}
	})
}

// Statuses alternate, requests run at once, and the policy hedges.
func TestPerStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			statuses []int
			attempts int
		}{{[]int{500}, 1}, {[]int{503, 503, 503}, 3}, {[]int{502, 503, 502, 503}, 4}, {[]int{503, 500}, 2}, {[]int{503, 503, 200}, 3}} {
			client := &http.Client{Transport: PerStatus{&retrip.Transport{Base: testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				n, _ := strconv.Atoi(req.Header.Get("Attempt"))
				time.Sleep(time.Second)
				return respond(req, tt.statuses[max(n, 1)-1])
			}), Policy: retrip.Policy{RetryHeader: "Attempt", Budget: retrip.Off, Hedge: 0.2}}, map[int]int{500: 1, 503: 3}}}
			var done sync.WaitGroup
			for range 50 {
				done.Go(func() {
					attempts := 0
					ctx := retrip.WithTrace(t.Context(), &retrip.Trace{Done: func(e retrip.Event) { attempts = e.Attempt }})
					resp, _ := do(t, client, play.MustRequest(t, http.MethodGet, "http://shop.internal/", nil).WithContext(ctx))
					assert.Equal(t, tt.statuses[tt.attempts-1], resp.StatusCode)
					assert.Equal(t, tt.attempts, attempts)
				})
			}
			done.Wait()
		}
	})
}

func TestByRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for url, attempts := range map[string]int{
			"shop.internal/reports/7": 2, "SHOP.internal:80/reports/7": 2, "shop.internal/%72eports/7": 2,
			"shop.internal/reports/slow/7": 3, "shop.internal/reportss": 4, "shop.internal/": 4, "other.internal/reports/7": 4,
		} {
			base := play.Keep(play.Reply(503))
			routes := ByRoute{&retrip.Transport{Base: base}, []Route{
				{"shop.internal/reports/slow/", retrip.Policy{MaxAttempts: 3}},
				{"shop.internal/reports/", retrip.Policy{MaxAttempts: 2}},
			}}
			get(t, &http.Client{Transport: routes}, "http://"+url)
			assert.Equal(t, attempts, base.Attempts(), url)
		}
	})
}

// Documents hide mutations, and each attempt has the whole document.
func TestGraphQL_RepeatsReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for body, attempts := range map[string]int{
			`{"query": "{ me { name } }"}`:                                           4,
			`{"query": "query Me { me { name } }", "variables": {"to": "mutation"}}`: 4,
			`{"query": "mutation { pay }"}`:                                          1,
			`{"query": "query A { me }\nmutation B { pay }", "operationName": "B"}`:  1,
			`{"query": "\u006dutation { pay }"}`:                                     1,
			`{"query": "mutation { pay }", "Query": "{ me }"}`:                       1,
			`{"query": "{ me }"}{"query": "mutation { pay }"}`:                       1,
			`{"extensions": {"persistedQuery": {"sha256Hash": "00"}}}`:               1,
			`[{"query": "mutation { pay }"}]`:                                        1,
			`query { me }`:                                                           1,
		} {
			a := newAPI(t, func(_ int, w http.ResponseWriter, _ *http.Request) { answer(w, 503, "") })
			post(t, GraphQL(a.base()), "http://graph.internal/", body)
			assert.Len(t, a.requests(), attempts, body)
			for _, r := range a.requests() {
				assert.Equal(t, body, r.body)
			}
		}
		base := play.Keep(play.Reply(503))
		get(t, GraphQL(base), "http://graph.internal/?query={me}")
		assert.Equal(t, 4, base.Attempts())
	})
}

// The code comes in two parts, or too late, before a long body that the caller gets whole.
func TestCodeInBody(t *testing.T) {
	const says = `{"__type":"com.amazon.coral.availability#ThrottlingException","message":"Rate exceeded"}`
	rest := strings.Repeat(" ", 100_000)
	for name, tt := range map[string]struct {
		status int
		parts  []string
		sends  int
	}{
		"in two parts":   {400, []string{says[:50], says[50:] + rest}, 2},
		"behind a help":  {400, []string{rest[:2000] + says}, 2}, // of Google, before the details
		"another status": {403, []string{says}, 1},
		"another code":   {400, []string{"{}" + rest}, 1},
		"too late":       {400, []string{rest + says}, 1},
		"no body":        {400, nil, 1},
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			a := newAPI(t, func(n int, w http.ResponseWriter, _ *http.Request) {
				if n == 2 {
					return
				}
				w.WriteHeader(tt.status)
				for _, part := range tt.parts {
					io.WriteString(w, part)
					w.(http.Flusher).Flush()
					time.Sleep(50 * time.Millisecond)
				}
			})
			client := &http.Client{Transport: &retrip.Transport{Base: a.base(), Policy: retrip.Policy{
				Classify: CodeInBody(400, "ThrottlingException", retrip.Throttled), Backoff: retrip.Backoff{Jitter: retrip.NoJitter},
			}}}
			_, body := post(t, client, "http://dynamodb.internal/", "{}")
			require.Len(t, a.requests(), tt.sends)
			if tt.sends == 2 {
				assert.GreaterOrEqual(t, a.gap(1), time.Second, "as after a 429")
			} else {
				assert.Equal(t, strings.Join(tt.parts, ""), body)
			}
		})
	}
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
		"in a long body":                 {telegram, 429, strings.Repeat(" ", 20_000) + `{"retry_after":12}`, nil, 12 * time.Second, 2},
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
		for host, attempts := range map[string]int{"old.internal": 4, "OLD.internal:80": 4, "new.internal": 1, "new.internal/old.internal": 1} {
			a := newAPI(t, func(_ int, w http.ResponseWriter, r *http.Request) {
				w.Header()["Retry-After"] = []string{"86400", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)}
				answer(w, 503, "")
			})
			client := &http.Client{Transport: &retrip.Transport{Base: Edited{a.base(), IgnoreRetryAfter("old.internal")}}}
			get(t, client, "http://"+host)
			assert.Len(t, a.requests(), attempts, host)
		}
	})
}
