// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package policyjson reads and writes a struct of settings as JSON. It is
// strict: a member that is unknown, duplicate, of the wrong type or out of range
// is an error.
//
// The members have the names in the json tags of the fields. A zero is unset. A
// duration is a string ("100ms"), and -1 is "off". An int8 is a switch: 1 is
// true, and -1 is false. A uint8 is one of several words.
package policyjson

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

const off = -1

// Rule has what the types of the fields don't say. Its keys are paths of
// fields in Go, such as "Backoff.Cap".
type Rule struct {
	Words   map[string][]string // names of the values 1, 2, … of a uint8
	Instead map[string]string   // for a number that can't be off: what to do instead
}

// Loader reads JSON token by token, so that errors can name the line.
type Loader struct {
	data []byte
	dec  *json.Decoder
	rule Rule
	path []string
}

// NewLoader returns a Loader of data.
func NewLoader(data []byte, rule Rule) *Loader {
	l := &Loader{data: data, dec: json.NewDecoder(bytes.NewReader(data)), rule: rule}
	l.dec.UseNumber()
	return l
}

// Document is Object for an object that nothing may follow.
func (l *Loader) Document(member func(name string) error) error {
	if err := l.Object(member); err != nil {
		return err
	}
	if _, err := l.dec.Token(); !errors.Is(err, io.EOF) {
		return l.Errorf("there is more data after the policy")
	}
	return nil
}

// Object reads an object. It calls member with the name of each member, to read
// the value.
func (l *Loader) Object(member func(name string) error) error {
	seen := map[string]bool{}
	return l.each('{', func(token json.Token) error {
		name, _ := token.(string) // anything else is a syntax error
		l.path = append(l.path, name)
		if seen[name] {
			return l.Errorf("the field occurs twice")
		}
		seen[name] = true
		err := member(name)
		if err == nil {
			l.path = l.path[:len(l.path)-1]
		}
		return err
	})
}

// Member reads the value of the member with the given name into the struct that
// into points to.
func (l *Loader) Member(into any, name string) error {
	return l.member(reflect.ValueOf(into).Elem(), "", name)
}

// member reads into v, whose fields have the given prefix in their paths.
func (l *Loader) member(v reflect.Value, prefix, name string) error {
	var known []string
	for field, value := range v.Fields() {
		switch tag := field.Tag.Get("json"); tag {
		case "-":
		case name:
			return l.value(value, prefix+field.Name)
		default:
			known = append(known, tag)
		}
	}
	return l.Errorf("there is no such field; the fields are %s", strings.Join(known, ", "))
}

func (l *Loader) value(v reflect.Value, path string) error {
	if v.Kind() == reflect.Struct {
		return l.Object(func(name string) error { return l.member(v, path+".", name) })
	}
	switch list := v.Addr().Interface().(type) {
	case *[]int:
		*list = []int{} // not nil, which is unset
		return l.each('[', func(token json.Token) error {
			n, ok := whole(token, strconv.IntSize)
			if !ok {
				return l.Errorf("it is %s: it must be a whole number", shown(token))
			}
			*list = append(*list, int(n))
			return nil
		})
	case *[]string:
		*list = []string{}
		return l.each('[', func(token json.Token) error {
			text, ok := token.(string)
			if !ok {
				return l.Errorf("it contains %s: it must be a list of strings", shown(token))
			}
			*list = append(*list, text)
			return nil
		})
	}
	token, err := l.token()
	if err != nil {
		return err
	}
	if want := set(v, token, l.rule.Words[path], l.rule.Instead[path]); want != "" {
		return l.Errorf("it is %s: %s", shown(token), want)
	}
	return nil
}

// set sets v to what token says, or returns what it should say.
func set(v reflect.Value, token json.Token, words []string, instead string) (want string) {
	text, isText := token.(string)
	orOff := `, or "off"`
	if instead != "" {
		orOff = ""
	}
	switch kind := v.Kind(); {
	case kind == reflect.Int8:
		on, ok := token.(bool)
		if !ok {
			return "it must be true or false"
		}
		v.SetInt(off)
		if on {
			v.SetInt(1)
		}
	case kind == reflect.Uint8:
		i := slices.Index(words, text)
		if i < 0 {
			return fmt.Sprintf("it must be one of %q", words)
		}
		v.SetUint(uint64(i) + 1)
	case kind == reflect.String:
		switch {
		case !isText:
			return "it must be a string"
		case text == "":
			return `leave it out to inherit, or use "off"`
		}
		v.SetString(text)
	case text == "off" && instead != "":
		return instead
	case text == "off":
		v.Set(reflect.ValueOf(off).Convert(v.Type()))
	case v.Type() == reflect.TypeFor[time.Duration]():
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return `it must be a duration such as "100ms"` + orOff
		}
		v.SetInt(int64(d))
	case kind == reflect.Float64:
		number, _ := token.(json.Number)
		f, err := number.Float64()
		// A number too small for a float64 would become 0, which inherits.
		mantissa, _, _ := strings.Cut(strings.ToLower(number.String()), "e")
		if err != nil || f < 0 || f == 0 && strings.ContainsAny(mantissa, "123456789") {
			return `it must be a positive number, or "off"`
		}
		v.SetFloat(f)
	default:
		n, ok := whole(token, v.Type().Bits())
		switch {
		case !ok:
			return "it must be a whole number"
		case n == off && instead != "":
			return instead
		case n < 0:
			return "it must be positive, 0 to inherit" + orOff
		}
		v.SetInt(n)
	}
	return ""
}

func whole(token json.Token, bits int) (n int64, ok bool) {
	number, _ := token.(json.Number)
	n, err := strconv.ParseInt(number.String(), 10, bits)
	return n, err == nil
}

// each reads an object or a list, whichever begins with open, and calls f with
// each name or element.
func (l *Loader) each(open json.Delim, f func(json.Token) error) error {
	token, err := l.token()
	if err != nil {
		return err
	}
	if token != open {
		return l.Errorf("it is %s: it must be %s", shown(token), shown(open))
	}
	for {
		token, err := l.token()
		if err != nil || token == open+2 { // ']' is '[' + 2, and '}' is '{' + 2
			return err
		}
		if err := f(token); err != nil {
			return err
		}
	}
}

func (l *Loader) token() (json.Token, error) {
	token, err := l.dec.Token()
	switch {
	case errors.Is(err, io.EOF):
		return nil, l.Errorf("the policy ends unexpectedly")
	case err != nil:
		at := l.Place()
		// Since Go 1.27, the Decoder stands before the white space in front of the
		// mistake. Before any token, Go 1.26 has another idea of Offset.
		syntax, ok := errors.AsType[*json.SyntaxError](err)
		if read := len(at.before); ok && read > 0 && int(syntax.Offset) > read {
			at.before = l.data[:syntax.Offset]
		}
		return nil, at.Errorf("%w", err)
	}
	return token, nil
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

// Place is a place in the input. It keeps the input in memory.
type Place struct {
	before []byte
	member string
}

// Place returns the place up to which l has read.
func (l *Loader) Place() Place {
	member := "the policy"
	if len(l.path) > 0 {
		member = strings.Join(l.path, ".")
	}
	return Place{l.data[:l.dec.InputOffset()], member}
}

// Errorf returns an error that names the line and the member at p.
func (p Place) Errorf(format string, args ...any) error {
	return fmt.Errorf("retrip: line %d: %s: %w", 1+bytes.Count(p.before, []byte("\n")), p.member, fmt.Errorf(format, args...))
}

// Errorf is Errorf of l's Place.
func (l *Loader) Errorf(format string, args ...any) error {
	return l.Place().Errorf(format, args...)
}
