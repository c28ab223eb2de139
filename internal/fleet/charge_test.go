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
		tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{Budget: 1e6, FleetBudget: 10},
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
