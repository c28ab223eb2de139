// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/host"
)

// Host is the state of a host in trouble: the tokens missing from its budget,
// the pause it asked for, its breaker and its gates. The zero Host is a host
// without trouble. A Host is safe for concurrent use and must not be copied.
//
// Transport keeps Hosts of its own. Programs use a Host directly to find out
// what a policy would do, in a test or a simulation.
type Host struct{ record host.Record }

// First decides before the first attempt: whether to make it, to wait first, or
// to fail at once. The draw must be uniformly distributed. Only a breaker or
// gate ever holds back a first attempt.
func (h *Host) First(r *Rules, c *Call, now time.Duration, draw uint64) Decision {
	return r.first(&h.record, c, now, draw)
}

// Next decides after an attempt that ended in o at the instant now. It checks,
// in this order: the caller has gone; the outcome is accepted or hopeless; the
// server forbids a retry; attempts are used up; a repetition isn't safe; the
// body can't be replayed; the wait is too long; the host is paused; the
// deadline; the breaker; the budget. Next also records what o says about the
// host. If it decides to retry, it takes the tokens for the retry, so the
// caller must make the attempt or call [Host.Return].
func (h *Host) Next(r *Rules, c *Call, o Outcome, now time.Duration, draw uint64) Decision {
	return r.next(&h.record, c, o, now, draw)
}

// Wake decides at the end of a wait: whether to make the attempt, to keep
// waiting because the host has asked for more time, or to stop. If Wake decides
// to stop, there is nothing left to return with [Host.Return].
func (h *Host) Wake(r *Rules, c *Call, now time.Duration, draw uint64) Decision {
	return r.wake(&h.record, c, now, draw)
}

// Return gives back what a decision to make an attempt has taken, when no
// attempt follows or when the attempt says nothing about the host: tokens, a
// place at the gate and a place among the breaker's probes. It reports whether
// other calls at the gate must ask again now: those that [Host.Woken] returns.
// Calling Return twice is harmless.
func (h *Host) Return(r *Rules, c *Call) (wakes bool) { return r.giveBack(&h.record, c) }

// Woken returns the Waiter of a call that waits at h's gate and must ask again
// now, or nil if there is none. After a Decision with Wakes, or a Return that
// reports true, the caller must call Woken until it returns nil, and make each
// returned call ask again.
func (h *Host) Woken() any { return h.record.Woken() }

// Healed reports whether h holds back no request and its breaker counts no
// failure. Transport then forgets h, including the successes in the breaker's
// window. The breaker starts counting again at the next failure.
func (h *Host) Healed(now time.Duration) bool { return h.record.Healed(now) }

// State describes h under the rules r at the instant now. In the result, Host,
// Policy, LastFailure, FailedAgo and LastGiveUp are zero.
func (h *Host) State(r *Rules, now time.Duration) HostState { return r.state(&h.record, now) }

// HostState describes what a Transport knows of a host: why it doesn't retry
// requests to the host, or holds them back. In JSON, durations are strings
// ("1.5s") and an unlimited Size is "off", as in policies. String returns a
// line for people.
type HostState struct {
	Host   string  // host:port; "others" for hosts without a state of their own, see [Transport.HostStates]
	Policy string  // the pattern in Transport.Hosts that the host follows, or "default"
	Tokens float64 // tokens left in the host's budget
	Size   float64 // size of the host's budget; 0 means unlimited

	SharedTokens float64 // tokens left in the budget that the hosts of the policy share; see Budget.Shared
	SharedSize   float64 // size of that budget; 0 if there is none

	// FailedRetries is the number of retries that have failed in a row; a
	// timeout counts as two. At 4, the maximum, the Transport doesn't retry
	// until a request succeeds.
	FailedRetries int

	FleetTokens float64       // tokens left in the fleet's account, as last heard
	FleetSize   float64       // size of that account; 0 if there is none or its level is unknown
	PausedFor   time.Duration // how much longer the host holds back retries and, at its gate, new requests of at least one key
	Breaker     string        // "closed", "open" or "half-open"
	OpenFor     time.Duration // time until the breaker allows the next probe
	Waiting     int           // requests waiting at the host's gates, for all keys together
	LastFailure Reason        // reason of the last failed attempt; empty if unknown
	FailedAgo   time.Duration // time since LastFailure
	LastGiveUp  Reason        // reason of the last give-up; empty if there was none
}

// state implements [Host.State].
func (r *Rules) state(h *host.Record, now time.Duration) HostState {
	s := HostState{PausedFor: h.PausedFor(now), Breaker: breaker.Names[breaker.Closed]}
	if r.budget.Size > 0 {
		owed := h.Debt.Load()
		s.Tokens = max(0, float64(r.budget.Size-owed.Missing)/budget.Token)
		s.FailedRetries = int(owed.Streak)
		s.Size = float64(r.budget.Size) / budget.Token
	}
	if r.pool != nil {
		s.SharedTokens, s.SharedSize = r.pool.Tokens(now)
	}
	t := h.Troubles(now)
	// A breaker that has been switched off holds nothing back.
	if r.breaker != nil {
		s.Breaker, s.OpenFor = breaker.Names[t.Breaker], t.OpenFor
	}
	s.Waiting, s.PausedFor = t.Waiting, max(s.PausedFor, t.Closed)
	return s
}

// String describes s on one line, such as "api.example.com:443 (policy
// default): 2 of 5 tokens, breaker open, next probe in 3s, last failure timeout
// 1s ago".
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
	case s.Breaker != breaker.Names[breaker.Closed]:
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
	Host          string   `json:"host"`
	Policy        string   `json:"policy"`
	Tokens        *float64 `json:"tokens,omitempty"` // nil: unlimited
	Size          any      `json:"size"`
	SharedTokens  *float64 `json:"shared_tokens,omitempty"`
	SharedSize    float64  `json:"shared_size,omitempty"`
	FailedRetries int      `json:"failed_retries,omitempty"`
	PausedFor     string   `json:"paused_for"`
	Breaker       string   `json:"breaker"`
	OpenFor       string   `json:"open_for"`
	Waiting       int      `json:"waiting"`
	LastFailure   Reason   `json:"last_failure,omitempty"`
	FailedAgo     string   `json:"failed_ago,omitempty"`
	LastGiveUp    Reason   `json:"last_give_up,omitempty"`
	FleetTokens   *float64 `json:"fleet_tokens,omitempty"` // nil: not known
	FleetSize     float64  `json:"fleet_size,omitempty"`
}

// MarshalJSON writes durations as strings, such as "1.5s", and an unlimited
// Size as "off".
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

// UnmarshalJSON reads what MarshalJSON writes. The error names the field and
// value that are wrong.
func (s *HostState) UnmarshalJSON(data []byte) error {
	var wire hostStateJSON
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&wire); err != nil {
		return fmt.Errorf("retrip: host state: %w", err)
	}
	back := HostState{Host: wire.Host, Policy: wire.Policy, FailedRetries: wire.FailedRetries, Breaker: wire.Breaker, Waiting: wire.Waiting, LastFailure: wire.LastFailure, LastGiveUp: wire.LastGiveUp}
	if wire.Tokens != nil {
		back.Tokens = *wire.Tokens
	}
	if wire.SharedTokens != nil {
		back.SharedTokens, back.SharedSize = *wire.SharedTokens, wire.SharedSize
	}
	if wire.FleetTokens != nil {
		back.FleetTokens, back.FleetSize = *wire.FleetTokens, wire.FleetSize
	}
	switch size := wire.Size.(type) {
	case float64:
		back.Size = size
	case nil:
	default:
		if size != "off" {
			return fmt.Errorf(`retrip: host state: size is %v: it must be a number or "off"`, size)
		}
	}
	for _, d := range []struct {
		name, text string
		into       *time.Duration
	}{{"paused_for", wire.PausedFor, &back.PausedFor}, {"open_for", wire.OpenFor, &back.OpenFor}, {"failed_ago", wire.FailedAgo, &back.FailedAgo}} {
		if d.text == "" {
			continue
		}
		var err error
		if *d.into, err = time.ParseDuration(d.text); err != nil {
			return fmt.Errorf("retrip: host state: %s is %q: it must be a duration", d.name, d.text)
		}
	}
	*s = back
	return nil
}
