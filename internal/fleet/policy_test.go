// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

//retrip:promise P22
func TestFleet_PolicyDecidesWhoTakesPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := map[string]float64{}
		fleet := opened(t, storeFunc(func(_ context.Context, host string, _, size float64) (float64, error) {
			asked[host] = size
			return 0, nil
		}))
		tr := &retrip.Transport{Fleet: fleet, Policy: steady, Base: alwaysAnswers(503), Hosts: map[string]retrip.Policy{
			"off.example":       {FleetBudget: retrip.Off},
			"small.example":     {FleetBudget: 50},
			"unlimited.example": {Budget: retrip.Off},
			"once.example":      {MaxAttempts: 1},
		}}
		for _, host := range []string{"off", "small", "unlimited", "once", "plain"} {
			_, err := get(t, tr, "http://"+host+".example/")
			require.NoError(t, err)
		}
		assert.Equal(t, map[string]float64{"small.example:80": 50, "plain.example:80": 175}, asked)
		clear(asked)
		for _, p := range []retrip.Policy{{FleetBudget: retrip.Off}, {Budget: retrip.Off}} {
			req, err := http.NewRequestWithContext(retrip.WithPolicy(t.Context(), p), http.MethodGet, "http://other.example/", nil)
			require.NoError(t, err)
			_, err = tr.RoundTrip(req)
			require.NoError(t, err)
			assert.Empty(t, asked)
		}

		// The policies change while the Transport is in use.
		require.NoError(t, tr.SetPolicies(retrip.Policy{FleetBudget: retrip.Off}, nil))
		_, err := get(t, tr, "http://plain2.example/")
		require.NoError(t, err)
		assert.Empty(t, asked)
	})
}

//retrip:promise P22
func TestFleet_HotSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reasons []retrip.Reason
		tr := &retrip.Transport{Fleet: retrip.NewFleet(nil), Policy: steady, Base: alwaysAnswers(503),
			Trace: &retrip.Trace{GiveUp: func(e retrip.Event) { reasons = append(reasons, e.Reason) }}}
		p := steady
		for i, size := range []float64{10, 1e6, 100, 500, retrip.Off, 20} {
			p.FleetBudget = size
			require.NoError(t, tr.SetPolicies(p, nil))
			_, err := get(t, tr, fmt.Sprintf("http://%d.example/", i))
			require.NoError(t, err)
			_, err = get(t, tr, "http://a.example/") // its budget is soon spent
			require.NoError(t, err)
		}
		for _, r := range reasons {
			assert.NotEqual(t, retrip.ReasonFleetBudget, r, "nobody has spent anything of the account but a token per host")
		}
	})
}
