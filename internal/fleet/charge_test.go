// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

//retrip:promise P22
func TestFleet_OwnNetworkIsDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var spent float64
		fleet := opened(t, storeFunc(func(_ context.Context, _ string, tokens, size float64) (float64, error) {
			spent -= tokens
			return size, nil
		}))
		tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{Budget: retrip.Budget{Size: 1e6}, FleetBudget: 10},
			Base: testenv.RoundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("no route to host") })}
		for range 100 {
			_, err := get(t, tr, "http://a.example/")
			require.Error(t, err)
			time.Sleep(time.Second)
		}
		require.NoError(t, fleet.Close())
		assert.Equal(t, 1.0, spent, "it costs the others one token, whatever its own budget")
	})
}

// A shared budget may be the only budget of a policy. Its hosts miss no tokens
// of their own, but a process whose network is dead still costs the others one
// token for each host.
//
//retrip:promise P22
func TestFleet_OwnNetworkIsDeadWithSharedBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var spent float64
		fleet := opened(t, storeFunc(func(_ context.Context, _ string, tokens, size float64) (float64, error) {
			spent -= min(0, tokens)
			return size, nil
		}))
		dead := true
		tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{Budget: retrip.Budget{Size: retrip.Off, Shared: 1e6}},
			Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
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
			assert.Empty(t, play.Held(tr), "the host has recovered")
		}

		// The account may be switched off before that success.
		dead = true
		_, err := get(t, tr, "http://a.example/")
		require.Error(t, err)
		assert.Len(t, tr.HostStates(), 1)
		require.NoError(t, tr.SetPolicies(retrip.Policy{Budget: retrip.Budget{Size: retrip.Off, Shared: 1e6}, FleetBudget: retrip.Off}, nil))
		dead = false
		_, err = get(t, tr, "http://a.example/")
		require.NoError(t, err)
		assert.Empty(t, play.Held(tr), "the host has recovered")
	})
}

//retrip:promise P22
func TestFleet_FirstAttemptsNeverAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		operations, paid := 0, 0.0
		fleet := opened(t, storeFunc(func(_ context.Context, _ string, tokens, size float64) (float64, error) {
			operations++
			paid += tokens
			time.Sleep(time.Millisecond)
			return size, nil
		}))
		tr := &retrip.Transport{Fleet: fleet, Base: alwaysAnswers(200)}
		const n = 20_000
		for range n {
			began := time.Now()
			_, err := get(t, tr, "http://a.example/")
			require.NoError(t, err)
			require.Zero(t, time.Since(began))
			time.Sleep(2 * time.Millisecond)
		}
		require.NoError(t, fleet.Close())
		assert.InDelta(t, n/25, operations, 140, "five standard deviations")
		assert.InDelta(t, 0.2*n, paid, 0.07*n)
	})
}
