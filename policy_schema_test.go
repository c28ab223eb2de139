// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/dialect"
	"github.com/retrip/retrip/internal/syntax"
	"github.com/retrip/retrip/internal/testenv"
)

// schema is the part of JSON Schema that docs/policies.schema.json uses.
type schema struct {
	ID          string             `json:"$id"`
	Schema      string             `json:"$schema"`
	Title       string             `json:"title"`
	Description string             `json:"description"`
	Ref         string             `json:"$ref"`
	Type        string             `json:"type"`
	Enum        []any              `json:"enum"`
	Const       any                `json:"const"`
	AnyOf       []*schema          `json:"anyOf"`
	Not         *schema            `json:"not"`
	Minimum     json.Number        `json:"minimum"`
	Maximum     json.Number        `json:"maximum"`
	Pattern     *regexp.Regexp     `json:"pattern"`
	Items       *schema            `json:"items"`
	Properties  map[string]*schema `json:"properties"`
	Additional  json.RawMessage    `json:"additionalProperties"` // false or a schema
	Defs        map[string]*schema `json:"$defs"`
}

func policySchema(t *testing.T) *schema {
	t.Helper()
	file, err := os.Open("docs/policies.schema.json")
	require.NoError(t, err)
	defer file.Close()
	dec := json.NewDecoder(file)
	dec.DisallowUnknownFields() // the test can't check keywords that it doesn't know
	dec.UseNumber()
	var s schema
	require.NoError(t, dec.Decode(&s))
	return &s
}

// find follows references from s, which is part of root.
func (s *schema) find(root *schema) *schema {
	for s.Ref != "" {
		group, name, _ := strings.Cut(strings.TrimPrefix(s.Ref, "#/"), "/")
		s = map[string]map[string]*schema{"properties": root.Properties, "$defs": root.Defs}[group][name]
	}
	return s
}

// number is an exact number, as RatString writes it. JSON Schema knows no others.
type number string

func (n number) rat() *big.Rat {
	r, _ := new(big.Rat).SetString(string(n))
	return r
}

// exact returns value, as encoding/json decodes it, with exact numbers.
func exact(value any) any {
	switch value := value.(type) {
	case json.Number:
		return number(number(value).rat().RatString())
	case []any:
		for i, one := range value {
			value[i] = exact(one)
		}
	case map[string]any:
		for name, one := range value {
			value[name] = exact(one)
		}
	}
	return value
}

func decoded(t *testing.T, data []byte) (value any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	require.NoError(t, dec.Decode(&value), "%s", data)
	return exact(value)
}

// accepts reports whether value, as decoded returns it, is valid under s.
func (s *schema) accepts(root *schema, value any) bool {
	s = s.find(root)
	n, isNumber := value.(number)
	text, isText := value.(string)
	list, isList := value.([]any)
	object, isObject := value.(map[string]any)
	_, isBool := value.(bool)
	typed := map[string]bool{
		"": true, "number": isNumber, "integer": isNumber && n.rat().IsInt(),
		"string": isText, "array": isList, "object": isObject, "boolean": isBool,
	}
	switch {
	case !typed[s.Type],
		s.Enum != nil && !slices.ContainsFunc(s.Enum, func(one any) bool { return exact(one) == value }),
		s.Const != nil && exact(s.Const) != value,
		s.AnyOf != nil && !slices.ContainsFunc(s.AnyOf, func(one *schema) bool { return one.accepts(root, value) }),
		s.Not != nil && s.Not.accepts(root, value),
		s.Minimum != "" && isNumber && n.rat().Cmp(number(s.Minimum).rat()) < 0,
		s.Maximum != "" && isNumber && n.rat().Cmp(number(s.Maximum).rat()) > 0,
		isText && s.Pattern != nil && !s.Pattern.MatchString(text),
		s.Items != nil && slices.ContainsFunc(list, func(one any) bool { return !s.Items.accepts(root, one) }):
		return false
	}
	for name, member := range object {
		property := s.Properties[name]
		if property == nil && string(s.Additional) != "false" {
			property = new(schema)
			if err := json.Unmarshal(s.Additional, property); err != nil {
				return false
			}
		}
		if property == nil || !property.accepts(root, member) {
			return false
		}
	}
	return true
}

// TestSchema_IsThatOfTheCode compares the schema with the fields of Policy:
// their names, and whether a wide choice of values is valid.
func TestSchema_IsThatOfTheCode(t *testing.T) {
	root := policySchema(t)
	var probes []any
	require.NoError(t, json.Unmarshal([]byte(`[null, true, false, {}, {"no such field": 1},
		-5, -1, 0, -0.0, 2e0, 9223372036854775000, 9223372036854776000, 0.0005, 0.001, 0.005, 0.01, 0.5, 1, 1.5, 2, 1000000, 1000000.5, 1000001,
		"", "off", "0", "0s", "-1s", "1", "1.5s", ".5m", "1.h", "+1m30s", "100 parsecs", "3us", "3µs", "3μs", "-0s", "+0", "-0", "5ns5", "s", "Off",
		"full", "equal", "decorrelated", "none", "1", "some", "Retry-Attempt", "Retry Attempt", "Größe", "!#$%&'*+-.^_|~",
		[], [399], [400], [408, 599], [600], [400.5], ["408"], [null], [[]],
		["SEARCH"], ["SEARCH", "X-1"], [""], ["A B"], ["github", "ratelimit"], ["no such dialect"], [true]]`), &probes))
	probes = append(probes, "`")
	for _, name := range dialect.Names() {
		probes = append(probes, []any{name})
	}
	for _, name := range syntax.Meaningful {
		probes = append(probes, name, strings.ToUpper(name), http.CanonicalHeaderKey(name), name+"x", "x"+name)
	}
	checkSchemaOf(t, root, root, reflect.TypeFor[Policy](), probes, nil)

	// The policy of a host has the same members, except hosts.
	policy := root.Defs["policy"]
	assert.Equal(t, "false", string(policy.Additional))
	for name, property := range policy.Properties {
		assert.Equal(t, "#/properties/"+name, property.Ref)
	}
	var names []string
	for name := range root.Properties {
		if name != "hosts" {
			names = append(names, name)
		}
	}
	require.Len(t, policy.Properties, len(names))
	var hosts schema
	require.NoError(t, json.Unmarshal(root.Properties["hosts"].Additional, &hosts))
	assert.Same(t, policy, hosts.find(root))
}

// checkSchemaOf checks that s describes the members of structType in JSON, at
// the given path in a policy.
func checkSchemaOf(t *testing.T, root, s *schema, structType reflect.Type, probes []any, path []string) {
	t.Helper()
	assert.Equal(t, "object", s.Type, path)
	assert.Equal(t, "false", string(s.Additional), path)
	var names []string
	for field := range structType.Fields() {
		name := field.Tag.Get("json")
		if name == "-" {
			continue
		}
		names = append(names, name)
		property := s.Properties[name]
		if !assert.NotNil(t, property, "Policy.%s is missing in the schema, as %v", field.Name, append(path, name)) {
			continue
		}
		assert.NotEmpty(t, property.Description, name)
		at := append(slices.Clone(path), name)
		if field.Type.Kind() == reflect.Struct {
			checkSchemaOf(t, root, property, field.Type, probes, at)
		}
		for _, probe := range probes {
			value := probe
			for _, name := range slices.Backward(at) {
				value = map[string]any{name: value}
			}
			data, err := json.Marshal(value)
			require.NoError(t, err)
			err = json.Unmarshal(data, new(Policy))
			assert.Equal(t, err == nil, root.accepts(root, decoded(t, data)), "%s: the code says: %v", data, err)
		}
	}
	for name := range s.Properties {
		if len(path) == 0 && name == "hosts" {
			continue
		}
		assert.Contains(t, names, name, "the schema has what Policy has not, at %v", path)
	}
}

// TestSchema_NamesTheDefaults checks the numbers in the descriptions.
func TestSchema_NamesTheDefaults(t *testing.T) {
	root := policySchema(t)
	for path, value := range map[string]any{
		"max_attempts": defaultMaxAttempts, "max_wait": defaultMaxWait, "max_replay_body": defaultMaxReplayBody, "max_sends": defaultMaxSends,
		"backoff.base": defaultBackoffBase, "backoff.cap": defaultBackoffCap, "backoff.throttle_base": defaultThrottleBase, "backoff.jitter": defaults.Backoff.Jitter,
		"budget.size":   defaultBudgetSize,
		"breaker.ratio": defaultBreaker.Ratio, "breaker.window": defaultBreaker.Window, "breaker.min_volume": defaultBreaker.MinVolume,
		"breaker.open_for": defaultBreaker.OpenFor,
	} {
		s := root
		for name := range strings.SplitSeq(path, ".") {
			s = s.Properties[name]
		}
		assert.Regexp(t, regexp.QuoteMeta(fmt.Sprintf("Default: %v", value))+`[.,]`, s.Description, path)
	}
}

// TestSchema_ExamplesAreValid checks the policies in the docs against the
// schema and the code.
func TestSchema_ExamplesAreValid(t *testing.T) {
	files, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	root := policySchema(t)
	examples := 0
	for _, file := range append(files, "README.md") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			examples++
			assert.True(t, root.accepts(root, decoded(t, []byte(match[1]))), "%s: %s", file, match[1])
			policy, hosts, err := LoadPolicies(strings.NewReader(match[1]))
			if assert.NoError(t, err, "%s", file) {
				assert.NoError(t, (&Transport{Policy: policy, Hosts: hosts}).Validate(), "%s", file)
			}
		}
	}
	assert.NotZero(t, examples)
}

// TestSchema_MutatedPolicies changes policies at random: the schema accepts what the
// code accepts. Only the code knows which fields go together, which hosts are the
// same, which patterns are hosts and how long the longest duration is.
func TestSchema_MutatedPolicies(t *testing.T) {
	onlyCode := regexp.MustCompile(`must not be more than|lists this status too|occurs twice|another pattern|: a host |host pattern|the host is|label of the name|brackets|pattern for many|may only stand|only the first|the port is|port is missing`)
	extreme := regexp.MustCompile(`[0-9]{7}|[eE][-+]?[0-9]{4}`)
	seeds := []string{
		`{"max_attempts": 3, "backoff": {"base": "50ms", "cap": "2s", "throttle_base": "1.5s", "jitter": "full"}, "deadline": "1m30s", "attempt_timeout": "off"}`,
		`{"max_wait": "3µs", "whole_body": 1024, "body_idle_timeout": "10s", "resume": "1m", "max_replay_body": "off", "max_sends": 20.0, "retry_on": [408, 4.25e2]}`,
		`{"fail_on": [501], "unprocessed": [429], "idempotent_methods": ["SEARCH"], "idempotency_key": false, "dialects": ["github"], "retry_header": "Retry-Attempt"}`,
		`{"budget": {"size": 10, "shared": "off"}, "fleet_budget": 500, "breaker": {"ratio": 0.5, "window": "20s", "min_volume": 50, "open_for": "1s"}, "gate": {"enabled": true}}`,
		`{"hosts": {"api.example.com": {"retry_header": "off", "budget": {"size": 1e3}}, "*.example.com": {"deadline": "0"}}}`,
	}
	pieces := []string{"0", "-", "+", ".", "e", "E", "1", "9", "00", ".0", "e2", "-0", "\"", "[", "]", "{", "}", ",", ":", " ", "µ", "μ", "u", "m", "s", "h", "ns", "off", "Off", "null", "true",
		"\"off\"", "\"\"", "\"0s\"", "[]", "{}", "a", "K", "_", "é", "\\u03bc", "\\n", "408", "1e0", "2.0"}
	root := policySchema(t)
	r := rand.New(rand.NewPCG(26, 14))
	valid, accepted := 0, 0
	for range testenv.Size(60_000, 1_000_000) {
		text := []rune(seeds[r.IntN(len(seeds))])
		for range 1 + r.IntN(3) {
			at := r.IntN(len(text))
			end := at
			switch r.IntN(3) {
			case 0: // changes or removes up to five characters
				end = min(len(text), at+r.IntN(6))
			case 1: // changes a word
				word := func(c rune) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == '.' }
				for at > 0 && word(text[at-1]) {
					at--
				}
				for end < len(text) && word(text[end]) {
					end++
				}
			}
			text = slices.Replace(text, at, end, []rune(pieces[r.IntN(len(pieces))])...)
		}
		data := []byte(string(text))
		if !json.Valid(data) || extreme.Match(data) {
			continue
		}
		valid++
		_, _, err := LoadPolicies(bytes.NewReader(data))
		if err == nil {
			accepted++
		}
		if (err == nil) != root.accepts(root, decoded(t, data)) && (err == nil || !onlyCode.MatchString(err.Error())) {
			t.Fatalf("code and schema disagree about %s: the code says: %v", data, err)
		}
	}
	t.Logf("%d valid documents, %d of them accepted", valid, accepted)
	assert.Greater(t, accepted, 1000)
	assert.Greater(t, valid-accepted, 1000)
}
