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

// locate returns err, which wraps a conflict in the policy with the given path, with the
// line of the field. at has the places of the policies, and of the fields that they set.
func locate(at map[string]policyjson.Place, path string, err error) error {
	var c *conflict
	if !errors.As(err, &c) {
		return err
	}
	field, other := nameInJSON(c.field), nameInJSON(c.other)
	for _, suffix := range []string{"", fmt.Sprintf("[%v]", c.value)} {
		if place, ok := at[path+"."+c.field+suffix]; ok {
			return place.Errorf("%s", c.say("it", other))
		}
		if place, ok := at[path+"."+c.other+suffix]; ok {
			return place.Errorf("%s", c.say(field, other))
		}
	}
	return at[path].Errorf("%s", c.say(field, other))
}

// nameInJSON returns the name of the field with the given path.
func nameInJSON(path string) string {
	return fields[slices.IndexFunc(fields, func(f field) bool { return f.path == path })].name
}

// LoadPolicies reads policies from a JSON object: the members of a [Policy] for
// all hosts, and a member "hosts" with an object of policies by pattern, as in
// Transport.Hosts. The JSON of a single Policy is valid input. If anything is
// wrong, LoadPolicies returns no policies, and the error names line, field and
// value of up to 20 mistakes and, once there are none, of conflicts between fields.
// An example is {"max_attempts": 3, "hosts": {"*.example.com": {"deadline": "off"}}}.
func LoadPolicies(r io.Reader) (Policy, map[string]Policy, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return Policy{}, nil, fmt.Errorf("retrip: reading policies: %w", err)
	}
	l := policyjson.NewLoader(data, jsonRule)
	var policy Policy
	hosts, seen := map[string]Policy{}, map[hostkey.Key]bool{}
	path := "Policy" // of the policy that l reads
	at := map[string]policyjson.Place{path: l.Place()}
	l.Set = func(field string, place policyjson.Place) { at[path+"."+field] = place }
	err = l.Document(func(name string) error {
		if name != "hosts" {
			return l.Member(&policy, name)
		}
		return l.Object(func(pattern string) error {
			host, port, err := hostkey.ParsePattern(pattern)
			if err != nil {
				return l.Errorf("%w", err)
			}
			if seen[hostkey.Key{Host: host, Port: port}] {
				return l.Errorf("another pattern names the same host, spelled differently")
			}
			seen[hostkey.Key{Host: host, Port: port}] = true
			path = hostPath(pattern)
			defer func() { path = "Policy" }()
			at[path] = l.Place()
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
	fallback := &rules{path: path}
	if err := fallback.resolve(&policy, &defaults); err != nil {
		return Policy{}, nil, locate(at, path, err)
	}
	var errs []error
	for _, pattern := range slices.Sorted(maps.Keys(hosts)) {
		r, own := &rules{path: hostPath(pattern)}, hosts[pattern]
		if err := r.resolve(&own, &fallback.policy); err != nil {
			if len(errs) < mostErrors { // to find the line takes time
				err = locate(at, r.path, err)
			}
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
	l.Part = true
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
