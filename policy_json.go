// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/policyjson"
)

var jsonRule = policyjson.Rule{
	Words:   map[string][]string{"Backoff.Jitter": jitterNames[1:]},
	Instead: instead(),
	Example: map[string]string{
		"Backoff": `{"base": "off"}`,
		"Budget":  `"budget": 5`,
		"Breaker": `{"ratio": "off"}`,
		"Gate":    `{"enabled": true}`,
	},
	Check: checkValue,
}

// jsonWords writes what a value should be as JSON has it.
var jsonWords = strings.NewReplacer("Off", `"off"`, "Base", "base", "Ratio", "ratio")

func instead() map[string]string {
	words := make(map[string]string, len(insteadOfOff))
	for field, text := range insteadOfOff {
		words[field] = jsonWords.Replace(text)
	}
	return words
}

// checkValue returns what the field with the given path, or an element of it, should
// be, or "" if it may be v.
func checkValue(path string, v reflect.Value) (want string) {
	var p Policy
	field := reflect.ValueOf(&p).Elem()
	for name := range strings.SplitSeq(path, ".") {
		field = field.FieldByName(name)
	}
	if field.Kind() == reflect.Slice && v.Kind() != reflect.Slice {
		v = reflect.Append(field, v)
	}
	field.Set(v)
	p.eachMistake(func(_ string, _ any, text string) { want = jsonWords.Replace(text) })
	return want
}

// places are the places of the fields that a policy in JSON sets.
type places map[string]policyjson.Place

func (p places) set(path string, at policyjson.Place) { p[path] = at }

// report returns err, which checkTogether has returned, with the line of the field.
func (p places) report(whole policyjson.Place, err error) error {
	var c *conflict
	if !errors.As(err, &c) {
		return err
	}
	field, other := policyjson.NameOf(reflect.TypeFor[Policy](), c.field), policyjson.NameOf(reflect.TypeFor[Policy](), c.other)
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
	if _, err := policy.resolve(defaults); err != nil {
		return Policy{}, nil, of.report(start, err)
	}
	base := policy.over(defaults)
	var errs []error
	for _, pattern := range sortedKeys(hosts) {
		if _, err := hosts[pattern].resolve(base); err != nil {
			if len(errs) < mostErrors { // to find the line takes time
				err = ofHosts[pattern].report(begins[pattern], err)
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
