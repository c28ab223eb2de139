// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

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
