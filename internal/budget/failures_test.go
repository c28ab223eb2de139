// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"fmt"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// The success rates with independent failures (docs/retry-storms.md, "What a
// budget costs"), and the attempts they take.
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
		{retrip.Budget{}, .30, 99.13, .2, 1.43},
		{retrip.Budget{}, .45, 82.5, 2, 1.6},
		{retrip.Budget{}, .60, 51, 2, 1.4},
		{retrip.Budget{}, 1, 0, 0, 1.01},
		{retrip.Unlimited, .10, 99.99, .5, 1.12},
		{retrip.Unlimited, .30, 99.20, .5, 1.43},
		{retrip.Unlimited, 1, 0, 0, 4},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("size %v/%v%%", tt.budget.Size, 100*tt.p), func(t *testing.T) {
			success, attempts := independentFailures(play.Rules(t, retrip.Policy{Budget: tt.budget}), tt.p, 7)
			t.Logf("%.2f %% succeed at %.3f attempts", success, attempts)
			assert.InDelta(t, tt.want, success, tt.within)
			assert.LessOrEqual(t, attempts, tt.most)
			assert.GreaterOrEqual(t, attempts, 1.0)
		})
	}
}

// independentFailures lets 100 clients make requests to hosts that fail an
// attempt with probability p. It returns the percentage of requests that
// succeed and the attempts per request. Each client makes the given number of
// requests per second, for 100 seconds.
func independentFailures(r *decide.Rules, p, perSecond float64) (success, attempts float64) {
	const clients, horizon = 100, 100 * time.Second
	w := play.NewWorld(1)
	var requests, good, sent int
	for range clients {
		h := new(host.Record)
		var arrive func()
		arrive = func() {
			requests++
			w.Request(h, r, func() decide.Outcome {
				sent++
				if w.Random.Float64() < p {
					return took(http.StatusServiceUnavailable, 5*time.Millisecond)
				}
				return took(http.StatusOK, 5*time.Millisecond)
			}, func(o decide.Outcome, _ decide.Reason) {
				if o.Status == http.StatusOK {
					good++
				}
			})
			if next := w.Now + time.Duration(w.Random.ExpFloat64()/perSecond*float64(time.Second)); next < horizon {
				w.At(next, arrive)
			}
		}
		w.At(time.Duration(w.Random.ExpFloat64()/perSecond*float64(time.Second)), arrive)
	}
	w.Run(math.MaxInt64)
	return 100 * float64(good) / float64(requests), float64(sent) / float64(requests)
}
