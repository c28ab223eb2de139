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
	"strconv"
	"strings"
	"time"
)

// This file reads and writes the JSON of a policy. The members are the json tags of
// Policy. Durations are strings ("100ms"), Off is "off" (false for a Switch), and a
// jitter is its name. Reading is strict: a member that is unknown, duplicate, of the
// wrong type or out of range is an error that names the place.

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

// MarshalJSON writes the fields of p that are set. It returns an error that
// names the field if GateKey, Classify or Idempotent is set, because functions
// have no JSON.
func (p Policy) MarshalJSON() ([]byte, error) {
	for field, set := range map[string]bool{"Classify": p.Classify != nil, "Idempotent": p.Idempotent != nil, "GateKey": p.GateKey != nil} {
		if set {
			return nil, fmt.Errorf("retrip: Policy.%s is a function: it can't be written as JSON", field)
		}
	}
	var b bytes.Buffer
	appendStruct(&b, reflect.ValueOf(p))
	return b.Bytes(), nil
}

func appendStruct(b *bytes.Buffer, v reflect.Value) {
	b.WriteByte('{')
	first := true
	for i := range v.NumField() {
		name, field := jsonName(v.Type().Field(i)), v.Field(i)
		// An empty slice is written if it isn't nil: it replaces the inherited one.
		if name == "" || field.IsZero() {
			continue
		}
		if !first {
			b.WriteByte(',')
		}
		first = false
		fmt.Fprintf(b, "%q:", name)
		appendValue(b, field)
	}
	b.WriteByte('}')
}

func appendValue(b *bytes.Buffer, v reflect.Value) {
	switch value := v.Interface().(type) {
	case Backoff, Budget, Breaker:
		appendStruct(b, v)
	case Jitter:
		fmt.Fprintf(b, "%q", value.String())
	case Switch:
		fmt.Fprint(b, value == On)
	case time.Duration:
		if value == Off {
			b.WriteString(`"off"`)
		} else {
			fmt.Fprintf(b, "%q", value.String())
		}
	case int, int64, float64:
		if fmt.Sprint(value) == "-1" {
			b.WriteString(`"off"`)
		} else {
			fmt.Fprint(b, value)
		}
	default:
		// Strings and lists of numbers or strings can't fail.
		data, _ := json.Marshal(value)
		b.Write(data)
	}
}

func jsonName(f reflect.StructField) string {
	if name := f.Tag.Get("json"); name != "-" {
		return name
	}
	return ""
}

// policyLoader reads policies token by token, so that errors can name the line.
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
				host, port, err := splitPattern(pattern)
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

// member reads the member of v with the given JSON name.
func (l *policyLoader) member(v reflect.Value, name string) error {
	var known []string
	for i := range v.NumField() {
		switch field := jsonName(v.Type().Field(i)); field {
		case "":
		case name:
			return l.value(v.Field(i), fieldPath(v.Type(), i))
		default:
			known = append(known, field)
		}
	}
	return l.errorf("there is no such field; the fields are %s", strings.Join(known, ", "))
}

// fieldPath returns the path in a Policy of field i of t, which is Policy or
// one of its structs.
func fieldPath(t reflect.Type, i int) string {
	if t == reflect.TypeFor[Policy]() {
		return t.Field(i).Name
	}
	return t.Name() + "." + t.Field(i).Name
}

// value reads the field with the given path.
func (l *policyLoader) value(v reflect.Value, path string) error {
	switch target := v.Addr().Interface().(type) {
	case *Backoff, *Budget, *Breaker:
		return l.object(func(name string) error { return l.member(v, name) })
	case *[]int:
		*target = []int{}
		return l.list(func(token json.Token) error {
			n, err := l.integer(token)
			*target = append(*target, int(n))
			return err
		})
	case *[]string:
		*target = []string{}
		return l.list(func(token json.Token) error {
			s, ok := token.(string)
			if !ok {
				return l.errorf("it contains %s: it must be a list of strings", shown(token))
			}
			*target = append(*target, s)
			return nil
		})
	}
	token, err := l.token()
	if err != nil {
		return err
	}
	instead, noOff := insteadOfOff[path]
	orOff := `, or "off"`
	if noOff {
		orOff = ""
	}
	if _, isSwitch := v.Interface().(Switch); token == "off" && !isSwitch {
		switch {
		case noOff:
			return l.errorf(`it is "off": %s`, instead)
		case v.CanFloat():
			v.SetFloat(Off)
			return nil
		case v.CanInt():
			v.SetInt(Off)
			return nil
		}
	}
	switch target := v.Addr().Interface().(type) {
	case *string:
		text, ok := token.(string)
		if !ok {
			return l.errorf("it is %s: it must be a string", shown(token))
		}
		if text == "" {
			return l.errorf(`it is "": leave it out to inherit, or use "off"`)
		}
		*target = text
	case *Switch:
		on, ok := token.(bool)
		if !ok {
			return l.errorf("it is %s: it must be true or false", shown(token))
		}
		*target = Off
		if on {
			*target = On
		}
	case *Jitter:
		i := slices.Index(jitterNames[1:], fmt.Sprint(token))
		if _, ok := token.(string); !ok || i < 0 {
			return l.errorf("it is %s: it must be one of %q", shown(token), jitterNames[1:])
		}
		*target = Jitter(i + 1)
	case *time.Duration:
		text, ok := token.(string)
		d, err := time.ParseDuration(text)
		if !ok || err != nil || d < 0 {
			return l.errorf(`it is %s: it must be a duration such as "100ms"%s`, shown(token), orOff)
		}
		*target = d
	case *float64:
		number, ok := token.(json.Number)
		f, err := number.Float64()
		// A number too small for a float64 would become 0, which inherits.
		tiny := f == 0 && strings.ContainsAny(mantissa(number), "123456789")
		if !ok || err != nil || f < 0 || tiny {
			return l.errorf(`it is %s: it must be a positive number, or "off"`, shown(token))
		}
		*target = f
	default:
		n, err := l.integer(token)
		if err != nil {
			return err
		}
		switch {
		case n == Off && noOff:
			return l.errorf("it is %d: %s", n, instead)
		case n < 0:
			return l.errorf(`it is %d: it must be positive, 0 to inherit%s`, n, orOff)
		}
		v.SetInt(n)
	}
	return nil
}

// mantissa returns number without its exponent.
func mantissa(number json.Number) string {
	text := number.String()
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		return text[:i]
	}
	return text
}

func (l *policyLoader) integer(token json.Token) (int64, error) {
	number, ok := token.(json.Number)
	n, err := strconv.ParseInt(number.String(), 10, 64)
	if !ok || err != nil {
		return 0, l.errorf("it is %s: it must be a whole number", shown(token))
	}
	return n, nil
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

// shown returns a token as JSON writes it.
func shown(token json.Token) string {
	switch token := token.(type) {
	case string:
		return strconv.Quote(token)
	case nil:
		return "null"
	case json.Delim:
		if token == '{' {
			return "an object"
		}
		return "a list"
	default:
		return fmt.Sprint(token)
	}
}
