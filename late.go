// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
)

// wiring is the fields of a Transport other than its policies.
type wiring struct {
	Base    http.RoundTripper
	Fleet   *Fleet
	Metrics *Metrics
	Logger  *slog.Logger
	Trace   *Trace
}

// late returns an error for the fields that have changed since the first request.
func (t *Transport) late() error {
	s := t.settings.Load()
	if s == nil || !s.begun {
		return nil
	}
	var errs []error
	then, now := reflect.ValueOf(s.fields), reflect.ValueOf(wiring{t.Base, t.Fleet, t.Metrics, t.Logger, t.Trace})
	for f := range then.Type().Fields() {
		if !sameValue(then.FieldByIndex(f.Index).Interface(), now.FieldByIndex(f.Index).Interface()) {
			errs = append(errs, fmt.Errorf("retrip: %s was changed after the first request, which has no effect", f.Name))
		}
	}
	if !s.replaced && s.matcher.fallback != nil {
		if !samePolicy(s.policy, t.Policy) || !maps.EqualFunc(s.hosts, t.Hosts, samePolicy) {
			errs = append(errs, errors.New("retrip: Policy or Hosts was changed after the first request, which has no effect: call SetPolicies"))
		}
	}
	return joinFirst(errs)
}

// sameValue reports whether a and b are the same value, as far as they can be compared.
func sameValue(a, b any) bool {
	if reflect.TypeOf(a) != reflect.TypeOf(b) {
		return false
	}
	return a == nil || !reflect.ValueOf(a).Comparable() || !reflect.ValueOf(b).Comparable() || a == b
}

// samePolicy reports whether a and b have the same values, and hooks in the same fields.
func samePolicy(a, b Policy) bool {
	then, now := reflect.ValueOf(a), reflect.ValueOf(b)
	return !slices.ContainsFunc(fields, func(f field) bool {
		a, b := then.FieldByIndex(f.index), now.FieldByIndex(f.index)
		if a.Kind() == reflect.Func {
			return a.IsNil() != b.IsNil()
		}
		return !reflect.DeepEqual(a.Interface(), b.Interface())
	})
}

// late returns an error if Durations has changed since the first use of m.
func (m *Metrics) late() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.made && (!slices.Equal(m.timed, m.Durations) || (m.timed == nil) != (m.Durations == nil)) {
		return errors.New("retrip: Metrics.Durations was changed after the first use of Metrics, such as its registration, which has no effect")
	}
	return nil
}
