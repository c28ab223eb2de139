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
	"github.com/retrip/retrip/internal/redact"
)

// matcher finds the rules of a host. The most specific pattern wins: an exact
// host before the longest suffix and, for the same name, a pattern with the
// port before one without. All spellings of a host, as in package hostkey, are one.
type matcher struct {
	fallback *rules
	patterns map[hostkey.Key]*rules // the Host is exact, or what follows a "*"; the Port is "" for any
	lengths  []int                  // of the suffixes, the longest first

	policy Policy // policy and hosts are what compile was given
	hosts  map[string]Policy
	rules  []*rules // fallback, and then the rules of hosts by pattern
}

// defaultName names the policy of hosts without a policy of their own.
const defaultName = "default"

// compile makes the rules of policy and hosts. The error reports every invalid
// value and pattern in them.
func compile(policy Policy, hosts map[string]Policy) (*matcher, error) {
	fallback := &rules{path: "Policy"}
	fallback.Name = defaultName
	m := &matcher{fallback: fallback, rules: []*rules{fallback}, patterns: map[hostkey.Key]*rules{},
		policy: policy.clone(), hosts: make(map[string]Policy, len(hosts))}
	invalid := fallback.resolve(&policy, &defaults)
	errs := []error{invalid}
	// Errors come in the same order every time.
	for _, pattern := range slices.Sorted(maps.Keys(hosts)) {
		r, own := &rules{path: hostPath(pattern)}, hosts[pattern]
		r.Name = hostkey.Lower(pattern)
		name, port, err := hostkey.ParsePattern(pattern)
		key := hostkey.Key{Host: strings.TrimPrefix(name, "*"), Port: port}
		switch {
		case err != nil:
			err = fmt.Errorf("retrip: %s: %w", r.path, err)
		case invalid != nil:
			// A mistake in Policy is reported once, not for every pattern.
			err = r.policy.set(&own, r.path)
		default:
			if err = r.resolve(&own, &fallback.policy); err == nil && m.patterns[key] != nil {
				err = fmt.Errorf("retrip: %s: another pattern names the same host, spelled differently", r.path)
			}
		}
		errs = append(errs, err)
		m.patterns[key] = r
		m.rules = append(m.rules, r)
		m.hosts[pattern] = own.clone()
		if key.Host != name {
			m.lengths = append(m.lengths, len(key.Host))
		}
	}
	slices.Sort(m.lengths)
	m.lengths = slices.Compact(m.lengths)
	slices.Reverse(m.lengths)
	if err := joinFirst(errs); err != nil {
		return &matcher{policy: m.policy, hosts: m.hosts}, err
	}
	return m, nil
}

func hostPath(pattern string) string {
	return fmt.Sprintf("Hosts[%q]", redact.Short(redact.Name(pattern), 260))
}

// sizeOf returns the size of the budget of the host that e stands for.
func (m *matcher) sizeOf(e *host.Entry) int64 {
	if e.Others {
		return m.fallback.Budget.Size
	}
	return m.of(e.Key).Budget.Size
}

// find returns the rules for requests to u.
func (m *matcher) find(u *url.URL) *rules {
	if len(m.patterns) == 0 || u == nil {
		return m.fallback
	}
	return m.of(hostkey.Of(u))
}

// of returns the rules for requests to a host.
func (m *matcher) of(host hostkey.Key) *rules {
	if r := m.named(host); r != nil {
		return r
	}
	// The length of the name is the server's choice, after a redirect.
	for _, n := range m.lengths {
		i := len(host.Host) - n
		if i < 0 || host.Host[i] != '.' {
			continue
		}
		if r := m.named(hostkey.Key{Host: host.Host[i:], Port: host.Port}); r != nil {
			return r
		}
	}
	return m.fallback
}

// named returns the rules of the pattern with a name, for its port or for any, or nil.
func (m *matcher) named(name hostkey.Key) *rules {
	if r := m.patterns[name]; r != nil {
		return r
	}
	return m.patterns[hostkey.Key{Host: name.Host}]
}
