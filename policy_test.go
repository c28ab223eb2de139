// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/dialect"
)

// leaves calls f for every field of a policy that isn't a struct of fields. It
// finds fields that are added later, too.
func leaves(v reflect.Value, path string, f func(path string, field reflect.Value)) {
	for i := range v.NumField() {
		name := path + v.Type().Field(i).Name
		if field := v.Field(i); field.Kind() == reflect.Struct {
			leaves(field, name+".", f)
		} else {
			f(name, field)
		}
	}
}

// fill sets a field to a value other than zero, a different one for each n.
func fill(t *testing.T, path string, field reflect.Value, n int) {
	t.Helper()
	switch field.Kind() {
	case reflect.Int, reflect.Int64:
		field.SetInt(int64(n))
	case reflect.Uint8:
		field.SetUint(uint64(n))
	case reflect.Float64:
		field.SetFloat(float64(n))
	case reflect.String:
		field.SetString(strings.Repeat("x", n))
	case reflect.Int8:
		field.SetInt(int64(n))
	case reflect.Slice:
		field.Set(reflect.MakeSlice(field.Type(), n, n))
	case reflect.Func:
		field.Set(reflect.MakeFunc(field.Type(), func([]reflect.Value) []reflect.Value {
			return []reflect.Value{reflect.Zero(field.Type().Out(0))}
		}))
	default:
		t.Fatalf("Policy.%s is of a kind that this test doesn't know: %v", path, field.Kind())
	}
}

// same compares two fields. Funcs are compared by identity.
func same(a, b reflect.Value) bool {
	if a.Kind() == reflect.Func {
		return a.UnsafePointer() == b.UnsafePointer()
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

func fieldOf(p *Policy, path string) (found reflect.Value) {
	leaves(reflect.ValueOf(p).Elem(), "", func(name string, field reflect.Value) {
		if name == path {
			found = field
		}
	})
	return found
}

func TestPolicy_InheritsEveryField(t *testing.T) {
	var base, own Policy
	fields := 0
	leaves(reflect.ValueOf(&base).Elem(), "", func(path string, field reflect.Value) {
		fill(t, path, field, 3)
		fields++
	})
	leaves(reflect.ValueOf(&own).Elem(), "", func(path string, field reflect.Value) { fill(t, path, field, 2) })
	require.GreaterOrEqual(t, fields, 25)

	inherited, kept := base, base
	require.NoError(t, inherited.set(&Policy{}, ""))
	_ = kept.set(&own, "") // no value need be valid
	leaves(reflect.ValueOf(&base).Elem(), "", func(path string, field reflect.Value) {
		assert.True(t, same(field, fieldOf(&inherited, path)), "%s isn't inherited", path)
		assert.True(t, same(fieldOf(&own, path), fieldOf(&kept, path)), "%s is overridden", path)
	})
}

func TestPolicy_Defaults(t *testing.T) {
	r := resolved(t, Policy{})
	assert.Equal(t, Policy{
		MaxAttempts:   4,
		Backoff:       Backoff{Base: 100 * time.Millisecond, Cap: 10 * time.Second, ThrottleBase: time.Second, Jitter: FullJitter},
		MaxWait:       30 * time.Second,
		MaxReplayBody: 64 << 10,
		Budget:        5,
		FleetBudget:   175,
	}, r.policy)

	// The zero Breaker is off. A Breaker with any field set is on.
	full := Breaker{Ratio: 0.8, Window: 10 * time.Second, MinVolume: 20, OpenFor: time.Second}
	assert.Equal(t, full, resolved(t, Policy{Breaker: Breaker{OpenFor: time.Second}}).policy.Breaker)
	assert.Equal(t, Breaker{Ratio: Off, OpenFor: time.Second}, resolved(t, Policy{Breaker: Breaker{Ratio: Off, OpenFor: time.Second}}).policy.Breaker)
}

// Changing a policy that a Transport returns doesn't change its rules.
func TestTransport_PoliciesAreCopies(t *testing.T) {
	given := Policy{RetryOn: []int{404}, FailOn: []int{501}, Unprocessed: []int{429}, IdempotentMethods: []string{"PATCH"}, Dialects: []string{"github"}}
	tr := &Transport{}
	require.NoError(t, tr.SetPolicies(given, map[string]Policy{"*.Example.com": {MaxAttempts: 2}, "exmaple.com": {}}))
	for range 2 {
		set, hosts, err := tr.Policies()
		require.NoError(t, err)
		assert.Equal(t, map[string]Policy{"*.Example.com": {MaxAttempts: 2}, "exmaple.com": {}}, hosts)
		hosts["x"] = Policy{}
		for _, p := range []Policy{set, must(tr.PolicyFor("a.example:443"))} {
			assert.Equal(t, []any{404, 501, 429, "PATCH", "github"}, []any{p.RetryOn[0], p.FailOn[0], p.Unprocessed[0], p.IdempotentMethods[0], p.Dialects[0]})
			p.RetryOn[0], p.FailOn[0], p.Unprocessed[0], p.IdempotentMethods[0], p.Dialects[0] = 1, 1, 1, "x", "x"
		}
	}
}

// What all hosts have may be off for one.
func TestPolicy_OffForOneHost(t *testing.T) {
	m, err := compile(Policy{Deadline: time.Minute, AttemptTimeout: time.Second, Budget: 7, Breaker: Breaker{Ratio: 0.5}, RetryHeader: "retry-attempt"},
		map[string]Policy{"off.example": {Deadline: Off, AttemptTimeout: Off, Backoff: Backoff{Base: Off}, Budget: Off, Breaker: Breaker{Ratio: Off}, RetryHeader: "off"}})
	require.NoError(t, err)
	r := m.find(&url.URL{Scheme: "https", Host: "example.com"})
	assert.NotNil(t, r.Breaker)
	assert.True(t, r.Derives)
	assert.Equal(t, int64(7e6), r.Budget.Size)
	assert.Equal(t, "Retry-Attempt", r.RetryHeader)

	r = m.find(&url.URL{Scheme: "https", Host: "off.example"})
	assert.Nil(t, r.Breaker)
	assert.False(t, r.Derives)
	assert.Zero(t, r.Budget.Size, "unlimited")
	assert.Empty(t, r.RetryHeader)
	_, hi := r.Backoff.Window(3, 0)
	assert.Zero(t, hi)
	assert.Equal(t, 4, r.policy.MaxAttempts, "other fields are inherited")
}

// If a number can't be Off, the error says what to set instead.
func TestPolicy_OffSaysWhatInstead(t *testing.T) {
	var p Policy
	leaves(reflect.ValueOf(&p).Elem(), "", func(path string, field reflect.Value) {
		switch field.Kind() {
		case reflect.Int, reflect.Int64:
			field.SetInt(Off)
		case reflect.Float64:
			field.SetFloat(Off)
		default:
			return
		}
		if err := (&Policy{}).set(&p, "Policy"); err != nil {
			assert.Regexp(t, `^retrip: Policy\.`+path+` is Off: .*(use|set) `, err.Error())
		}
		field.SetZero()
	})
}

func TestPolicy_DocumentsEveryDialect(t *testing.T) {
	docs := mustRead(t, "policy.go")
	for _, name := range dialect.Names() {
		assert.True(t, strings.Contains(docs, `"`+name+`"`), "the comment of Policy.Dialects doesn't name %q", name)
	}
}
