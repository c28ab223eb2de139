// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"encoding/json"
	"time"

	"github.com/retrip/retrip/internal/host"
)

// HostState describes what a Transport knows of a host: how requests to it fail,
// and why the Transport doesn't retry them, or holds them back.
type HostState struct {
	Host          string        // host:port; "others" for hosts without a state of their own, see [Transport.HostStates]
	Policy        string        // the pattern in Transport.Hosts that the host follows, or "default"
	Tokens        float64       // tokens left in the host's budget
	Size          float64       // size of the host's budget; 0 means unlimited
	FailedRetries int           // retries that failed in a row, as Budget counts them; if too many, there are no retries until a request succeeds
	FleetTokens   float64       // tokens left in the fleet's account, as last heard
	FleetSize     float64       // size of that account; 0 if there is none or its level is unknown
	PausedFor     time.Duration // how much longer the host holds back retries and, at its gate, new requests of at least one key
	Breaker       BreakerState
	OpenFor       time.Duration // time until the breaker allows the next probe
	Waiting       int           // requests waiting at the host's gates, for all keys together
	LastFailure   Reason        // reason of the last failed attempt; empty if unknown
	LastStatus    int           // status of its response; 0 if it had none
	LastError     string        // kind of its error, such as "connection_refused"; empty if it had none
	FailedAgo     time.Duration // time since LastFailure
	LastGiveUp    Reason        // reason of the last give-up; empty if there was none
	Failed        int           // requests that failed in the last five minutes, for any reason
	Canceled      int           // requests that their callers canceled in the last five minutes
	FailingFor    time.Duration // how long requests have failed, with never five minutes between two failures
	Held          bool          // the host is in trouble: its budget, pause, breaker or gate may hold back requests
}

// state describes h under the rules r at the instant now. In the result, what
// belongs to an entry of the table is zero.
func (r *rules) state(h *host.Record, now time.Duration) HostState {
	s := r.State(h, now)
	return HostState{Tokens: s.Tokens, Size: s.Size, FailedRetries: s.FailedRetries,
		PausedFor: s.PausedFor, Breaker: breakerStates[s.Breaker], OpenFor: s.OpenFor, Waiting: s.Waiting}
}

// hostStateJSON is the JSON form of a HostState.
type hostStateJSON struct {
	Host          string       `json:"host"`
	Policy        string       `json:"policy"`
	Tokens        *float64     `json:"tokens,omitempty"` // nil: unlimited
	Size          any          `json:"size"`
	FailedRetries int          `json:"failed_retries,omitempty"`
	PausedFor     string       `json:"paused_for"`
	Breaker       BreakerState `json:"breaker"`
	OpenFor       string       `json:"open_for"`
	Waiting       int          `json:"waiting"`
	Held          bool         `json:"held"`
	Failed        int          `json:"failed,omitempty"`   // within 5 minutes
	Canceled      int          `json:"canceled,omitempty"` // within 5 minutes
	FailingFor    string       `json:"failing_for,omitempty"`
	LastFailure   Reason       `json:"last_failure,omitempty"`
	LastStatus    int          `json:"last_status,omitempty"`
	LastError     string       `json:"last_error,omitempty"`
	FailedAgo     string       `json:"failed_ago,omitempty"`
	LastGiveUp    Reason       `json:"last_give_up,omitempty"`
	FleetTokens   *float64     `json:"fleet_tokens,omitempty"` // nil: not known
	FleetSize     float64      `json:"fleet_size,omitempty"`
}

// MarshalJSON writes durations like "1.5s" and an unlimited Size as "off".
func (s HostState) MarshalJSON() ([]byte, error) {
	wire := hostStateJSON{Host: s.Host, Policy: s.Policy, Tokens: &s.Tokens, Size: s.Size, FailedRetries: s.FailedRetries, PausedFor: s.PausedFor.String(), Breaker: s.Breaker,
		OpenFor: s.OpenFor.String(), Waiting: s.Waiting, Held: s.Held, Failed: s.Failed, Canceled: s.Canceled,
		LastFailure: s.LastFailure, LastStatus: s.LastStatus, LastError: s.LastError, LastGiveUp: s.LastGiveUp}
	if s.Size == 0 {
		wire.Tokens, wire.Size = nil, "off"
	}
	if s.FleetSize > 0 {
		wire.FleetTokens, wire.FleetSize = &s.FleetTokens, s.FleetSize
	}
	if s.LastFailure != "" {
		wire.FailedAgo = s.FailedAgo.String()
	}
	if s.Failed > 0 {
		wire.FailingFor = s.FailingFor.String()
	}
	return json.Marshal(wire)
}
