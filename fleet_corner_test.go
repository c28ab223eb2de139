// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/testenv"
)

// A host's name is part of the string of its URL. Whoever chooses URLs must not
// be able to make the program keep them all: a query may be long.
func TestFleet_KeepsNoURLs(t *testing.T) {
	const hosts, query = 100, 1 << 20
	fleet := NewFleet(nil)
	tr := &Transport{Fleet: fleet, Policy: Policy{Backoff: Backoff{Base: Off}}, Base: alwaysAnswers(503)}
	before := testenv.Heap()
	for i := range hosts {
		long := strings.Repeat("x", query)
		u := fmt.Sprintf([]string{"http://%d.example:8080/?%s", "http://%d.example:8080/%s", "http://%d.example:8080/#%s"}[i%3], i, long)
		if i%4 == 0 {
			u = fmt.Sprintf("http://%s@%d.example:8080/", long, i)
		}
		_, err := get(t, tr, u)
		require.NoError(t, err)
	}
	grown := testenv.Heap() - before
	assert.Less(t, grown, int64(hosts*query/10), "bytes kept for %d hosts", hosts)
	assert.Len(t, fleet.accounts.Views, hosts)
	assert.Len(t, tr.HostStates(), hosts)
	runtime.KeepAlive(tr)
}

// A shared budget may be the only budget of a policy. Its hosts miss no tokens
// of their own, but a process whose network is dead still costs the others one
// token for each host.
func TestFleet_OwnNetworkIsDeadWithSharedBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var spent float64
		fleet := newTestFleet(t, storeFunc(func(_ context.Context, _ string, tokens, size float64) (float64, error) {
			spent -= min(0, tokens)
			return size, nil
		}))
		dead := true
		tr := &Transport{Fleet: fleet, Policy: Policy{Budget: Budget{Size: Off, Shared: 1e6}},
			Base: roundTripperFunc(func(r *http.Request) (*http.Response, error) {
				if !dead {
					return answer(r, 200), nil
				}
				return nil, errors.New("no route to host")
			})}
		for range 2 {
			spent, dead = 0, true
			for range 100 {
				_, err := get(t, tr, "http://a.example/")
				require.Error(t, err)
				time.Sleep(time.Second)
			}
			assert.Equal(t, 1.0, spent)
			// Then something succeeds, and the next trouble costs a token again.
			dead = false
			_, err := get(t, tr, "http://a.example/")
			require.NoError(t, err)
			assert.Empty(t, tr.HostStates(), "the host has recovered")
		}

		// The account may be switched off before that success.
		dead = true
		_, err := get(t, tr, "http://a.example/")
		require.Error(t, err)
		assert.Len(t, tr.HostStates(), 1)
		require.NoError(t, tr.SetPolicies(Policy{Budget: Budget{Size: Off, Shared: 1e6}, FleetBudget: Off}, nil))
		dead = false
		_, err = get(t, tr, "http://a.example/")
		require.NoError(t, err)
		assert.Empty(t, tr.HostStates(), "the host has recovered")
	})
}

// A request that switches its budget off takes no part in the account either,
// whatever the policy of the host says about shared budgets.
func TestFleet_WithPolicyWithoutBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, b := range map[string]Budget{"Unlimited": Unlimited, "Size: Off": {Size: Off}} {
			operations := 0
			fleet := newTestFleet(t, storeFunc(func(context.Context, string, float64, float64) (float64, error) {
				operations++
				return 0, nil
			}))
			attempts := 0
			tr := &Transport{Fleet: fleet, Policy: Policy{Budget: Budget{Shared: 5}}, Base: roundTripperFunc(func(r *http.Request) (*http.Response, error) {
				attempts++
				return answer(r, 503), nil
			})}
			req, err := http.NewRequestWithContext(WithPolicy(t.Context(), Policy{Budget: b}), http.MethodGet, "http://a.example/", nil)
			require.NoError(t, err)
			_, err = tr.RoundTrip(req)
			require.NoError(t, err)
			assert.Equal(t, 4, attempts, name)
			assert.Zero(t, operations, name)
		}
	})
}

// A server may answer before it has read the request's body. If the account
// then forbids the retry, the upload goes on, and the caller can read the
// response, as after a refusal of the budget.
func TestFleet_ForbidsDuringAnUpload(t *testing.T) {
	// Over HTTP/2 net/http itself stops the upload after an early 503.
	for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS} {
		for _, full := range []bool{false, true} {
			t.Run(fmt.Sprint(proto, " full ", full), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const pieces, size = 32, 1 << 10
					var got int64
					s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						control := http.NewResponseController(w)
						assert.NoError(t, control.EnableFullDuplex())
						w.WriteHeader(http.StatusServiceUnavailable)
						assert.NoError(t, control.Flush())
						got, _ = io.Copy(io.Discard, r.Body)
						_, _ = io.WriteString(w, "in hand")
					}))
					base := s.Transport()
					defer base.CloseIdleConnections()
					tr := &Transport{Base: base, Policy: steady, Fleet: newTestFleet(t, fixedStore(0))}
					want, reason := ReasonFleetBudget, Reason("")
					tr.Trace = &Trace{GiveUp: func(e Event) { reason = e.Reason }}
					if full {
						want = ReasonBodyNotReplayable
						// The account allows the retry, but until its answer the
						// base has read more than is kept.
						tr.Policy.MaxReplayBody = 2 * size
						tr.Fleet = newTestFleet(t, storeFunc(func(_ context.Context, _ string, _, size float64) (float64, error) {
							time.Sleep(45 * time.Millisecond)
							return size, nil
						}))
					}
					body, pipe := io.Pipe()
					var upload sync.WaitGroup
					upload.Go(func() {
						for range pieces {
							time.Sleep(10 * time.Millisecond)
							if _, err := pipe.Write(make([]byte, size)); err != nil {
								return
							}
						}
						pipe.Close()
					})
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.URL, body)
					require.NoError(t, err)
					resp, err := tr.RoundTrip(req)
					require.NoError(t, err)
					assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
					assert.Equal(t, want, reason)
					text, err := io.ReadAll(resp.Body)
					assert.NoError(t, err)
					assert.Equal(t, "in hand", string(text))
					assert.NoError(t, resp.Body.Close())
					upload.Wait()
					assert.EqualValues(t, pieces*size, got, "bytes that the server got")
				})
			})
		}
	}
}
