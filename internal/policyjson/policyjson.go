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
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

const off = -1

// Rule has what the types of the fields don't say. Its keys are paths of
// fields in Go, such as "Backoff.Cap".
type Rule struct {
	Words   map[string][]string // names of the values 1, 2, … of a uint8
	Instead map[string]string   // for a number that can't be off: what to do instead
	Example map[string]string   // JSON of a struct, for errors about anything else, or of another field, for errors about an object

	// Check returns what a field, or the element of a list, should be, or "" if it
	// may be v. A list is checked after its elements. If nil, it may be anything of its type.
	Check func(path string, v reflect.Value) (want string)
}

// Loader reads JSON token by token, so that errors can name the line.
type Loader struct {
	// Set, if not nil, is called with the path and the place of each field that is
	// set. For an element of a list, the path ends in "[element]".
	Set func(path string, at Place)

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
	return l.object("an object", member)
}

// object is Object for an object that an error describes as want.
func (l *Loader) object(want string, member func(name string) error) error {
	seen := map[string]bool{}
	return l.each('{', want, func(token json.Token) error {
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
		want := "an object"
		if example := l.rule.Example[path]; example != "" {
			want += ", such as " + example
		}
		return l.object(want, func(name string) error { return l.member(v, path+".", name) })
	}
	if v.Kind() == reflect.Slice {
		return l.list(v, path)
	}
	token, err := l.token()
	if err != nil {
		return err
	}
	want := set(v, token, l.rule.Words[path], l.rule.Instead[path])
	if want == "" {
		want = l.check(path, v)
	}
	if want != "" {
		if example := l.rule.Example[path]; example != "" && token == json.Delim('{') {
			want += ", such as " + example
		}
		return l.Errorf("it is %s: %s", shown(token), want)
	}
	l.tell(path)
	return nil
}

// mostMistakes is how many mistakes in one list an error names.
const mostMistakes = 20

// list reads a list of ints or strings into v. The error names several elements if
// several are wrong.
func (l *Loader) list(v reflect.Value, path string) error {
	v.Set(reflect.MakeSlice(v.Type(), 0, 0)) // not nil, which is unset
	var errs []error
	err := l.each('[', "a list, or [] for none", func(token json.Token) error {
		element := reflect.New(v.Type().Elem()).Elem()
		want := setElement(element, token)
		if want == "" {
			want = l.check(path, element)
		}
		if want == "" {
			v.Set(reflect.Append(v, element))
			l.tell(fmt.Sprintf("%s[%v]", path, element))
			return nil
		}
		errs = append(errs, l.Errorf("it contains %s: %s", shown(token), want))
		if _, nested := token.(json.Delim); nested || len(errs) == mostMistakes {
			return errors.Join(errs...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if want := l.check(path, v); want != "" && len(errs) == 0 {
		return l.Errorf("it is a list of %d: %s", v.Len(), want)
	}
	return errors.Join(errs...)
}

// setElement sets v to what token says, or returns what it should say.
func setElement(v reflect.Value, token json.Token) (want string) {
	if v.Kind() == reflect.String {
		text, ok := token.(string)
		if !ok {
			return "it must be a list of strings"
		}
		v.SetString(text)
		return ""
	}
	n, ok := whole(token, v.Type().Bits())
	if !ok {
		return "it must be a whole number"
	}
	v.SetInt(n)
	return ""
}

func (l *Loader) check(path string, v reflect.Value) (want string) {
	if l.rule.Check == nil {
		return ""
	}
	return l.rule.Check(path, v)
}

func (l *Loader) tell(path string) {
	if l.Set != nil {
		l.Set(path, l.Place())
	}
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
		if err != nil || text[0] == '-' {
			return `it must be a duration such as "100ms"` + orOff
		}
		v.SetInt(int64(d))
	case kind == reflect.Float64:
		f, ok := positive(token)
		if !ok {
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

// positive returns a token that is a number of at least 0.
func positive(token json.Token) (f float64, ok bool) {
	number, _ := token.(json.Number)
	f, err := number.Float64()
	// A number too small for a float64 would become 0, which inherits.
	mantissa, _, _ := strings.Cut(strings.ToLower(number.String()), "e")
	return f, err == nil && f >= 0 && (f != 0 || !strings.ContainsAny(mantissa, "123456789"))
}

// whole returns the value of a number without a fraction, however JSON spells it:
// 20, 20.0 and 2e1 are the same number.
func whole(token json.Token, bits int) (n int64, ok bool) {
	number, _ := token.(json.Number)
	mantissa, power, _ := strings.Cut(strings.ToLower(number.String()), "e")
	before, after, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimRight(before+after, "0")
	if strings.Trim(digits, "-") == "" {
		return 0, mantissa != ""
	}
	exponent, err := strconv.Atoi(cmp.Or(power, "0"))
	zeros := len(before) + exponent - len(digits)
	if err != nil || zeros < 0 || zeros > bits {
		return 0, false
	}
	n, err = strconv.ParseInt(digits+strings.Repeat("0", zeros), 10, bits)
	return n, err == nil
}

// each reads an object or a list, whichever begins with open, and calls f with
// each name or element. An error about anything else says that it must be want.
func (l *Loader) each(open json.Delim, want string, f func(json.Token) error) error {
	token, err := l.token()
	if err != nil {
		return err
	}
	if token != open {
		return l.Errorf("it is %s: it must be %s", shown(token), want)
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
		return strconv.Quote(short(token))
	case json.Number:
		return short(token.String())
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
		names := slices.Clone(l.path)
		for i, name := range names {
			names[i] = printable(short(name))
		}
		member = strings.Join(names, ".")
	}
	return Place{l.data[:l.dec.InputOffset()], member}
}

// shortBytes is how much of a name or a value errors show.
const shortBytes = 80

func short(text string) string {
	if len(text) <= shortBytes {
		return text
	}
	return strings.ToValidUTF8(text[:shortBytes], "") + "…"
}

// printable returns name with escapes for what isn't printable, such as a line break.
func printable(name string) string {
	if !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return name
	}
	quoted := strconv.Quote(name)
	return quoted[1 : len(quoted)-1]
}

// NameOf returns the name in JSON of the field of t with the given path.
func NameOf(t reflect.Type, path string) string {
	var names []string
	for name := range strings.SplitSeq(path, ".") {
		field, _ := t.FieldByName(name)
		names, t = append(names, field.Tag.Get("json")), field.Type
	}
	return strings.Join(names, ".")
}

// Errorf returns an error that names the line and the member at p.
func (p Place) Errorf(format string, args ...any) error {
	return fmt.Errorf("retrip: line %d: %s: %w", 1+bytes.Count(p.before, []byte("\n")), p.member, fmt.Errorf(format, args...))
}

// Errorf is Errorf of l's Place.
func (l *Loader) Errorf(format string, args ...any) error {
	return l.Place().Errorf(format, args...)
}
