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
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/dialect"
	"github.com/retrip/retrip/internal/meter"
	"github.com/retrip/retrip/internal/redact"
	"github.com/retrip/retrip/internal/span"
	"github.com/retrip/retrip/internal/syntax"
)

// Validate reports the mistakes in the fields of t, for program start and for tests: the
// error names the host, field and value of each. RoundTrip refuses the same policies. After
// the first request, Validate also reports the fields that have changed, which is too late.
func (t *Transport) Validate() error {
	t.start()
	_, err := compile(t.Policy, t.Hosts)
	if wrong := t.wrongBase(); wrong != nil {
		err = errors.Join(err, wrong)
	}
	if t.Metrics != nil {
		if _, wrong := meter.NewHosts(t.Metrics.Durations); wrong != nil {
			err = errors.Join(err, fmt.Errorf("retrip: Metrics.Durations: %w", wrong))
		}
		err = errors.Join(err, t.Metrics.late())
	}
	return errors.Join(err, t.late())
}

// wrongBase returns an error if Base is a nil pointer that looks like a Base.
func (t *Transport) wrongBase() error {
	if base, ok := t.Base.(*http.Transport); ok && base == nil {
		return errors.New("retrip: Base is a nil *http.Transport: leave Base itself nil for a default")
	}
	return nil
}

// Advice returns a sentence for each thing that is valid, but seldom meant: a policy without
// a time limit, a Deadline that attempts and waits can't fit or that one attempt may use up,
// many attempts with hardly any Backoff, a Cap that cuts ThrottleBase, POSTs or PATCHes to all hosts that may run twice, a
// Base that retries too, or a dialect for POSTs that the policy never repeats.
func (t *Transport) Advice() (sentences []string) {
	if m, err := compile(t.Policy, t.Hosts); err == nil {
		base, _ := t.Base.(*http.Transport)
		bounded := base != nil && base.ResponseHeaderTimeout > 0
		if !bounded {
			sentences = append(sentences, m.fallback.adviseTime())
			bounded = sentences[0] != "" // it speaks for the hosts that inherit it
		}
		sentences = append(sentences, m.fallback.adviseFit(), m.fallback.adviseBackoff(), m.fallback.advisePosts(), m.fallback.adviseMethods())
		for i, pattern := range slices.Sorted(maps.Keys(t.Hosts)) {
			r := m.rules[1+i]
			sentences = append(sentences, r.adviseFit(), r.adviseBackoff())
			if !bounded {
				sentences = append(sentences, r.adviseTime())
			}
			if t.Hosts[pattern].Dialects != nil {
				sentences = append(sentences, r.advisePosts())
			}
		}
	}
	if retries(t.Base, 0) {
		sentences = append(sentences, "retrip: Base is, or wraps, another retrip.Transport: their attempts multiply; keep only one of them")
	}
	sentences = slices.DeleteFunc(sentences, func(s string) bool { return s == "" })
	if n := len(sentences) - mostErrors; n > 0 {
		sentences = append(sentences[:mostErrors], fmt.Sprintf("retrip: and %d more", n))
	}
	return sentences
}

// insteadOfOff says, for each number in a policy that can't be Off, what to set
// to get the effect that Off might have been meant to have. Keys are field
// paths.
var insteadOfOff = map[string]string{
	"MaxAttempts":       "use 1 for no retries",
	"Backoff.Cap":       "use a long duration, such as 24h, to let waits keep growing; set Base to Off for no waits",
	"MaxWait":           "use 1ns to refuse every wait, or a long duration, such as 24h, to accept any",
	"Breaker.Window":    "set Ratio to Off for no breaker",
	"Breaker.MinVolume": "set Ratio to Off for no breaker",
	"Breaker.OpenFor":   "set Ratio to Off for no breaker",
}

// mostElements is how many elements a list in a policy may have: there are no more
// statuses of errors.
const mostElements = 200

// field is a field of a Policy, or of a struct in it.
type field struct {
	path  string // such as "Backoff.Cap"
	name  string // in JSON, such as "backoff.cap"
	index []int  // for reflection
}

// fields are the fields of a Policy, in their order.
var fields = fieldsOf(reflect.TypeFor[Policy](), field{})

func fieldsOf(t reflect.Type, of field) (list []field) {
	for f := range t.Fields() {
		next := field{of.path + f.Name, of.name + f.Tag.Get("json"), slices.Concat(of.index, f.Index)}
		if f.Type.Kind() == reflect.Struct {
			list = append(list, fieldsOf(f.Type, field{next.path + ".", next.name + ".", next.index})...)
		} else {
			list = append(list, next)
		}
	}
	return list
}

// set sets the fields of p that own sets, and returns what is wrong with them, each named
// by its path below path.
func (p *Policy) set(own *Policy, path string) error {
	var errs []error
	mistaken := func(f *field, v reflect.Value) bool {
		want := wanted(f.path, v)
		if want != "" {
			errs = append(errs, fmt.Errorf("retrip: %s.%s is %s: %s", path, f.path, shown(f.path, v), want))
		}
		return want != ""
	}
	to, from := reflect.ValueOf(p).Elem(), reflect.ValueOf(own).Elem()
	for i := range fields {
		f := &fields[i]
		v := from.FieldByIndex(f.index)
		if v.IsZero() {
			continue
		}
		to.FieldByIndex(f.index).Set(v)
		if mistaken(f, v) || v.Kind() != reflect.Slice {
			continue
		}
		for i := range v.Len() {
			mistaken(f, v.Index(i))
		}
	}
	return joinFirst(errs)
}

// shown returns the value of the field with the given path, or an element of it, for an
// error.
func shown(path string, v reflect.Value) string {
	switch {
	case v.Kind() == reflect.Slice:
		return fmt.Sprintf("a list of %d", v.Len())
	case v.Kind() == reflect.String:
		return strconv.Quote(redact.Short(v.String(), 80))
	case insteadOfOff[path] != "" && v.Int() == Off:
		return "Off"
	}
	return fmt.Sprint(v)
}

// wanted returns what the field with the given path, or an element of it, should be, or
// "" if it may be v.
func wanted(path string, v reflect.Value) string {
	switch kind := v.Kind(); path {
	case "RetryOn", "FailOn", "Unprocessed", "IdempotentMethods", "Dialects":
		switch {
		case kind == reflect.Slice:
			// Each policy of a host may inherit each list, and requests look into it.
			if v.Len() > mostElements {
				return fmt.Sprintf("it may have at most %d elements", mostElements)
			}
		case kind == reflect.Int:
			if v.Int() < 400 || v.Int() > 599 {
				return "a status must be 400 to 599"
			}
		case path == "Dialects":
			if _, ok := dialect.ByName[v.String()]; !ok {
				return fmt.Sprintf("it must be one of %q", dialect.Names())
			}
		case !syntax.IsToken(v.String()) || v.String() == "*":
			return "it must be an HTTP method"
		case slices.Contains([]string{http.MethodPost, http.MethodPatch}, strings.ToUpper(v.String())) && v.String() != strings.ToUpper(v.String()):
			return "it must be in capital letters, because methods are case-sensitive"
		}
	case "RetryHeader":
		switch {
		case v.IsZero():
		case !syntax.IsToken(v.String()):
			return `it must be the name of a header, or "off"`
		case syntax.HasMeaning(v.String()):
			return `it must be the name of a header without another meaning, or "off"`
		}
	case "Backoff.Jitter":
		if v.Uint() > uint64(NoJitter) {
			return "it must be FullJitter, EqualJitter, DecorrelatedJitter or NoJitter"
		}
	default:
		limits, limited := ranges[path]
		on, isSwitch := v.Interface().(Switch)
		switch {
		case isSwitch:
			if on != 0 && on != On && on != Off {
				return "it must be On, 0 to inherit or Off"
			}
		case limited:
			if f := v.Float(); f != 0 && f != Off && !(f >= limits[0] && f <= limits[1]) { // also a NaN
				return fmt.Sprintf("it must be %v to %v, 0 to inherit or Off", limits[0], limits[1])
			}
		case v.CanInt() && v.Int() < 0:
			return negative(path, v.Int())
		}
	}
	return ""
}

// ranges are the least and the greatest value of the numbers that have them.
var ranges = map[string][2]float64{
	"Hedge":         {0.001, 0.2},
	"Budget":        {1, 1_000_000},
	"FleetBudget":   {1, 1_000_000},
	"Breaker.Ratio": {0.01, 1},
}

// negative returns what the field with the given path should be instead of n, or "" if it
// may be Off.
func negative(path string, n int64) string {
	switch instead := insteadOfOff[path]; {
	case n == Off:
		return instead
	case instead != "":
		return "it must be positive, or 0 to inherit"
	}
	return "it must be positive, 0 to inherit or Off"
}

// conflict says that the value of a field doesn't go together with that of another.
type conflict struct {
	field, other string
	value        any
	text         string // what is wrong with value, as a format of the other field
}

func (c *conflict) Error() string { return c.say(c.field, c.other) }

func (c *conflict) say(field, other string) string {
	return fmt.Sprintf("%s is %v: "+c.text, field, c.value, other)
}

// conflict returns an error that wraps a conflict if fields of r's policy don't go together.
func (r *rules) conflict() error {
	wrong := func(c conflict) error { return fmt.Errorf("retrip: %s.%w", r.path, &c) }
	p := &r.policy
	if p.Backoff.Base > p.Backoff.Cap {
		return wrong(conflict{"Backoff.Base", "Backoff.Cap", p.Backoff.Base, "it must not be more than %s, which is " + p.Backoff.Cap.String()})
	}
	for _, status := range p.FailOn {
		const twice = "%s lists this status too"
		switch {
		case slices.Contains(p.RetryOn, status):
			return wrong(conflict{"FailOn", "RetryOn", status, twice})
		case slices.Contains(p.Unprocessed, status):
			return wrong(conflict{"FailOn", "Unprocessed", status, twice})
		}
	}
	return nil
}

// mostErrors is how many mistakes an error names.
const mostErrors = 20

// joinFirst joins the first of many errors, of which some may be nil, and says how many
// there are besides.
func joinFirst(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if n := len(errs) - mostErrors; n > 0 {
		errs = append(slices.Clip(errs[:mostErrors]), fmt.Errorf("retrip: and %d more", n))
	}
	return errors.Join(errs...)
}

// adviseTime says that nothing in r limits how long a request may take, if so.
func (r *rules) adviseTime() string {
	if r.AttemptTimeout > 0 || r.Deadline > 0 {
		return ""
	}
	return fmt.Sprintf("retrip: %s sets neither AttemptTimeout nor Deadline: a request whose context has no deadline waits as long as the server stays silent", r.path)
}

// adviseMethods says that r repeats what changes something at any host, if so.
func (r *rules) adviseMethods() string {
	for _, method := range r.policy.IdempotentMethods {
		if r.MaxAttempts > 1 && (method == http.MethodPost || method == http.MethodPatch) {
			return fmt.Sprintf("retrip: %s.IdempotentMethods lists %s: after a lost response, every %[2]s to these hosts runs twice; "+
				"use Unprocessed or IdempotencyKey, or list it for hosts whose every %[2]s only reads", r.path, method)
		}
	}
	for _, status := range []int{http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout} {
		if r.MaxAttempts > 1 && slices.Contains(r.policy.Unprocessed, status) {
			return fmt.Sprintf("retrip: %s.Unprocessed lists %d: after it, a POST that was processed runs twice; list it for hosts whose API says that it did nothing", r.path, status)
		}
	}
	return ""
}

// adviseFit says that the attempts and waits of r can't fit its deadline, if so.
func (r *rules) adviseFit() string {
	waits := r.LongestWaits()
	switch {
	case r.Deadline <= 0:
		return ""
	case r.AttemptTimeout <= 0:
		if r.MaxAttempts == 1 || waits > r.Deadline { // which then says how often to ask, as in a poll
			return ""
		}
		return fmt.Sprintf("retrip: %s.Deadline is %v, and there is no AttemptTimeout: an attempt without an answer takes all of it, and isn't retried", r.path, r.Deadline)
	}
	if sum := span.Add(span.Mul(r.AttemptTimeout, r.MaxAttempts), waits); sum > r.Deadline {
		return fmt.Sprintf("retrip: %s.Deadline is %v: %d attempts of %v with waits of up to %v in total need %v",
			r.path, r.Deadline, r.MaxAttempts, r.AttemptTimeout, waits, sum)
	}
	return ""
}

// adviseBackoff says that r makes many attempts with hardly a wait between them, if so.
func (r *rules) adviseBackoff() string {
	const many, each = 10, 10 * time.Millisecond
	if waits := r.LongestWaits(); r.MaxAttempts > many && waits < span.Mul(each, r.MaxAttempts) {
		return fmt.Sprintf("retrip: %s.MaxAttempts is %d, with waits of up to %v in total: an outage that lasts longer fails all of them; set Backoff, or fewer attempts",
			r.path, r.MaxAttempts, waits)
	}
	if b := r.Backoff; b.ThrottleBase > b.Cap && b.ThrottleBase != defaults.Backoff.ThrottleBase {
		return fmt.Sprintf("retrip: %s.Backoff.ThrottleBase is %v, but no wait is longer than Backoff.Cap, which is %v: raise Cap", r.path, b.ThrottleBase, b.Cap)
	}
	return ""
}

// advisePosts names a dialect of an API whose calls are POSTs if r never repeats a POST
// after a response.
func (r *rules) advisePosts() string {
	p := &r.policy
	if p.MaxAttempts == 1 || len(p.Unprocessed) > 0 || p.IdempotencyKey == On || p.Idempotent != nil || p.Classify != nil ||
		slices.Contains(p.IdempotentMethods, http.MethodPost) {
		return ""
	}
	for _, name := range p.Dialects {
		if dialect.ByName[name].Posts {
			return fmt.Sprintf("retrip: %s.Dialects is %q: calls of this API are POSTs, and the policy would never repeat a POST; "+
				"set Unprocessed, for example to []int{429}, or IdempotencyKey, IdempotentMethods, Idempotent or Classify", r.path, name)
		}
	}
	return ""
}

// retries reports whether rt is, or wraps, a Transport. It looks through
// wrappers that have an Unwrap method or exported fields that hold a
// RoundTripper, as oauth2.Transport has.
func retries(rt http.RoundTripper, depth int) bool {
	if depth > 8 {
		return false
	}
	switch rt.(type) {
	case *Transport:
		return true
	case *http.Transport:
		// It wraps nothing, and its first use may be changing its fields.
		return false
	}
	if w, ok := rt.(interface{ Unwrap() http.RoundTripper }); ok && retries(w.Unwrap(), depth+1) {
		return true
	}
	v := reflect.ValueOf(rt)
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return false
	}
	for field, value := range v.Fields() {
		if !field.IsExported() {
			continue
		}
		if inner, ok := value.Interface().(http.RoundTripper); ok && retries(inner, depth+1) {
			return true
		}
	}
	return false
}

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
			errs = append(errs, fmt.Errorf("retrip: %s was changed after the first request, which is too late", f.Name))
		}
	}
	if !s.replaced && (!samePolicy(s.policy, t.Policy) || !maps.EqualFunc(s.hosts, t.Hosts, samePolicy)) {
		errs = append(errs, errors.New("retrip: Policy or Hosts was changed after the first request, which has no effect: call SetPolicies"))
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
