// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/sim"
)

// The default reaches the goals of its design. `make tables` runs every case
// five times, as the command does.
//
//retrip:promise P14
func TestBudgetReachesItsGoals(t *testing.T) {
	runs, all := 1, os.Getenv("RETRIP_TABLES") != ""
	if all {
		runs = 5
	}
	cells := budgetCells()
	require.Len(t, cells, 37)
	for i := range cells {
		c := &cells[i]
		if !all && c.scenario.Fleet.Clients > 100 {
			continue
		}
		results, err := sim.RunAll(t.Context(), c.under(c.scenario.Policy).Seeds(runs), nil)
		require.NoError(t, err)
		b := newBudgetResult(c, "retrip", results)
		t.Logf("%s: %s, for %s", c.name, b.text(c.measure), c.goalText())
		assert.True(t, c.meets(b.Median), "%s: %s, for %s", c.name, b.text(c.measure), c.goalText())
	}
}

// The budget without its other rules misses them.
func TestBudgetGoalsTell(t *testing.T) {
	plain, err := sim.Preset("plain-budget", sim.Overload().Policy.Retry)
	require.NoError(t, err)
	var fails []string
	cells := budgetCells()
	for i := range cells {
		c := &cells[i]
		if c.scenario.Fleet.Clients > 100 {
			continue
		}
		s := c.under(plain)
		r, err := s.Run(t.Context(), nil)
		require.NoError(t, err)
		if b := newBudgetResult(c, plain.Name, []*sim.Result{r}); !c.meets(b.Median) {
			fails = append(fails, c.name)
		}
	}
	assert.Subset(t, fails, []string{"30 % fail: success", "45 % fail: success", "60 % fail: success",
		"90 % load on ten backends, 10 clients: success", "90 % load on ten backends, 100 clients: success"})
}

func TestBudgetNeverIsNoGoal(t *testing.T) {
	c := budgetCells()[0]
	b := newBudgetResult(&c, "retrip", []*sim.Result{{Recovery: sim.Never}})
	assert.False(t, c.meets(b.Median))
	assert.Equal(t, "never", b.text(c.measure))
	assert.Equal(t, []string{"retrip misses a goal: brownout of 1s, 1000 clients: recovery is never, not ≤ 7 s"}, misses([]budgetCell{c}, []budgetResult{b}))
}
