// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"fmt"
	"net/http"
	"time"
)

// Off switches off what a field of a [Policy] describes, unless its comment or that of
// its type says that it can't. Other negative values are errors.
const Off = -1

// Switch is [On], [Off] or, if 0, inherited; in JSON, true or false.
type Switch int8

// On switches on what a field of a [Policy] describes.
const On Switch = 1

// String returns "on", "off", or "" for a Switch that inherits.
func (s Switch) String() string {
	switch s {
	case 0:
		return ""
	case On:
		return "on"
	case Off:
		return "off"
	default:
		return fmt.Sprintf("Switch(%d)", int8(s))
	}
}

// Backoff is the schedule of waits before retries. The ceiling of the wait before
// retry n is min(Cap, Base·2^(n-1)). Jitter draws the wait, by default uniformly
// between 0 and the ceiling: 0 – 100 ms before the first retry, 0 – 200 ms before
// the second, and 0 – 10 s before the eighth and later ones.
type Backoff struct {
	// Base is the ceiling of the first wait. Off retries at once, unless the
	// server asks for a wait or ThrottleBase applies. The default is 100 ms.
	Base time.Duration `json:"base"`
	// Cap is the highest ceiling. Cap can't be Off. The default is 10 s.
	Cap time.Duration `json:"cap"`
	// ThrottleBase replaces a shorter Base after a refusal that names no wait, by a
	// Retry-After above 0 or in a dialect; Cap limits it too. The pace of a [Gate], once there is
	// one, and the pause of a host take precedence. The default is 1 s.
	ThrottleBase time.Duration `json:"throttle_base"`
	// Jitter says how a wait is drawn. The default is FullJitter.
	Jitter Jitter `json:"jitter"`
}

// Jitter is the window of a [Backoff] from which each wait is drawn uniformly.
type Jitter uint8

const (
	FullJitter         Jitter = iota + 1 // from 0 to the ceiling
	EqualJitter                          // from half the ceiling to the ceiling
	DecorrelatedJitter                   // from Base to three times the previous wait, at first Base, at most Cap
	NoJitter                             // always the ceiling: clients that failed together retry together
)

var jitterNames = [...]string{"", "full", "equal", "decorrelated", "none"}

// String returns "full", "equal", "decorrelated", "none", as in JSON, or "".
func (j Jitter) String() string {
	if int(j) < len(jitterNames) {
		return jitterNames[j]
	}
	return fmt.Sprintf("Jitter(%d)", uint8(j))
}

// Breaker stops attempts to a host that is down, so that requests to it cost no timeouts.
// It opens when Window holds at least MinVolume results, of which at least Ratio are
// failures: outcomes that the policy calls retryable. If Window holds fewer, it opens after
// MinVolume in a row; a success, or an hour without a failure, restarts that count. The
// caller's cancellations and body errors, and after a first failure those of what is in
// flight, don't count.
//
// While the breaker is open, requests fail at once with [ReasonBreakerOpen]. After
// OpenFor, the breaker lets two attempts through as probes, up to OpenFor/4 apart. If
// fewer than Ratio of them fail, it closes, and otherwise it opens again. OpenFor should be
// several times the interval between requests. A low Ratio turns a partial outage into a full one.
//
// A Breaker with any field set is on. Only Ratio can be Off, for no breaker.
type Breaker struct {
	// Ratio is the share of failures that opens the breaker, 0.01 to 1. The default is 0.8.
	Ratio float64 `json:"ratio"`
	// Window is how far back results count. The default is 10 s.
	Window time.Duration `json:"window"`
	// MinVolume is the number of results, or of failures in a row. The default is 20.
	MinVolume int `json:"min_volume"`
	// OpenFor is how long the breaker stays open, times 0.5 to 1.5 at random. The default is 5 s.
	OpenFor time.Duration `json:"open_for"`
}

// BreakerState is the state of the breaker of a host, in [HostState].
type BreakerState string

const (
	BreakerClosed   BreakerState = "closed"    // attempts go through
	BreakerOpen     BreakerState = "open"      // attempts fail at once
	BreakerHalfOpen BreakerState = "half-open" // a few attempts go through, as probes
)

// Gate makes all requests to a host that has refused one wait in one queue, first come,
// first served. The gate closes for the time that the server names in a 429, a 503, or
// a refusal for the rate in other words (P9 in docs/promises.md); then one request goes
// as a probe. If more than an eighth of the requests are refused, or the pauses are
// long, the others follow at a pace that the gate learns, while the pace helps. Until
// then, a refusal that names no time holds back only its own request. A request fails
// once it must miss its deadline, or if the server asks for more than Policy.MaxWait. A
// gate is for a host that limits the rate of one or a few processes.
type Gate struct {
	// Enabled switches the gate on or off. The default is off.
	Enabled Switch `json:"enabled"`

	// Key names the gate at which a request waits, for servers that limit each tenant
	// or API key: a refusal of one name holds back no other. Requests without a name wait
	// at the host's own gate, and so do those of further names while 4096 have gates.
	// Metrics, logs and HostState show no names. Key must always name a request alike,
	// be safe for concurrent use, and not read the request's body.
	Key func(*http.Request) string `json:"-"`
}
