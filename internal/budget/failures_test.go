// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// The success rates with independent failures (docs/retry-storms.md, "What a
// budget costs"), and the attempts they take.
//
//retrip:promise P14
func TestBudget_IndependentFailures(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	tests := []struct {
		budget retrip.Budget
		p      float64
		want   float64 // % of requests that succeed
		within float64
		most   float64 // attempts per request
	}{
		{retrip.Budget{}, .01, 100.00, .5, 1.011},
		{retrip.Budget{}, .05, 100.00, .5, 1.06},
		{retrip.Budget{}, .10, 99.99, .5, 1.12},
		{retrip.Budget{}, .20, 99.83, .1, 1.26},
		{retrip.Budget{}, .30, 99.16, .2, 1.43},
		{retrip.Budget{}, .45, 94.3, 1, 1.75},
		{retrip.Budget{}, .60, 62, 2, 1.6},
		{retrip.Budget{}, 1, 0, 0, 1.01},
		{retrip.Unlimited, .10, 99.99, .5, 1.12},
		{retrip.Unlimited, .30, 99.20, .5, 1.43},
		{retrip.Unlimited, 1, 0, 0, 4},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("size %v/%v%%", tt.budget.Size, 100*tt.p), func(t *testing.T) {
			success, attempts := play.IndependentFailures(play.Rules(t, retrip.Policy{Budget: tt.budget}), tt.p, 7)
			t.Logf("%.2f %% succeed at %.3f attempts", success, attempts)
			assert.InDelta(t, tt.want, success, tt.within)
			assert.LessOrEqual(t, attempts, tt.most)
			assert.GreaterOrEqual(t, attempts, 1.0)
		})
	}
}
