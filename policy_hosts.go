// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
)

// matcher finds the rules of a host. The most specific pattern wins: an exact
// host before the longest suffix and, for the same name, a pattern with the
// port before one without. All spellings of a host, as in package hostkey, are one.
type matcher struct {
	fallback *rules
	exact    map[string]portRules // by host
	suffix   map[string]portRules // by what follows the "*", with its dot
	lengths  []int                // of the keys of suffix, the longest first

	policy Policy // policy and hosts are what compile was given
	hosts  map[string]Policy
	rules  []*rules // the rules of all policies
}

// defaultName names the policy of hosts without a policy of their own.
const defaultName = "default"

// portRules are the rules of one name: for any port, and for particular ports.
type portRules struct {
	any    *rules
	byPort map[string]*rules
}

func (p portRules) find(port string) *rules {
	if r := p.byPort[port]; r != nil {
		return r
	}
	return p.any
}

// compile makes the rules of policy and hosts. The error reports every invalid
// value and pattern in them.
func compile(policy Policy, hosts map[string]Policy) (*matcher, error) {
	m := &matcher{exact: map[string]portRules{}, suffix: map[string]portRules{},
		policy: policy.clone(), hosts: make(map[string]Policy, len(hosts))}
	var errs []error
	var all []*rules
	resolve := func(path, name string, p, base Policy) *rules {
		err := p.check(path)
		if err == nil {
			r, together := p.resolve(base)
			if together == nil {
				r.Name = name
				all = append(all, r)
				return r
			}
			err = fmt.Errorf("retrip: %s.%w", path, together)
		}
		errs = append(errs, err)
		return nil
	}
	m.fallback = resolve("Policy", defaultName, policy, defaults)
	base := policy.over(defaults)
	for _, pattern := range sortedKeys(hosts) {
		path := hostPath(pattern)
		name, port, err := hostkey.ParsePattern(pattern)
		if err != nil {
			errs = append(errs, fmt.Errorf("retrip: %s: %w", path, err))
			continue
		}
		// A mistake in Policy is reported once, not for every pattern.
		if m.fallback == nil {
			if err := hosts[pattern].check(path); err != nil {
				errs = append(errs, err)
			}
			continue
		}
		r := resolve(path, hostkey.Lower(pattern), hosts[pattern], base)
		if r == nil {
			continue
		}
		set := m.exact
		if rest, ok := strings.CutPrefix(name, "*"); ok {
			set, name = m.suffix, rest
		}
		if !add(set, name, port, r) {
			errs = append(errs, fmt.Errorf("retrip: %s: another pattern names the same host, spelled differently", path))
		}
	}
	if err := joinFirst(errs); err != nil {
		return nil, err
	}
	m.rules = all
	m.finish(hosts)
	return m, nil
}

// finish completes m for policies of which all are valid.
func (m *matcher) finish(hosts map[string]Policy) {
	for pattern, p := range hosts {
		m.hosts[pattern] = p.clone()
	}
	for suffix := range m.suffix {
		m.lengths = append(m.lengths, len(suffix))
	}
	slices.Sort(m.lengths)
	m.lengths = slices.Compact(m.lengths)
	slices.Reverse(m.lengths)
}

// sizeOf returns the size of the budget of the host that e stands for.
func (m *matcher) sizeOf(e *host.Entry) int64 {
	if e.Others {
		return m.fallback.Budget.Size
	}
	return m.find(&url.URL{Host: e.Key.String()}).Budget.Size
}

// add puts r into set and reports whether its place was free.
func add(set map[string]portRules, name, port string, r *rules) bool {
	p := set[name]
	if port == "" {
		if p.any != nil {
			return false
		}
		p.any = r
	} else {
		if p.byPort[port] != nil {
			return false
		}
		if p.byPort == nil {
			p.byPort = map[string]*rules{}
		}
		p.byPort[port] = r
	}
	set[name] = p
	return true
}

// find returns the rules for requests to u.
func (m *matcher) find(u *url.URL) *rules {
	if len(m.exact) == 0 && len(m.suffix) == 0 || u == nil {
		return m.fallback
	}
	host, port := hostkey.Split(u)
	if r := m.exact[host].find(port); r != nil {
		return r
	}
	// The length of host is the server's choice, after a redirect.
	for _, n := range m.lengths {
		i := len(host) - n
		if i < 0 || host[i] != '.' {
			continue
		}
		if r := m.suffix[host[i:]].find(port); r != nil {
			return r
		}
	}
	return m.fallback
}

func hostPath(pattern string) string { return fmt.Sprintf("Hosts[%q]", pattern) }

// sortedKeys returns the patterns in a fixed order, so that errors come in the
// same order every time.
func sortedKeys(hosts map[string]Policy) []string { return slices.Sorted(maps.Keys(hosts)) }
