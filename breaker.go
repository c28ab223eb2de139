// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"time"

	"github.com/retrip/retrip/internal/breaker"
)

// Breaker stops attempts to a host that is down, so that requests to the host
// no longer cost timeouts. A breaker opens when Window holds at least MinVolume
// results, of which at least Ratio are failures: outcomes that the policy calls
// retryable. If Window holds fewer results, the breaker opens after MinVolume
// failures in a row; a success, or an hour without a failure, restarts that
// count. Cancellations by the caller, and failures of its request body, don't count.
//
// While the breaker is open, requests fail at once with [ReasonBreakerOpen]. After
// OpenFor, the breaker lets two attempts through as probes. If fewer than Ratio of
// them fail, it closes, and otherwise it opens again. OpenFor should be several times
// the interval between requests. A low Ratio turns a partial outage into a full one.
//
// The zero Breaker is off. A Breaker with any field set is on; fields that are
// 0 inherit, as in [Policy]. Only Ratio can be Off.
type Breaker struct {
	// Ratio is the share of failures that opens the breaker, 0.01 to 1. Off
	// switches the breaker off. The default is 0.8.
	Ratio float64 `json:"ratio"`
	// Window is how far back results count. The default is 10 s.
	Window time.Duration `json:"window"`
	// MinVolume is the number of results that Window must hold for Ratio to
	// count or, if Window holds fewer, of failures in a row. The default is 20.
	MinVolume int `json:"min_volume"`
	// OpenFor is how long the breaker stays open: 0.5 to 1.5 times that, at random.
	// The default is 5 s.
	OpenFor time.Duration `json:"open_for"`
}

var defaultBreaker = Breaker{Ratio: 0.8, Window: 10 * time.Second, MinVolume: 20, OpenFor: 5 * time.Second}

// BreakerState is the state of the breaker of a host, in [HostState].
type BreakerState string

const (
	BreakerClosed   BreakerState = "closed"    // attempts go through
	BreakerOpen     BreakerState = "open"      // attempts fail at once
	BreakerHalfOpen BreakerState = "half-open" // a few attempts go through, as probes
)

// breakerStates are the states as package breaker numbers them.
var breakerStates = [...]BreakerState{breaker.Closed: BreakerClosed, breaker.Open: BreakerOpen, breaker.HalfOpen: BreakerHalfOpen}
