// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/policyjson"
)

var jsonRule = policyjson.Rule{
	Words: map[string][]string{"Backoff.Jitter": jitterNames[1:]},
	Example: map[string]string{
		"Backoff": `{"base": "off"}`,
		"Budget":  `"budget": 5`,
		"Breaker": `{"ratio": "off"}`,
		"Gate":    `{"enabled": true}`,
	},
	Check: func(path string, v reflect.Value) (want string) { return jsonWords.Replace(wanted(path, v)) },
}

// jsonWords writes what a value should be as JSON has it.
var jsonWords = strings.NewReplacer("Off", `"off"`, "Base", "base", "Ratio", "ratio")

// places are the places of the fields that a policy in JSON sets.
type places map[string]policyjson.Place

func (p places) set(path string, at policyjson.Place) { p[path] = at }

// report returns err, which rules.conflict has returned, with the line of the field.
func (p places) report(whole policyjson.Place, err error) error {
	var c *conflict
	if !errors.As(err, &c) {
		return err
	}
	field, other := nameInJSON(c.field), nameInJSON(c.other)
	for _, suffix := range []string{"", fmt.Sprintf("[%v]", c.value)} {
		if at, ok := p[c.field+suffix]; ok {
			return at.Errorf("%s", c.say("it", other))
		}
		if at, ok := p[c.other+suffix]; ok {
			return at.Errorf("%s", c.say(field, other))
		}
	}
	return whole.Errorf("%s", c.say(field, other))
}

// nameInJSON returns the name of the field with the given path.
func nameInJSON(path string) string {
	return fields[slices.IndexFunc(fields, func(f field) bool { return f.path == path })].name
}

// LoadPolicies reads policies from a JSON object: the members of a [Policy] for
// all hosts, and a member "hosts" with an object of policies by pattern, as in
// Transport.Hosts. The JSON of a single Policy is valid input. If anything is
// wrong, LoadPolicies returns no policies, and the error names line, field and
// value. For example:
//
//	{
//	  "max_attempts": 3,
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
	hosts, begins, seen := map[string]Policy{}, map[string]policyjson.Place{}, map[[2]string]bool{}
	of, ofHosts := places{}, map[string]places{}
	l.Set = of.set
	err = l.Document(func(name string) error {
		if name != "hosts" {
			return l.Member(&policy, name)
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
			begins[pattern], ofHosts[pattern] = l.Place(), places{}
			l.Set = ofHosts[pattern].set
			defer func() { l.Set = of.set }()
			var p Policy
			err = l.Object(func(name string) error { return l.Member(&p, name) })
			hosts[pattern] = p
			return err
		})
	})
	if err != nil {
		return Policy{}, nil, err
	}

	// The fields are valid on their own. Are they together?
	fallback := &rules{policy: policy}
	if err := fallback.resolve(&defaults); err != nil {
		return Policy{}, nil, of.report(start, err)
	}
	var errs []error
	for _, pattern := range slices.Sorted(maps.Keys(hosts)) {
		r := &rules{policy: hosts[pattern]}
		err := r.resolve(&fallback.policy)
		if err != nil && len(errs) < mostErrors { // to find the line takes time
			err = ofHosts[pattern].report(begins[pattern], err)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if err := joinFirst(errs); err != nil {
		return Policy{}, nil, err
	}
	return policy, hosts, nil
}

// UnmarshalJSON reads p as [LoadPolicies] does, but without the member "hosts".
// If anything is wrong, UnmarshalJSON leaves p unchanged.
func (p *Policy) UnmarshalJSON(data []byte) error {
	l := policyjson.NewLoader(data, jsonRule)
	var policy Policy
	if err := l.Document(func(name string) error { return l.Member(&policy, name) }); err != nil {
		return err
	}
	*p = policy
	return nil
}

// MarshalJSON writes the fields of p that are set. It returns an error that
// names the field if a function is set: Gate.Key, Classify or Idempotent.
func (p Policy) MarshalJSON() ([]byte, error) {
	return policyjson.Marshal(p)
}
