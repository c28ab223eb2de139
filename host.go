// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/host"
)

// HostState describes what a Transport knows of a host: why it doesn't retry
// requests to the host, or holds them back.
type HostState struct {
	Host   string  // host:port; "others" for hosts without a state of their own, see [Transport.HostStates]
	Policy string  // the pattern in Transport.Hosts that the host follows, or "default"
	Tokens float64 // tokens left in the host's budget
	Size   float64 // size of the host's budget; 0 means unlimited

	SharedTokens float64 // tokens left in the budget that the hosts of the policy share; see Budget.Shared
	SharedSize   float64 // size of that budget; 0 if there is none

	FailedRetries int           // retries that failed in a row; a timeout counts as two; at 4, the maximum, there are no retries until a request succeeds
	FleetTokens   float64       // tokens left in the fleet's account, as last heard
	FleetSize     float64       // size of that account; 0 if there is none or its level is unknown
	PausedFor     time.Duration // how much longer the host holds back retries and, at its gate, new requests of at least one key
	Breaker       BreakerState
	OpenFor       time.Duration // time until the breaker allows the next probe
	Waiting       int           // requests waiting at the host's gates, for all keys together
	LastFailure   Reason        // reason of the last failed attempt; empty if unknown
	FailedAgo     time.Duration // time since LastFailure
	LastGiveUp    Reason        // reason of the last give-up; empty if there was none
}

// state describes h under the rules r at the instant now. In the result, what
// belongs to an entry of the table is zero.
func (r *rules) state(h *host.Record, now time.Duration) HostState {
	s := r.State(h, now)
	return HostState{Tokens: s.Tokens, Size: s.Size, SharedTokens: s.SharedTokens, SharedSize: s.SharedSize, FailedRetries: s.FailedRetries,
		PausedFor: s.PausedFor, Breaker: breakerStates[s.Breaker], OpenFor: s.OpenFor, Waiting: s.Waiting}
}

// String describes s on one line, such as "api.example.com:443 (policy
// default): 2 of 5 tokens, breaker open, next probe in 3s".
func (s HostState) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (policy %s): ", s.Host, s.Policy)
	if s.Size == 0 {
		b.WriteString("unlimited tokens")
	} else {
		fmt.Fprintf(&b, "%.3g of %.7g tokens", s.Tokens, s.Size)
	}
	if s.SharedSize > 0 {
		fmt.Fprintf(&b, ", %.3g of %.7g shared tokens", s.SharedTokens, s.SharedSize)
	}
	if s.FailedRetries > 0 {
		fmt.Fprintf(&b, ", %d failed retries in a row", s.FailedRetries)
	}
	if s.FleetSize > 0 {
		fmt.Fprintf(&b, ", %.3g of %.7g of the fleet's", s.FleetTokens, s.FleetSize)
	}
	if s.PausedFor > 0 {
		fmt.Fprintf(&b, ", paused for %v", s.PausedFor.Round(time.Millisecond))
	}
	switch {
	case s.OpenFor > 0:
		fmt.Fprintf(&b, ", breaker %s, next probe in %v", s.Breaker, s.OpenFor.Round(time.Millisecond))
	case s.Breaker != BreakerClosed:
		fmt.Fprintf(&b, ", breaker %s", s.Breaker)
	}
	if s.Waiting > 0 {
		fmt.Fprintf(&b, ", %d waiting at the gate", s.Waiting)
	}
	if s.LastFailure != "" {
		fmt.Fprintf(&b, ", last failure %s %v ago", s.LastFailure, s.FailedAgo.Round(time.Millisecond))
	}
	if s.LastGiveUp != "" {
		fmt.Fprintf(&b, ", last give-up %s", s.LastGiveUp)
	}
	return b.String()
}

// hostStateJSON is the JSON form of a HostState.
type hostStateJSON struct {
	Host          string       `json:"host"`
	Policy        string       `json:"policy"`
	Tokens        *float64     `json:"tokens,omitempty"` // nil: unlimited
	Size          any          `json:"size"`
	SharedTokens  *float64     `json:"shared_tokens,omitempty"`
	SharedSize    float64      `json:"shared_size,omitempty"`
	FailedRetries int          `json:"failed_retries,omitempty"`
	PausedFor     string       `json:"paused_for"`
	Breaker       BreakerState `json:"breaker"`
	OpenFor       string       `json:"open_for"`
	Waiting       int          `json:"waiting"`
	LastFailure   Reason       `json:"last_failure,omitempty"`
	FailedAgo     string       `json:"failed_ago,omitempty"`
	LastGiveUp    Reason       `json:"last_give_up,omitempty"`
	FleetTokens   *float64     `json:"fleet_tokens,omitempty"` // nil: not known
	FleetSize     float64      `json:"fleet_size,omitempty"`
}

// MarshalJSON writes durations as strings, such as "1.5s", and an unlimited
// Size as "off", as in policies.
func (s HostState) MarshalJSON() ([]byte, error) {
	wire := hostStateJSON{Host: s.Host, Policy: s.Policy, Tokens: &s.Tokens, Size: s.Size, FailedRetries: s.FailedRetries, PausedFor: s.PausedFor.String(), Breaker: s.Breaker,
		OpenFor: s.OpenFor.String(), Waiting: s.Waiting, LastFailure: s.LastFailure, LastGiveUp: s.LastGiveUp}
	if s.Size == 0 {
		wire.Tokens, wire.Size = nil, "off"
	}
	if s.SharedSize > 0 {
		wire.SharedTokens, wire.SharedSize = &s.SharedTokens, s.SharedSize
	}
	if s.FleetSize > 0 {
		wire.FleetTokens, wire.FleetSize = &s.FleetTokens, s.FleetSize
	}
	if s.LastFailure != "" {
		wire.FailedAgo = s.FailedAgo.String()
	}
	return json.Marshal(wire)
}
