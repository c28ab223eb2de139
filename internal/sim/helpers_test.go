// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

func TestMain(m *testing.M) { testenv.RareGC(m) }

// brief selects the most telling rows of long tables. The full tables take
// minutes; `make tables` runs them, as CI does, without the race detector,
// which makes them about ten times as slow and finds nothing in runs of one
// goroutine each.
var brief = testenv.Race || !testenv.Tables()

// rows returns all rows of a table, or some if the run is brief.
func rows[T any](some, all []T) []T {
	if brief {
		return some
	}
	return all
}

// as returns s with a preset on top of its policy.
func as(t *testing.T, s Scenario, preset string) Scenario {
	t.Helper()
	var err error
	s.Policy, err = Preset(preset, s.Policy.Retry)
	require.NoError(t, err)
	return s
}

func of(s Scenario, clients int) Scenario {
	s.Fleet.Clients = clients
	return s
}

// median returns the median time to recover in seconds, where never is the
// longest time.
func median(t *testing.T, s Scenario) float64 {
	t.Helper()
	return middle(ranAll(t, s.Seeds(testenv.Size(1, 5))), recoverySeconds)
}

// middle returns the median of a figure.
func middle(list []*Result, of func(*Result) float64) float64 {
	var all []float64
	for _, r := range list {
		all = append(all, of(r))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func ran(t *testing.T, s Scenario) *Result {
	t.Helper()
	r, err := s.Run(t.Context())
	require.NoError(t, err)
	return r
}

func ranAll(t *testing.T, scenarios []Scenario) []*Result {
	t.Helper()
	results, err := RunAll(t.Context(), scenarios, nil)
	require.NoError(t, err)
	return results
}
