// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

// A record that stands for many hosts has only a budget.
func TestRules_ForOthers(t *testing.T) {
	r := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, Breaker: retrip.Breaker{Ratio: 0.01, MinVolume: 1}})
	others := r.ForOthers()
	var h host.Record
	for _, status := range []int{429, 503} {
		o := play.Repeatable(status)
		o.RetryAfter = 10 * time.Second
		d := others.Next(&h, &decide.Call{Attempts: 1}, o, 0, 0)
		assert.True(t, d.Retry)
		assert.GreaterOrEqual(t, d.Wait, 10*time.Second, "it binds the request itself")
	}
	assert.Equal(t, decide.State{Tokens: 4, Size: 5, Breaker: breaker.Closed}, others.State(&h, 0))
	assert.Equal(t, play.Decision{Retry: true}, others.First(&h, &decide.Call{}, 0, 0))
	assert.True(t, r.Gate && r.Breaker != nil, "the original is unchanged")
}
