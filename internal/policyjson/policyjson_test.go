// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package policyjson_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/policyjson"
)

type (
	toggle int8
	shape  uint8

	waits struct {
		Cap   time.Duration `json:"cap"`
		Shape shape         `json:"shape"`
		Size  float64       `json:"size"`
	}

	settings struct {
		Tries   int           `json:"tries"`
		Bytes   int64         `json:"bytes"`
		Limit   time.Duration `json:"limit"`
		Gate    toggle        `json:"gate"`
		Header  string        `json:"header"`
		Status  []int         `json:"status"`
		Methods []string      `json:"methods"`
		Waits   waits         `json:"waits"`
		Decide  func()        `json:"-"`
	}
)

func (s shape) String() string { return [...]string{"", "round", "flat"}[s] }

var rule = policyjson.Rule{
	Words: map[string][]string{"Waits.Shape": {"round", "flat"}},
	Check: func(path string, v reflect.Value) string {
		if instead := map[string]string{"Tries": "use 1", "Waits.Cap": "use 24h"}[path]; instead != "" && v.Int() == -1 {
			return instead
		}
		return ""
	},
}

func load(input string) (s settings, err error) {
	l := policyjson.NewLoader([]byte(input), rule)
	err = l.Document(func(name string) error { return l.Member(&s, name) })
	return s, err
}

func TestRoundTrip(t *testing.T) {
	for want, s := range map[string]settings{
		`{}`: {},
		`{"tries":3,"bytes":1048576,"limit":"1m30s","gate":true,"header":"X-\"A\"","status":[408,425],"methods":["GET",""],"waits":{"cap":"1µs","shape":"flat","size":0.00001}}`: {
			Tries: 3, Bytes: 1 << 20, Limit: 90 * time.Second, Gate: 1, Header: `X-"A"`, Status: []int{408, 425}, Methods: []string{"GET", ""},
			Waits: waits{Cap: time.Microsecond, Shape: 2, Size: 1e-5},
		},
		`{"bytes":"off","limit":"off","gate":false,"header":"off","waits":{"size":"off"}}`: {Bytes: -1, Limit: -1, Gate: -1, Header: "off", Waits: waits{Size: -1}},
		`{"status":[],"methods":[]}`:  {Status: []int{}, Methods: []string{}},
		`{"waits":{"shape":"round"}}`: {Waits: waits{Shape: 1}},
	} {
		data, err := policyjson.Marshal(s)
		require.NoError(t, err)
		assert.JSONEq(t, want, string(data))
		back, err := load(string(data))
		require.NoError(t, err, "%s", data)
		assert.Equal(t, s, back, "%s", data)
	}
	// The members are in the order of the fields.
	data, err := policyjson.Marshal(settings{Tries: 1, Gate: 1, Status: []int{}, Waits: waits{Cap: time.Second, Size: 2}})
	require.NoError(t, err)
	assert.Equal(t, `{"tries":1,"gate":true,"status":[],"waits":{"cap":"1s","size":2}}`, string(data))
}

func TestMarshal_RefusesFunctions(t *testing.T) {
	_, err := policyjson.Marshal(settings{Tries: 1, Decide: func() {}})
	assert.EqualError(t, err, "retrip: settings.Decide is a function: it can't be written as JSON")
	type outer struct {
		Inner settings `json:"inner"`
	}
	_, err = policyjson.Marshal(outer{settings{Decide: func() {}}})
	assert.EqualError(t, err, "retrip: outer.Inner.Decide is a function: it can't be written as JSON")
}

// What unsets a field is valid, and so is the least and the greatest value.
func TestLoader_Bounds(t *testing.T) {
	s, err := load(fmt.Sprintf(`{"tries": 0, "bytes": %d, "limit": "0s", "status": [-1, 0], "waits": {"size": 0E5}}`, int64(math.MaxInt64)))
	require.NoError(t, err)
	assert.Equal(t, settings{Bytes: math.MaxInt64, Status: []int{-1, 0}}, s)
	s, err = load(`{"tries": 20.0, "bytes": 9223372036854775.807e3, "limit": "1μs", "status": [4.08E2, 5000e-1, -0.0, 0e99999999999999999999]}`)
	require.NoError(t, err)
	assert.Equal(t, settings{Tries: 20, Bytes: math.MaxInt64, Limit: time.Microsecond, Status: []int{408, 500, 0, 0}}, s)
	s, err = load(`{"waits": {"size": 4.9e-324}, "limit": "2562047h47m16.854775807s"}`)
	require.NoError(t, err)
	assert.Equal(t, settings{Limit: math.MaxInt64, Waits: waits{Size: math.SmallestNonzeroFloat64}}, s)
}

// A list counts the mistakes before it.
func TestLoader_StopsAfterTwentyMistakes(t *testing.T) {
	_, err := load(`{` + strings.Repeat(`"x": 1, `, 19) + `"status": [` + strings.Repeat(`"x", `, 30) + `1]}`)
	require.Error(t, err)
	assert.Equal(t, 20, strings.Count(err.Error(), "\n")+1)
}

func TestLoader_NamesLineMemberAndValue(t *testing.T) {
	const fields = "there is no such field; the fields are tries, bytes, limit, gate, header, status, methods, waits"
	for input, want := range map[string]string{
		// Names.
		"{\n\"trise\": 1}":               "line 2: trise: " + fields,
		"{\"gate\": true,\n\"Gate\": 1}": "line 2: Gate: " + fields,
		`{"-": 1}`:                       "line 1: -: " + fields,
		`{"": 1}`:                        "line 1: : " + fields,
		"{\"waits\": {\n\"\\u0063ap \": \"1s\"}}": "line 2: waits.cap : there is no such field; the fields are cap, shape, size",
		"{\"gate\": true,\n\"gate\": true}":       "line 2: gate: the field occurs twice",
		`{"waits": {"size": 1, "s\u0069ze": 1}}`:  "line 1: waits.size: the field occurs twice",
		// Several.
		"{\"tries\": 2.5,\n\"trise\": {\"a\": [1]},\n\"gate\": 1}": "line 1: tries: it is 2.5: it must be a whole number\nretrip: line 2: trise: " + fields + "\nretrip: line 3: gate: it is 1: it must be true or false",
		"{\"waits\": {\"size\": [],\n\"cap\": {}, \"x\": 1},\n\"bytes\": [[{}], 1], \"limit\": 5, \"header\": \"x\"}": "line 1: waits.size: it is a list: it must be a positive number, or \"off\"\nretrip: line 2: waits.cap: it is an object: it must be a duration such as \"100ms\"\n" +
			"retrip: line 2: waits.x: there is no such field; the fields are cap, shape, size\nretrip: line 3: bytes: it is a list: it must be a whole number\nretrip: line 3: limit: it is 5: it must be a duration such as \"100ms\", or \"off\"",
		"{\"methods\": [1, 2, {}, 3],\n\"tries\": true}": "line 1: methods: it contains 1: it must be a list of strings\nretrip: line 1: methods: it contains 2: it must be a list of strings\nretrip: line 1: methods: it contains an object: it must be a list of strings\n" +
			"retrip: line 2: tries: it is true: it must be a whole number",

		// Numbers.
		`{"tries": "1"}`:                     `line 1: tries: it is "1": it must be a whole number`,
		`{"tries": null}`:                    "line 1: tries: it is null: it must be a whole number",
		`{"tries": 12e-1}`:                   "line 1: tries: it is 12e-1: it must be a whole number",
		`{"tries": 1.01e1}`:                  "line 1: tries: it is 1.01e1: it must be a whole number",
		`{"tries": 1e19}`:                    "line 1: tries: it is 1e19: it must be a whole number",
		`{"tries": 1e999999999}`:             "line 1: tries: it is 1e999999999: it must be a whole number",
		`{"tries": 1e99999999999999999999}`:  "line 1: tries: it is 1e99999999999999999999: it must be a whole number",
		`{"tries": 1e-99999999999999999999}`: "line 1: tries: it is 1e-99999999999999999999: it must be a whole number",
		`{"limit": "-0s"}`:                   `line 1: limit: it is "-0s": it must be a duration such as "100ms", or "off"`,
		`{"tries": [1]}`:                     "line 1: tries: it is a list: it must be a whole number",
		`{"tries": {"a": 1}}`:                "line 1: tries: it is an object: it must be a whole number",
		`{"tries": true}`:                    "line 1: tries: it is true: it must be a whole number",
		`{"bytes": 9223372036854775808}`:     "line 1: bytes: it is 9223372036854775808: it must be a whole number",
		`{"tries": "off"}`:                   `line 1: tries: it is "off": use 1`,
		`{"tries": -1}`:                      "line 1: tries: it is -1: use 1",
		`{"tries": -2}`:                      "line 1: tries: it is -2: it must be positive, 0 to inherit",
		`{"bytes": -1}`:                      `line 1: bytes: it is -1: it must be positive, 0 to inherit, or "off"`,
		`{"waits": {"size": "1"}}`:           `line 1: waits.size: it is "1": it must be a positive number, or "off"`,
		`{"waits": {"size": -1}}`:            `line 1: waits.size: it is -1: it must be a positive number, or "off"`,
		`{"waits": {"size": 1e-400}}`:        `line 1: waits.size: it is 1e-400: it must be a positive number, or "off"`,
		`{"waits": {"size": 0.0001E-999}}`:   `line 1: waits.size: it is 0.0001E-999: it must be a positive number, or "off"`,
		`{"waits": {"size": 1e999}}`:         `line 1: waits.size: it is 1e999: it must be a positive number, or "off"`,
		`{"limit": 5}`:                       `line 1: limit: it is 5: it must be a duration such as "100ms", or "off"`,
		`{"limit": ""}`:                      `line 1: limit: it is "": it must be a duration such as "100ms", or "off"`,
		`{"limit": "-5s"}`:                   `line 1: limit: it is "-5s": it must be a duration such as "100ms", or "off"`,
		"{\n\n\"limit\": \"100 parsecs\"\n}": `line 3: limit: it is "100 parsecs": it must be a duration such as "100ms", or "off"`,
		`{"waits": {"cap": "off"}}`:          `line 1: waits.cap: it is "off": use 24h`,
		`{"waits": {"cap": "-1ns"}}`:         `line 1: waits.cap: it is "-1ns": it must be a duration such as "100ms"`,

		// Words and switches.
		`{"gate": 1}`:                 "line 1: gate: it is 1: it must be true or false",
		`{"gate": "off"}`:             `line 1: gate: it is "off": it must be true or false`,
		`{"gate": null}`:              "line 1: gate: it is null: it must be true or false",
		`{"header": ""}`:              `line 1: header: it is "": leave it out to inherit, or use "off"`,
		`{"header": false}`:           "line 1: header: it is false: it must be a string",
		`{"waits": {"shape": "off"}}`: `line 1: waits.shape: it is "off": it must be one of ["round" "flat"]`,
		`{"waits": {"shape": ""}}`:    `line 1: waits.shape: it is "": it must be one of ["round" "flat"]`,
		`{"waits": {"shape": 1}}`:     `line 1: waits.shape: it is 1: it must be one of ["round" "flat"]`,

		// Lists and objects.
		`{"status": 408}`:             "line 1: status: it is 408: it must be a list, or [] for none",
		`{"status": {}}`:              "line 1: status: it is an object: it must be a list, or [] for none",
		"{\"status\": [1,\n\"408\"]}": `line 2: status: it contains "408": it must be a whole number`,
		`{"status": [[]]}`:            "line 1: status: it contains a list: it must be a whole number",
		"{\"methods\": [\n\"\",\n1]}": "line 3: methods: it contains 1: it must be a list of strings",
		`{"methods": [{}]}`:           "line 1: methods: it contains an object: it must be a list of strings",
		`{"waits": 5}`:                "line 1: waits: it is 5: it must be an object",
		`{"waits": []}`:               "line 1: waits: it is a list: it must be an object",
		`[]`:                          "line 1: the policy: it is a list: it must be an object",
		"\n\"off\"":                   `line 2: the policy: it is "off": it must be an object`,
		"{\"gate\": true}\n{}":        "line 2: the policy: there is more data after the policy",
		`{"gate": true} x`:            "line 1: the policy: there is more data after the policy",
		"{\n\"gate\": true":           "line 2: the policy: the policy ends unexpectedly",
		"{\n\"status\": [1,\n":        "line 2: status: the policy ends unexpectedly",
		``:                            "line 1: the policy: the policy ends unexpectedly",
	} {
		_, err := load(input)
		assert.EqualError(t, err, "retrip: "+want, input)
	}
}

// The rest of the text is encoding/json's, and differs from version to version.
func TestLoader_SyntaxErrors(t *testing.T) {
	for input, want := range map[string]string{
		`{"waits": {"size": NaN}}`:           "line 1: waits.size: invalid character 'N'",
		`{"gate": tru}`:                      "line 1: gate: invalid character '}'",
		"{\n1: 2}":                           "line 2: the policy: ",
		"{\"gate\": true\n\n\"tries\": 1}":   "line 3: the policy: invalid character '\"'",
		"{\"waits\": {\n\"size\"\n1}}":       "line 3: waits.size: invalid character '1'",
		"{\"gate\": true,\n\n'tries': 1}":    "line 3: the policy: ",
		"{\"status\": [\n1,\n2\n3]}":         "line 4: status: invalid character '3'",
		"{\"tries\": \"x\",\n\"gate\": tru}": "line 1: tries: it is \"x\": it must be a whole number\nretrip: line 2: gate: invalid character '}'",
		"{\"header\":\n\"a\tb\"\n}":          "line 2: header: invalid character '\\t'",
	} {
		_, err := load(input)
		assert.ErrorContains(t, err, "retrip: "+want, input)
	}
}

func TestLoader_WrapsErrors(t *testing.T) {
	_, err := load("{\n,}")
	var syntax *json.SyntaxError
	require.ErrorAs(t, err, &syntax)
	own := errors.New("own")
	l := policyjson.NewLoader([]byte("{\n\"a\": 1}"), rule)
	err = l.Document(func(string) error { return l.Errorf("%w", own) })
	require.ErrorIs(t, err, own)
	assert.EqualError(t, err, "retrip: line 2: a: own")
}

// A number that doesn't fit an int would become another number.
func TestLoader_IntOfAnySize(t *testing.T) {
	for _, input := range []string{`{"tries": %d}`, `{"status": [%d]}`} {
		_, err := load(fmt.Sprintf(input, uint64(math.MaxInt)+1))
		assert.ErrorContains(t, err, "it must be a whole number")
	}
}

// A Place remains what it was when the Loader reads on.
func TestPlace(t *testing.T) {
	l := policyjson.NewLoader([]byte("{\"hosts\": {\n\"a\": {},\n\"b\": {\n\"tries\": 1}}}\n"), rule)
	places := []policyjson.Place{l.Place()}
	var s settings
	require.NoError(t, l.Document(func(string) error {
		return l.Object(func(string) error {
			places = append(places, l.Place())
			return l.Object(func(name string) error { return l.Member(&s, name) })
		})
	}))
	assert.Equal(t, 1, s.Tries)
	for i, want := range []string{"retrip: line 1: the policy: 5", "retrip: line 2: hosts.a: 5", "retrip: line 3: hosts.b: 5"} {
		assert.EqualError(t, places[i].Errorf("%d", 5), want)
	}
}
