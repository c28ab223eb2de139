// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"time"
)

// Breaker stops attempts to a host that is down, so that requests to the host
// no longer cost timeouts. A breaker opens when Window holds at least MinVolume
// results and at least Ratio of them are failures. A failure is an outcome that
// the policy calls retryable. If Window holds fewer results, because requests
// are rare, the breaker opens after MinVolume failures in a row, however long
// that takes. A success, or an hour without a failure, restarts that count.
//
// While the breaker is open, requests fail at once with an [Error] whose Reason
// is ReasonBreakerOpen. After OpenFor, with jitter so that a fleet doesn't
// return in step, the breaker lets Probes attempts through, spread out in time.
// If fewer than Ratio of them fail, the breaker closes; otherwise it opens
// again. It decides as soon as the remaining probes can't change the answer:
// with the defaults, one success closes the breaker, and two failures open it
// again. The breaker ignores cancellations by the caller, failures of the
// caller's own request body, and results of attempts that began in an earlier
// state of the breaker.
//
// A breaker starts counting at the first failure, so the ratio is too high
// until Window has passed. After a breaker has closed, it keeps counting
// successes for six more Windows, so that a host that alternates between up and
// down every 5 s stays reachable.
//
// A request that arrives after OpenFor is a probe, and the breaker lets it
// through. An open breaker therefore refuses no request if requests come less
// often than every one and a half times OpenFor (7.5 s by default); it only
// saves the retries. It refuses a fifth of the requests at one request per
// OpenFor, and seven tenths at five requests per OpenFor. For a host with rare
// requests, set OpenFor to several times the interval between them.
//
// The zero Breaker is off. A Breaker with any field set is on, with defaults
// for its other fields. The defaults come from simulation
// (TestBreaker_IndependentFailures): the breaker opens for a host that is down,
// after 0.8 s at 20 requests/s, but not for a host that fails half the time,
// where retries help more. A low Ratio makes a partial outage worse: if one
// attempt in ten fails, retries let 99.99 % of the requests succeed, but a
// Ratio of 0.1 leaves only half of them.
type Breaker struct {
	// Ratio is the share of failures that opens the breaker, 0.01 to 1. Off
	// switches the breaker off. If 0, it is inherited; the default is 0.8.
	Ratio float64 `json:"ratio"`

	// Window is how far back results count. If 0, it is inherited; the default
	// is 10 s.
	Window time.Duration `json:"window"`

	// MinVolume is the number of results that Window must hold for Ratio to
	// count. With fewer results, it is the number of failures in a row that
	// opens the breaker. If 0, it is inherited; the default is 20.
	MinVolume int `json:"min_volume"`

	// OpenFor is the average time for which the breaker stays open. Each time
	// is drawn uniformly from 0.5 to 1.5 times OpenFor. If 0, it is inherited;
	// the default is 5 s.
	OpenFor time.Duration `json:"open_for"`

	// Probes is the number of attempts that decide, by Ratio, whether the
	// breaker closes or opens again. A host that is down gets up to Probes
	// attempts per OpenFor. If 0, it is inherited; the default is 2.
	Probes int `json:"probes"`
}

var defaultBreaker = Breaker{Ratio: 0.8, Window: 10 * time.Second, MinVolume: 20, OpenFor: 5 * time.Second, Probes: 2}
