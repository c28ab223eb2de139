// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/policyjson"
)

var jsonRule = policyjson.Rule{
	Words:   map[string][]string{"Backoff.Jitter": jitterNames[1:]},
	Instead: insteadOfOff,
}

// LoadPolicies reads policies from a JSON object: the members of a [Policy] for
// all hosts, and a member "hosts" with an object of policies by pattern, as in
// Transport.Hosts. The JSON of a single Policy is valid input. If anything is
// wrong, LoadPolicies returns no policies, and the error names line, field and
// value. docs/policies.schema.json describes the format. For example:
//
//	{
//	  "max_attempts": 3,
//	  "backoff": {"base": "50ms", "cap": "2s", "jitter": "full"},
//	  "hosts": {
//	    "*.example.com": {"attempt_timeout": "150ms"},
//	    "legacy.example.com": {"attempt_timeout": "off"}
//	  }
//	}
func LoadPolicies(r io.Reader) (Policy, map[string]Policy, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return Policy{}, nil, fmt.Errorf("retrip: reading policies: %w", err)
	}
	l := policyjson.NewLoader(data, jsonRule)
	start := l.Place()
	var policy Policy
	hosts, places, seen := map[string]Policy{}, map[string]policyjson.Place{}, map[[2]string]bool{}
	err = l.Document(func(name string) error {
		if name != "hosts" {
			return policy.load(l, name)
		}
		return l.Object(func(pattern string) error {
			host, port, err := hostkey.ParsePattern(pattern)
			if err != nil {
				return l.Errorf("%w", err)
			}
			if seen[[2]string{host, port}] {
				return l.Errorf("another pattern names the same host, spelled differently")
			}
			seen[[2]string{host, port}] = true
			places[pattern] = l.Place()
			var p Policy
			err = l.Object(func(name string) error { return p.load(l, name) })
			hosts[pattern] = p
			return err
		})
	})
	if err != nil {
		return Policy{}, nil, err
	}

	// The fields are valid on their own. Are they together?
	if _, err := policy.resolve(defaults); err != nil {
		return Policy{}, nil, start.Errorf("Policy.%w", err)
	}
	base := policy.over(defaults)
	var errs []error
	for _, pattern := range sortedKeys(hosts) {
		if _, err := hosts[pattern].resolve(base); err != nil {
			errs = append(errs, places[pattern].Errorf("Policy.%w", err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Policy{}, nil, err
	}
	return policy, hosts, nil
}

// UnmarshalJSON reads p as [LoadPolicies] does, but without the member "hosts".
// If anything is wrong, UnmarshalJSON leaves p unchanged.
func (p *Policy) UnmarshalJSON(data []byte) error {
	l := policyjson.NewLoader(data, jsonRule)
	var policy Policy
	if err := l.Document(func(name string) error { return policy.load(l, name) }); err != nil {
		return err
	}
	*p = policy
	return nil
}

// load reads the member with the given name. The members before it are valid,
// so what check reports is about this one.
func (p *Policy) load(l *policyjson.Loader, name string) error {
	if err := l.Member(p, name); err != nil {
		return err
	}
	if err := p.check("Policy"); err != nil {
		return l.Errorf("%s", strings.TrimPrefix(err.Error(), "retrip: "))
	}
	return nil
}

// MarshalJSON writes the fields of p that are set. It returns an error that
// names the field if a function is set: Gate.Key, Classify or Idempotent.
func (p Policy) MarshalJSON() ([]byte, error) {
	return policyjson.Marshal(p)
}
