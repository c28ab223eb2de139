// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// A host in trouble is never taken for a healthy one: not while others that
// share its stripe come and go, and not while someone looks at the
// table or replaces the policies.
func TestHostTable_NeverForgets(t *testing.T) {
	var table host.Table
	r := play.Rules(t, retrip.Policy{})
	hosts := []string{"a.example", "b.example"}
	for _, key := range sameStripe(12) {
		hosts = append(hosts, key.Host)
	}
	done := make(chan struct{})
	var watching, working sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			table.All(0)
			table.Refit(func(*host.Entry) int64 { return r.Budget.Size })
		}
	})
	rounds := testenv.Size(2000, 5000)
	if testenv.Race {
		rounds = 1000
	}
	for _, name := range hosts {
		working.Go(func() {
			// This goroutine alone decides about its host.
			key, u := hostkey.Key{Host: name, Port: "443"}, &url.URL{Scheme: "https", Host: name}
			look := func(want bool, when string) bool {
				return assert.Equal(t, want, table.Calm(u, new(host.Place)), "%s %s", name, when)
			}
			for range rounds {
				failAt(&table, key, r, refusal, 0)
				if !look(false, "has failed") {
					return
				}
				succeedAt(&table, key, r, 0)
				if !look(false, "has not healed") {
					return
				}
				succeedAt(&table, key, r, 0)
				succeedAt(&table, key, r, 0)
				if !look(true, "has healed") {
					return
				}
			}
		})
	}
	working.Wait()
	close(done)
	watching.Wait()
	assert.Empty(t, inTrouble(&table, 0))
}

// A success pays into the budget of a host that came into trouble while the
// request was under way, whatever happens to other hosts and to the policies
// meanwhile.
func TestHostTable_TroubleMeanwhile(t *testing.T) {
	tr := &retrip.Transport{Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}}}
	get := func(name string, header http.Header) {
		req, err := http.NewRequest(http.MethodGet, "https://"+name, nil)
		if assert.NoError(t, err) {
			req.Header = header
			resp, err := tr.RoundTrip(req)
			if assert.NoError(t, err) {
				resp.Body.Close()
			}
		}
	}
	failing, nesting, saved := http.Header{"Fails": {"1"}}, http.Header{"Nests": {"1"}}, http.Header{"Saved": {"1"}}
	var failed sync.Map // hosts at which a saved request has failed once
	tr.Base = testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
		status := http.StatusOK
		switch {
		case req.Header["Fails"] != nil:
			status = http.StatusServiceUnavailable
		case req.Header["Saved"] != nil:
			if _, again := failed.LoadAndDelete(req.URL.Host); !again {
				failed.Store(req.URL.Host, true)
				status = http.StatusServiceUnavailable
			}
		case req.Header["Nests"] != nil:
			get(req.URL.Host, failing)
		}
		return &http.Response{StatusCode: status, Body: http.NoBody, Request: req}, nil
	})
	rounds := testenv.Size(100, 300)
	if testenv.Race {
		rounds = 100
	}
	done := make(chan struct{})
	var swapping, working sync.WaitGroup
	swapping.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			assert.NoError(t, tr.SetPolicies(tr.Policy, map[string]retrip.Policy{fmt.Sprintf("*.other%d.example", i%3): {}}))
		}
	})
	for _, name := range []string{"a.example", "b.example:8443", "host", "host0", "host1", "host2"} {
		working.Go(func() {
			tokens := func() float64 {
				return play.Must(tr.HostState(hostkey.Of(&url.URL{Scheme: "https", Host: name}).String())).Tokens
			}
			for range rounds {
				get(name, nesting)
				if !assert.InDelta(t, 4.7, tokens(), 1e-9, "a failed retry takes half a token, a success gives 0.2") {
					return
				}
				get(name, saved) // or else its route would wait for successes
				get(name, nil)
				get(name, nil)
				if !assert.InDelta(t, 5, tokens(), 1e-9) {
					return
				}
			}
		})
	}
	working.Wait()
	close(done)
	swapping.Wait()
	assert.Empty(t, play.Held(tr))
}

// A host that has no state of its own, because all places are taken, is known by its name
// while it fails.
//
//retrip:promise P15
func TestFailures_OfAHostWithoutAPlace(t *testing.T) {
	testenv.OneGoroutine(t)
	synctest.Test(t, func(t *testing.T) {
		tr := &retrip.Transport{Base: play.Base(play.Reply(503)), Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}}}
		fail := func(name string) {
			resp, err := tr.RoundTrip(play.MustRequest(t, http.MethodGet, "http://"+name+"/", nil))
			require.NoError(t, err)
			play.Finish(t, resp)
		}
		for n := range 12_000 {
			fail(fmt.Sprintf("%d.example", n))
		}
		assert.LessOrEqual(t, len(tr.HostStates()), 2*4096+1)
		time.Sleep(6 * time.Minute)
		require.Len(t, tr.HostStates(), 4096+1, "all places are taken")
		for i := range 20 {
			name := fmt.Sprintf("victim%d.example", i)
			fail(name)
			fail(name)
			var mine []retrip.HostState
			for _, s := range tr.HostStates() {
				if s.Host == name+":80" {
					mine = append(mine, s)
				}
			}
			require.Len(t, mine, 1)
			assert.Equal(t, []any{false, 2, retrip.ReasonServerError, 503}, []any{mine[0].Held, mine[0].Failed, mine[0].LastFailure, mine[0].LastStatus})
		}
		require.Len(t, tr.HostStates(), 4096+1+20)
	})
}
