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

	"github.com/retrip/retrip/internal/redact"
)

const off = -1

// Rule has what the types of the fields don't say. Its keys are paths of
// fields in Go, such as "Backoff.Cap".
type Rule struct {
	Words   map[string][]string // names of the values 1, 2, … of a uint8
	Example map[string]string   // JSON of a struct, for errors about anything else, or of another field, for errors about an object

	// Check returns what a field, or the element of a list, should be, or "" if it
	// may be v. A list is checked after its elements.
	Check func(path string, v reflect.Value) (want string)
}

// Loader reads JSON token by token, so that errors can name the line.
type Loader struct {
	// Set is called with the path and the place of each field that is set. For an
	// element of a list, the path ends in "[element]".
	Set func(path string, at Place)

	// Part says that the input is a part of a larger one, whose lines nobody knows.
	Part bool

	data []byte
	dec  *json.Decoder
	rule Rule
	path []string

	depth    int  // open objects and lists
	mistakes int  // so far
	broken   bool // it isn't JSON: nothing more can be read
}

// NewLoader returns a Loader of data, which may begin with a byte order mark.
func NewLoader(data []byte, rule Rule) *Loader {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	l := &Loader{Set: func(string, Place) {}, data: data, dec: json.NewDecoder(bytes.NewReader(data)), rule: rule}
	l.dec.UseNumber()
	return l
}

// Document is Object for an object that nothing may follow.
func (l *Loader) Document(member func(name string) error) error {
	if d := l.data; len(d) > 1 && (d[0] == 0 || d[1] == 0 || d[0] == 0xff && d[1] == 0xfe || d[0] == 0xfe && d[1] == 0xff) {
		return l.Errorf("it must be UTF-8, not UTF-16 or UTF-32")
	}
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
	var errs []error
	seen := map[string]bool{}
	err := l.each('{', want, func(token json.Token) (err error) {
		name, _ := token.(string) // anything else is a syntax error
		l.path = append(l.path, name)
		defer func() { l.path = l.path[:len(l.path)-1] }()
		depth, offset, before := l.depth, l.dec.InputOffset(), l.mistakes
		if seen[name] {
			err = l.Errorf("the field occurs twice")
		} else {
			seen[name] = true
			err = member(name)
		}
		if err == nil {
			return nil
		}
		if errs = append(errs, err); l.mistakes == before {
			l.mistakes++
		}
		return l.skip(depth, offset)
	})
	if !errors.Is(err, errStop) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// errStop ends the reading after a mistake that has been told.
var errStop = errors.New("stop")

// skip reads the rest of a member with a mistake, whose object has the given depth and
// whose name has ended at offset. It returns an error if there is no going on.
func (l *Loader) skip(depth int, offset int64) error {
	if l.broken || l.mistakes >= mostMistakes {
		return errStop
	}
	for l.dec.InputOffset() == offset || l.depth > depth {
		if _, err := l.token(); err != nil {
			return err
		}
	}
	return nil
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
	want := l.set(v, path, token)
	if example := l.rule.Example[path]; want != "" && example != "" && token == json.Delim('{') {
		want += ", such as " + example
	}
	if want != "" {
		return l.Errorf("it is %s: %s", shown(token), want)
	}
	l.Set(path, l.Place())
	return nil
}

// mostMistakes is after how many mistakes a Loader stops.
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
			want = l.rule.Check(path, element)
		}
		if want == "" {
			v.Set(reflect.Append(v, element))
			l.Set(fmt.Sprintf("%s[%v]", path, element), l.Place())
			return nil
		}
		errs = append(errs, l.Errorf("it contains %s: %s", shown(token), want))
		l.mistakes++
		if _, nested := token.(json.Delim); nested || l.mistakes >= mostMistakes {
			return errors.Join(errs...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if want := l.rule.Check(path, v); want != "" && len(errs) == 0 {
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

// set sets v to what token says, or returns what it should say.
func (l *Loader) set(v reflect.Value, path string, token json.Token) (want string) {
	text, isText := token.(string)
	switch v.Kind() {
	case reflect.Int8:
		on, ok := token.(bool)
		if !ok {
			return "it must be true or false"
		}
		v.SetInt(off)
		if on {
			v.SetInt(1)
		}
	case reflect.Uint8:
		words := l.rule.Words[path]
		i := slices.Index(words, text)
		if i < 0 {
			return fmt.Sprintf("it must be one of %q", words)
		}
		v.SetUint(uint64(i) + 1)
	case reflect.String:
		switch {
		case !isText:
			return "it must be a string"
		case text == "":
			return `leave it out to inherit, or use "off"`
		}
		v.SetString(text)
	default:
		if want := l.setNumber(v, path, token); want != "" {
			return want
		}
	}
	return l.rule.Check(path, v)
}

// setNumber is set for a number or a duration.
func (l *Loader) setNumber(v reflect.Value, path string, token json.Token) (want string) {
	none := reflect.ValueOf(off).Convert(v.Type())
	text, _ := token.(string)
	if text == "off" {
		v.Set(none)
		return ""
	}
	orOff, instead := `, or "off"`, l.rule.Check(path, none)
	if instead != "" {
		orOff = ""
	}
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		d, err := time.ParseDuration(text)
		if err != nil || text[0] == '-' {
			return `it must be a duration such as "100ms"` + orOff
		}
		v.SetInt(int64(d))
	case v.CanFloat():
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
	l.broken = err != nil
	switch token {
	case json.Delim('{'), json.Delim('['):
		l.depth++
	case json.Delim('}'), json.Delim(']'):
		l.depth--
	}
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
	of     string // what its line is one of, if that isn't all that the user sees
	member string
}

// Place returns the place up to which l has read.
func (l *Loader) Place() Place {
	member := "the policy"
	if len(l.path) > 0 {
		names := slices.Clone(l.path)
		for i, name := range names {
			names[i] = redact.Line(short(redact.Name(name)))
		}
		member = strings.Join(names, ".")
	}
	of := ""
	if l.Part {
		of = " of the policy"
	}
	return Place{l.data[:l.dec.InputOffset()], of, member}
}

// shortBytes is how much of a name or a value errors show.
const shortBytes = 80

func short(text string) string { return redact.Short(text, shortBytes) }

// Errorf returns an error that names the line and the member at p.
func (p Place) Errorf(format string, args ...any) error {
	return fmt.Errorf("retrip: line %d%s: %s: %w", 1+bytes.Count(p.before, []byte("\n")), p.of, p.member, fmt.Errorf(format, args...))
}

// Errorf is Errorf of l's Place.
func (l *Loader) Errorf(format string, args ...any) error {
	return l.Place().Errorf(format, args...)
}
