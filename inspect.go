// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/url"
	"time"
)

// HostState returns what t knows of a host, given as in a URL: "example.com",
// which stands for its port 443, or "example.com:8080"; case and a dot at the
// end of the name make no difference. A host that is in no
// trouble has all its tokens, no pause and a closed breaker. It is safe for
// concurrent use.
func (t *Transport) HostState(host string) HostState {
	s := t.start()
	u := &url.URL{Scheme: "https", Host: host}
	if s.err != nil {
		return HostState{Host: keyOf(u).String()}
	}
	now := s.now()
	e := t.hosts.pin(keyOf(u))
	if e == nil {
		return s.state(&hostEntry{key: keyOf(u)}, now)
	}
	defer t.hosts.unpin(e, now)
	return s.state(e, now)
}

// HostStates returns the state of all hosts in trouble, sorted by name. It is
// safe for concurrent use.
func (t *Transport) HostStates() []HostState {
	s := t.start()
	now := s.now()
	entries := t.hosts.all(now)
	states := make([]HostState, 0, len(entries))
	for _, e := range entries {
		states = append(states, s.state(e, now))
	}
	return states
}

// state describes e under the policy that its host follows.
func (s *settings) state(e *hostEntry, now time.Duration) HostState {
	host := e.key.String()
	r := s.find(&url.URL{Host: host})
	state := e.State(r, now)
	state.Host, state.Policy = host, r.name
	return state
}

// PolicyOf returns the policy in force for a host, given as for HostState, with
// every inherited field and every default filled in. MaxSends is 0 only where
// its bound depends on the request: 10 for those whose attempts are derived
// (see [Transport]), none for others. Where t's policies are wrong it is the
// zero Policy. It is safe for concurrent use.
func (t *Transport) PolicyOf(host string) Policy {
	s := t.start()
	if s.err != nil {
		return Policy{}
	}
	r := s.find(&url.URL{Scheme: "https", Host: host})
	p := r.Policy()
	if p.MaxSends == 0 && (r.derives || t.Trace != nil) {
		p.MaxSends = defaultMaxSends
	}
	return p
}
