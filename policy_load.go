// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/retrip/retrip/internal/hostkey"
)

// LoadPolicies reads policies from a JSON object: the members of a [Policy] for
// all hosts, and a member "hosts" with an object of policies by pattern, as in
// Transport.Hosts. The JSON of a single Policy is valid input.
// docs/policies.schema.json in the repository describes the format. If anything
// is wrong, LoadPolicies returns no policies, and the error names line, field
// and value.
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
	l := newPolicyLoader(data)
	var policy Policy
	hosts := map[string]Policy{}
	err = l.document(func() error { return l.policy(&policy, hosts) })
	if err == nil {
		err = l.together(policy, hosts)
	}
	if err != nil {
		return Policy{}, nil, err
	}
	return policy, hosts, nil
}

// UnmarshalJSON reads p as [LoadPolicies] does, but without the member "hosts".
// If anything is wrong, UnmarshalJSON leaves p unchanged.
func (p *Policy) UnmarshalJSON(data []byte) error {
	l := newPolicyLoader(data)
	var policy Policy
	if err := l.document(func() error { return l.policy(&policy, nil) }); err != nil {
		return err
	}
	*p = policy
	return nil
}

// policyLoader reads policies token by token, so that errors can name the line.
// It is strict: a member that is unknown, duplicate, of the wrong type or out of
// range is an error.
type policyLoader struct {
	data  []byte
	dec   *json.Decoder
	path  []string
	lines map[string]int // lines on which the policies of hosts begin, by pattern
}

func newPolicyLoader(data []byte) *policyLoader {
	l := &policyLoader{data: data, dec: json.NewDecoder(bytes.NewReader(data)), lines: map[string]int{}}
	l.dec.UseNumber()
	return l
}

// document reads one value with read, and checks that nothing follows it.
func (l *policyLoader) document(read func() error) error {
	if err := read(); err != nil {
		return err
	}
	if _, err := l.dec.Token(); !errors.Is(err, io.EOF) {
		return l.errorf("there is more data after the policy")
	}
	return nil
}

// policy reads a policy, and the member "hosts" if hosts isn't nil.
func (l *policyLoader) policy(p *Policy, hosts map[string]Policy) error {
	return l.object(func(name string) error {
		if name == "hosts" && hosts != nil {
			seen := map[[2]string]bool{}
			return l.object(func(pattern string) error {
				host, port, err := hostkey.ParsePattern(pattern)
				if err != nil {
					return l.errorf("%w", err)
				}
				if seen[[2]string{host, port}] {
					return l.errorf("another pattern names the same host, spelled differently")
				}
				seen[[2]string{host, port}] = true
				return l.hostPolicy(pattern, hosts)
			})
		}
		// Read and check the member on its own, so that an error names its line.
		var alone Policy
		if err := l.member(reflect.ValueOf(&alone).Elem(), name); err != nil {
			return err
		}
		if err := alone.check("Policy"); err != nil {
			return l.errorf("%s", strings.TrimPrefix(err.Error(), "retrip: "))
		}
		*p = p.over(alone)
		return nil
	})
}

func (l *policyLoader) hostPolicy(pattern string, hosts map[string]Policy) error {
	var p Policy
	l.lines[pattern] = l.line()
	err := l.policy(&p, nil)
	hosts[pattern] = p
	return err
}

// object reads an object and calls member for each of its members.
func (l *policyLoader) object(member func(name string) error) error {
	token, err := l.token()
	if err != nil {
		return err
	}
	if token != json.Delim('{') {
		return l.errorf("it is %s: it must be an object", shown(token))
	}
	var seen []string
	for {
		token, err := l.token()
		if err != nil {
			return err
		}
		name, ok := token.(string)
		if !ok {
			return nil // the closing brace
		}
		l.path = append(l.path, name)
		if slices.Contains(seen, name) {
			return l.errorf("the field occurs twice")
		}
		seen = append(seen, name)
		if err := member(name); err != nil {
			return err
		}
		l.path = l.path[:len(l.path)-1]
	}
}

// list reads an array and calls element for each of its elements.
func (l *policyLoader) list(element func(json.Token) error) error {
	token, err := l.token()
	if err != nil {
		return err
	}
	if token != json.Delim('[') {
		return l.errorf("it is %s: it must be a list", shown(token))
	}
	for {
		token, err := l.token()
		if err != nil {
			return err
		}
		if token == json.Delim(']') {
			return nil
		}
		if err := element(token); err != nil {
			return err
		}
	}
}

func (l *policyLoader) token() (json.Token, error) {
	token, err := l.dec.Token()
	switch {
	case errors.Is(err, io.EOF):
		return nil, l.errorf("the policy ends unexpectedly")
	case err != nil:
		return nil, l.errorf("%w", err)
	}
	return token, nil
}

// together returns what is wrong with the combination of fields of policies
// whose fields are valid on their own. Each error names the line on which the
// policy begins.
func (l *policyLoader) together(policy Policy, hosts map[string]Policy) error {
	if _, err := policy.resolve(defaults); err != nil {
		return fmt.Errorf("retrip: line 1: the policy: Policy.%w", err)
	}
	base := policy.over(defaults)
	var errs []error
	for _, pattern := range sortedKeys(hosts) {
		if _, err := hosts[pattern].resolve(base); err != nil {
			errs = append(errs, fmt.Errorf("retrip: line %d: hosts.%s: Policy.%w", l.lines[pattern], pattern, err))
		}
	}
	return errors.Join(errs...)
}

// line returns the current line of the input.
func (l *policyLoader) line() int {
	return 1 + bytes.Count(l.data[:l.dec.InputOffset()], []byte("\n"))
}

// errorf returns an error that names the current line and field.
func (l *policyLoader) errorf(format string, args ...any) error {
	where := "the policy"
	if len(l.path) > 0 {
		where = strings.Join(l.path, ".")
	}
	return fmt.Errorf("retrip: line %d: %s: %w", l.line(), where, fmt.Errorf(format, args...))
}
