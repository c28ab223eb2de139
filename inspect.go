// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/attempt"
)

// HostState returns what t knows about a host, given as "example.com:443" or
// "[::1]:8080". Case and a trailing dot of the name don't matter. A host
// without trouble has all its tokens, no pause and a closed breaker. The error
// says why host isn't valid, or what is wrong with t's policies. HostState is
// safe for concurrent use.
func (t *Transport) HostState(host string) (HostState, error) {
	key, err := parseHost(host)
	if err != nil {
		return HostState{}, err
	}
	s := t.start()
	if s.err != nil {
		return HostState{}, s.err
	}
	now := s.now()
	e := t.hosts.pin(key, now)
	switch others := t.hosts.stripe(key).indebted(); {
	case e != nil:
		defer t.hosts.unpin(e, now)
	case others != nil && !others.lapsed(now):
		e = others
	default:
		e = &hostEntry{}
	}
	return t.state(s, e, key, now), nil
}

// HostStates returns the states of all hosts in trouble, sorted by name. If
// about 4096 hosts are in trouble at once, further hosts share budgets. The
// last entry then has the Host "others", without a port, and the policy
// "default"; it adds up the tokens of the shared budgets and has the largest of
// their FailedRetries. HostStates returns nil if t's policies are invalid. It
// is safe for concurrent use.
func (t *Transport) HostStates() []HostState {
	s := t.start()
	if s.err != nil {
		return nil
	}
	now := s.now()
	entries, others := t.hosts.all(now)
	states := make([]HostState, 0, len(entries)+1)
	for _, e := range entries {
		states = append(states, t.state(s, e, e.key, now))
	}
	if len(others) > 0 {
		all := HostState{Host: otherHosts, Policy: s.fallback.name, Breaker: breakerNames[breakerClosed]}
		for _, e := range others {
			state := e.State(s.fallback, now)
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
		left, size := pool.tokens(s.now())
		missing[policy] = size - left
	}
	return missing
}

// otherHosts stands for the hosts that share a budget because the table is
// full. It has no port, unlike every host.
const otherHosts = "others"

// state is that of s, with what is known of the fleet's account.
func (t *Transport) state(s *settings, e *hostEntry, key hostKey, now time.Duration) HostState {
	state := s.state(e, key, now)
	if size := s.find(&url.URL{Host: key.String()}).fleet; t.Fleet != nil && size > 0 {
		if level, known := t.Fleet.level(key, size); known {
			state.FleetTokens, state.FleetSize = level, size
		}
	}
	return state
}

// state describes e, the entry of the host of key, under the policy that the
// host follows.
func (s *settings) state(e *hostEntry, key hostKey, now time.Duration) HostState {
	r := s.find(&url.URL{Host: key.String()})
	state := e.State(r, now)
	state.Host, state.Policy = key.String(), r.name
	if reason := e.failed.load(); reason != "" && !e.others {
		state.LastFailure, state.FailedAgo = reason, max(0, now-time.Duration(e.used.Load()))
	}
	if !e.others {
		state.LastGiveUp = e.gaveUp.load()
	}
	return state
}

// PolicyOf returns the policy in force for a host, given as for HostState, with
// every inherited field and every default filled in. MaxSends is 0 only if its
// bound depends on the request: 10 for requests whose attempts are derived (see
// [Transport]), none for others. PolicyOf knows the callbacks of Base, which
// make all attempts derived, from the first RoundTrip on. The error says why
// host isn't valid, or what is wrong with t's policies. PolicyOf is safe for
// concurrent use.
func (t *Transport) PolicyOf(host string) (Policy, error) {
	key, err := parseHost(host)
	if err != nil {
		return Policy{}, err
	}
	s := t.start()
	if s.err != nil {
		return Policy{}, s.err
	}
	r := s.find(&url.URL{Host: key.String()})
	p := r.Policy()
	if p.MaxSends == 0 && (r.derives || t.Trace != nil || s.watch&attempt.WatchHandshake != 0) {
		p.MaxSends = defaultMaxSends
	}
	return p, nil
}

// Policies returns the policies in force as they were set, by the fields Policy
// and Hosts or by SetPolicies. The caller may change the result. The error says
// what is wrong with t's policies. Policies is safe for concurrent use.
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

// NeverMatched returns the patterns in force that no request has matched yet,
// sorted. Such a pattern may be misspelled, or hidden by a more specific
// pattern. If SetPolicies keeps a pattern, NeverMatched remembers the requests
// before it. NeverMatched is safe for concurrent use.
func (t *Transport) NeverMatched() []string {
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

// parseHost parses a host with its port, as in a URL.
func parseHost(host string) (hostKey, error) {
	bad := func(format string, args ...any) (hostKey, error) {
		return hostKey{}, fmt.Errorf("retrip: %q is not a valid host: %w", host, fmt.Errorf(format, args...))
	}
	if u, err := url.Parse(host); err == nil && u.Host != "" {
		return bad("it is a URL; its host is %q", keyOf(u))
	}
	if strings.ContainsAny(host, "/\\?#@") {
		return bad(`it must be a host and port as in a URL, such as "example.com:443"`)
	}
	if strings.HasPrefix(host, "*") {
		return bad("it is a pattern, not a host")
	}
	if strings.Count(host, ":") > 1 && host[0] != '[' {
		return bad("an IPv6 address must be in brackets: [::1]:8080")
	}
	name, port := splitPort(strings.ToLower(host))
	bracketed := strings.HasPrefix(host, "[")
	if name = undotted(name); port == "" {
		if name == "" {
			return bad("it is empty")
		}
		return bad("it has no port; for https it is %q, for http %q", net.JoinHostPort(name, "443"), net.JoinHostPort(name, "80"))
	}
	if err := checkPort(port); err != nil {
		return bad("%w", err)
	}
	if err := checkName(name, bracketed); err != nil {
		return bad("%w", err)
	}
	return hostKey{name, port}, nil
}

// checkName returns why name, without its brackets, can't be the name of a
// host.
func checkName(name string, bracketed bool) error {
	if bracketed {
		if addr, err := netip.ParseAddr(name); err != nil || !addr.Is6() {
			return errors.New("only an IPv6 address may be in brackets")
		}
		return nil
	}
	switch {
	case name == "":
		return errors.New("the name is missing before the port")
	case len(name) > 253:
		return errors.New("a name may have at most 253 bytes")
	case strings.HasPrefix(name, ".") || strings.Contains(name+".", ".."):
		return errors.New("a label of the name is empty")
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune("\"%<>[]^`{|}*", r) }):
		return errors.New("the name contains a character that no host name may contain")
	}
	return nil
}
