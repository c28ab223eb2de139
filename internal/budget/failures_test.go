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
		budget float64
		p      float64
		want   float64 // % of requests that succeed
		within float64
		most   float64 // attempts per request
	}{
		{0, .01, 100.00, .5, 1.011},
		{0, .05, 100.00, .5, 1.06},
		{0, .10, 99.99, .5, 1.12},
		{0, .20, 99.83, .1, 1.26},
		{0, .30, 99.16, .2, 1.43},
		{0, .45, 94.3, 1, 1.75},
		{0, .60, 62, 2, 1.6},
		{retrip.Off, .10, 99.99, .5, 1.12},
		{0, 1, 0, 0, 1.01},
		{retrip.Off, .30, 99.20, .5, 1.43},
		{retrip.Off, 1, 0, 0, 4},
	}
	for i, tt := range tests {
		if i%2 == 1 && !testenv.Tables() {
			continue // 70 000 requests each
		}
		t.Run(fmt.Sprintf("size %v/%v%%", tt.budget, 100*tt.p), func(t *testing.T) {
			success, attempts := play.IndependentFailures(play.Rules(t, retrip.Policy{Budget: tt.budget}), tt.p, 7)
			t.Logf("%.2f %% succeed at %.3f attempts", success, attempts)
			assert.InDelta(t, tt.want, success, tt.within)
			assert.LessOrEqual(t, attempts, tt.most)
			assert.GreaterOrEqual(t, attempts, 1.0)
		})
	}
}
