// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package statuspage

import (
	"context"
	"net"
	"net/http"
	"strings"
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

// outages are total failures of one host, each under a policy with which retrip
// keeps no state that holds anything back.
var outages = []struct {
	name   string
	method string
	policy retrip.Policy
	base   testenv.RoundTripper // nil: each request gets a 503
	fleet  bool                 // the fleet's account is empty
	status int
	kind   string // of the error
	giveUp retrip.Reason
	asks   string // how long the server asks to wait
}{
	{name: "POST", method: "POST", status: 503, giveUp: "not_idempotent"},
	{name: "one attempt", policy: retrip.Policy{MaxAttempts: 1}, status: 503, giveUp: "max_attempts"},
	{name: "unlimited", policy: retrip.Policy{Budget: retrip.Off}, status: 503, giveUp: "max_attempts"},
	{name: "refused dials", policy: retrip.Policy{MaxAttempts: 1}, base: refused, kind: "connection_refused", giveUp: "max_attempts"},
	{name: "refused by the fleet", policy: retrip.Policy{Budget: 1000}, fleet: true, status: 503, giveUp: "fleet_budget"},
	{name: "throttled", policy: retrip.Policy{MaxAttempts: 1}, base: answer(429), status: 429, giveUp: "max_attempts"},
	{name: "no such host", base: failWith(&net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}), kind: "no_such_host"},
	{name: "too long a wait", base: askToWait, status: 503, giveUp: "wait_too_long", asks: "2h0m0s"},
}

func answer(status int) testenv.RoundTripper {
	return func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	}
}

func failWith(err error) testenv.RoundTripper {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

var refused = failWith(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})

func askToWait(r *http.Request) (*http.Response, error) {
	resp, err := down(r)
	resp.Header.Set("Retry-After", "7200")
	return resp, err
}

// shop is a Transport whose base answers while it is well, and its page.
type shop struct {
	*retrip.Transport
	t    *testing.T
	page http.Handler
	well bool
}

func newShop(t *testing.T, policy retrip.Policy, bad testenv.RoundTripper) *shop {
	s := &shop{t: t, well: true}
	s.Transport = &retrip.Transport{Policy: policy, Metrics: &retrip.Metrics{}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
		if s.well {
			return answer(200)(r)
		}
		return bad(r)
	})}
	s.page = Handler(map[string]*retrip.Transport{"shop": s.Transport})
	return s
}

// send makes a request, and waits for a time.
func (s *shop) send(method, path string, wait time.Duration) {
	req := play.MustRequest(s.t, method, "http://down.example"+path, nil)
	if resp, err := s.RoundTrip(req); err == nil {
		resp.Body.Close()
	}
	time.Sleep(wait)
}

func (s *shop) html() string { return get(s.t, s.page, "/").Body.String() }

const calm = "no request has failed"

// The page says which host fails and when, whatever retrip's policy for it, that the host
// has recovered, and forgets it minutes after its last failure.
//
//retrip:promise P15
func TestHandler_EveryOutage(t *testing.T) {
	for _, tt := range outages {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				if tt.base == nil {
					tt.base = down
				}
				tt.policy.Backoff.Base = retrip.Off
				tr := newShop(t, tt.policy, tt.base)
				if tt.fleet {
					tr.Fleet = retrip.NewFleet(func(context.Context, string, float64, float64) (float64, error) { return 0, nil })
					defer tr.Fleet.Close()
				}
				send, html := func() { tr.send(tt.method, "/", time.Second) }, tr.html
				send()
				require.Contains(t, html(), calm)
				require.Empty(t, tr.HostStates())

				tr.well = false
				send()
				for i := range 99 {
					state := tr.HostStates()[0]
					require.Equal(t, i+1, state.Failed)
					require.NotContains(t, html(), calm)
					send()
				}
				states := tr.HostStates()
				require.Len(t, states, 1)
				state := states[0]
				assert.Equal(t, []any{"down.example:80", 100, 0, 0, tt.status, tt.kind, 99 * time.Second, time.Second, time.Second},
					[]any{state.Host, state.Failed, state.Canceled, state.Answered, state.LastStatus, state.LastError, state.FailingFor, state.FailingAgo, state.FailedAgo})
				assert.Equal(t, tt.giveUp, state.LastGiveUp)
				assert.Equal(t, state, play.Must(tr.HostState("down.example:80")))
				text := html()
				for _, want := range []string{"1 host fails", "100 of 100 failed<br>61 of 61 in the last minute<br>", "down.example:80", "from 00:00:01 to 00:01:40", "no answer since"} {
					assert.Contains(t, text, want)
				}
				assert.NotContains(t, text, calm)
				assert.Equal(t, tt.asks != "", strings.Contains(text, "asked to wait "+tt.asks))
				assert.Equal(t, 1.0, failingHosts(t, tr.Metrics))

				// One answer may be luck.
				tr.well = true
				send()
				text = html()
				for _, want := range []string{"1 host fails", "100 of 101 failed<br>61 of 62 in the last minute<br>", "from 00:00:01 to 00:01:40", "last answer 1s ago"} {
					assert.Contains(t, text, want)
				}
				for range 2 {
					send()
				}
				text = html()
				for _, want := range []string{"1 host has recovered", "100 of 103 failed", "from 00:00:01 to 00:01:40", "last answer 1s ago"} {
					assert.Contains(t, text, want)
				}
				assert.NotContains(t, text, "fails<")
				state = tr.HostStates()[0]
				assert.Equal(t, []any{true, 3, time.Second, 99 * time.Second, 4 * time.Second},
					[]any{state.Recovered, state.Answered, state.AnsweredAgo, state.FailingFor, state.FailingAgo})

				// The host stays for minutes, whatever happens meanwhile, and then it is gone.
				time.Sleep(4*time.Minute + 30*time.Second)
				require.Len(t, tr.HostStates(), 1)
				assert.Contains(t, html(), "1 host has recovered")
				assert.Contains(t, html(), "none in the last minute")
				time.Sleep(30 * time.Second)
				for _, s := range tr.HostStates() {
					assert.True(t, s.Held && s.Failed == 0 && s.FailingFor == 0, s)
				}
				assert.Contains(t, html(), calm)
				assert.Zero(t, failingHosts(t, tr.Metrics))
			})
		})
	}
}

// failingHosts returns the number of hosts that fail, by their metric.
func failingHosts(t *testing.T, m *retrip.Metrics) float64 {
	t.Helper()
	return play.Gather(t, m)["default"]["failing_hosts"]
}

// While callers cancel every request, the page isn't green either, but doesn't say that
// the host fails.
func TestHandler_Canceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := &retrip.Metrics{}
		tr := &retrip.Transport{Metrics: metrics, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})}
		h := Handler(map[string]*retrip.Transport{"shop": tr})
		for range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://hangs.example/", nil)
			require.NoError(t, err)
			_, err = tr.RoundTrip(req)
			require.Error(t, err)
		}
		text := get(t, h, "/").Body.String()
		assert.NotContains(t, text, calm)
		assert.Contains(t, text, "requests canceled at 1 host")
		assert.Contains(t, text, "10 canceled")
		assert.Zero(t, failingHosts(t, metrics))
		state := tr.HostStates()[0]
		assert.Equal(t, []any{10, 0, false}, []any{state.Canceled, state.Failed, state.Held})
		time.Sleep(5*time.Minute + 1)
		assert.Contains(t, get(t, h, "/").Body.String(), calm)
	})
}
