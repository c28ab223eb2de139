// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"encoding/json"
	"fmt"
	"math"
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
	Minimum     *float64           `json:"minimum"`
	Maximum     *float64           `json:"maximum"`
	Pattern     string             `json:"pattern"`
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

// accepts reports whether value, as encoding/json decodes it, is valid under s.
func (s *schema) accepts(root *schema, value any) bool {
	s = s.find(root)
	number, isNumber := value.(float64)
	text, isText := value.(string)
	list, isList := value.([]any)
	object, isObject := value.(map[string]any)
	_, isBool := value.(bool)
	typed := map[string]bool{
		"": true, "number": isNumber, "integer": isNumber && number == math.Trunc(number),
		"string": isText, "array": isList, "object": isObject, "boolean": isBool,
	}
	switch {
	case !typed[s.Type],
		s.Enum != nil && !slices.Contains(s.Enum, value),
		s.Const != nil && s.Const != value,
		s.AnyOf != nil && !slices.ContainsFunc(s.AnyOf, func(one *schema) bool { return one.accepts(root, value) }),
		s.Minimum != nil && isNumber && number < *s.Minimum,
		s.Maximum != nil && isNumber && number > *s.Maximum,
		isText && !regexp.MustCompile(s.Pattern).MatchString(text),
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
		-5, -1, 0, 0.0005, 0.001, 0.005, 0.01, 0.5, 1, 1.5, 2, 1000000, 1000000.5, 1000001,
		"", "off", "0", "0s", "-1s", "1", "1.5s", ".5m", "1.h", "+1m30s", "100 parsecs", "3us", "3µs", "5ns5", "s", "Off",
		"full", "equal", "decorrelated", "none", "1", "some", "Retry-Attempt", "Retry Attempt", "Größe", "!#$%&'*+-.^_|~",
		[], [399], [400], [408, 599], [600], [400.5], ["408"], [null], [[]],
		["SEARCH"], ["SEARCH", "X-1"], [""], ["A B"], ["github", "ratelimit"], ["no such dialect"], [true]]`), &probes))
	probes = append(probes, "`")
	for _, name := range dialect.Names() {
		probes = append(probes, []any{name})
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
			assert.Equal(t, err == nil, root.accepts(root, value), "%s: the code says: %v", data, err)
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
			var value any
			require.NoError(t, json.Unmarshal([]byte(match[1]), &value), "%s", file)
			assert.True(t, root.accepts(root, value), "%s: %s", file, match[1])
			policy, hosts, err := LoadPolicies(strings.NewReader(match[1]))
			if assert.NoError(t, err, "%s", file) {
				assert.NoError(t, (&Transport{Policy: policy, Hosts: hosts}).Validate(), "%s", file)
			}
		}
	}
	assert.NotZero(t, examples)
}
