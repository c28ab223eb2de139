// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
)

// HostState returns what t knows about a host, given as "example.com:443" or
// "[::1]:8080". Case and a trailing dot of the name don't matter. A host
// without trouble has all its tokens, no pause and a closed breaker. The error
// says why host isn't valid, or what is wrong with t's policies.
func (t *Transport) HostState(host string) (HostState, error) {
	key, err := hostkey.Parse(host)
	if err != nil {
		return HostState{}, err
	}
	s := t.start()
	if s.err != nil {
		return HostState{}, s.err
	}
	now := s.now()
	e := t.hosts.Pin(key, now)
	switch others := t.hosts.Indebted(key); {
	case e != nil:
		defer t.hosts.Unpin(e, now)
	case others != nil && !others.Lapsed(now):
		e = others
	default:
		e = untroubled()
	}
	return t.state(s, e, key, now), nil
}

func untroubled() *host.Entry { return &host.Entry{} }

// HostStates returns the states of all hosts in trouble, sorted by name, or nil
// if t's policies are invalid. If about 4096 hosts are in trouble at once,
// further hosts share budgets. The last entry then has the Host "others" and
// the policy "default"; it adds up the tokens of these budgets and has the
// largest of their FailedRetries.
func (t *Transport) HostStates() []HostState {
	s := t.start()
	if s.err != nil {
		return nil
	}
	now := s.now()
	entries, others := t.hosts.All(now)
	states := make([]HostState, 0, len(entries)+1)
	for _, e := range entries {
		states = append(states, t.state(s, e, e.Key, now))
	}
	if len(others) > 0 {
		all := HostState{Host: otherHosts, Policy: s.fallback.name, Breaker: BreakerClosed}
		for _, e := range others {
			state := s.fallback.state(&e.Record, now)
			all.Tokens += state.Tokens
			all.Size += state.Size
			all.FailedRetries = max(all.FailedRetries, state.FailedRetries)
		}
		states = append(states, all)
	}
	return states
}

// sharedMissing returns the tokens missing from the budgets that hosts share,
// by the name of the policy that sets each.
func (t *Transport) sharedMissing() map[string]float64 {
	s := t.start()
	if s.err != nil {
		return nil
	}
	missing := make(map[string]float64, len(s.pools))
	for policy, pool := range s.pools {
		left, size := pool.Tokens(s.now())
		missing[policy] = size - left
	}
	return missing
}

// otherHosts stands for the hosts that share a budget because the table is
// full. It has no port, unlike every host.
const otherHosts = "others"

// state is that of s, with what is known of the fleet's account.
func (t *Transport) state(s *settings, e *host.Entry, key hostkey.Key, now time.Duration) HostState {
	state := s.state(e, key, now)
	if size := s.find(&url.URL{Host: key.String()}).fleet; t.Fleet != nil && size > 0 {
		if level, known := t.Fleet.accounts.Level(key, size); known {
			state.FleetTokens, state.FleetSize = level, size
		}
	}
	return state
}

// state describes e, the entry of the host of key, under the policy that the
// host follows.
func (s *settings) state(e *host.Entry, key hostkey.Key, now time.Duration) HostState {
	r := s.find(&url.URL{Host: key.String()})
	state := r.state(&e.Record, now)
	state.Host, state.Policy = key.String(), r.name
	if reason := decide.Reason(e.Failed.Load()); reason != decide.None && !e.Others {
		state.LastFailure, state.FailedAgo = wordOf(reason), max(0, now-time.Duration(e.Used.Load()))
	}
	if !e.Others {
		state.LastGiveUp = wordOf(decide.Reason(e.GaveUp.Load()))
	}
	return state
}

// PolicyFor returns the policy in force for a host, given as for HostState,
// with every inherited field and every default filled in. MaxSends is 0 only if
// its bound depends on whether an attempt is derived (see [Transport]).
// PolicyFor knows the callbacks of Base, which make all attempts derived, from
// the first RoundTrip on. The error is as for HostState.
func (t *Transport) PolicyFor(host string) (Policy, error) {
	key, err := hostkey.Parse(host)
	if err != nil {
		return Policy{}, err
	}
	s := t.start()
	if s.err != nil {
		return Policy{}, s.err
	}
	r := s.find(&url.URL{Host: key.String()})
	p := r.policy.clone()
	if p.MaxSends == 0 && (r.derives || t.Trace != nil || s.watch&attempt.WatchHandshake != 0) {
		p.MaxSends = defaultMaxSends
	}
	return p, nil
}

// Policies returns the policies in force as they were set, by the fields Policy
// and Hosts or by SetPolicies. The caller may change the result. The error says
// what is wrong with t's policies.
func (t *Transport) Policies() (Policy, map[string]Policy, error) {
	s := t.start()
	if s.err != nil {
		return Policy{}, nil, s.err
	}
	hosts := make(map[string]Policy, len(s.hosts))
	for pattern, p := range s.hosts {
		hosts[pattern] = p.clone()
	}
	return s.policy.clone(), hosts, nil
}

// UnmatchedPatterns returns the patterns in force that no request has matched
// yet, sorted. Such a pattern may be misspelled, or hidden by a more specific
// one. SetPolicies forgets nothing about the patterns that it keeps.
func (t *Transport) UnmatchedPatterns() []string {
	s := t.start()
	if s.err != nil {
		return nil
	}
	var never []string
	for _, pattern := range slices.Sorted(maps.Keys(s.hosts)) {
		if !s.matched[strings.ToLower(pattern)].Load() {
			never = append(never, pattern)
		}
	}
	return never
}
