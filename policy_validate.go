// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/dialect"
	"github.com/retrip/retrip/internal/meter"
	"github.com/retrip/retrip/internal/span"
	"github.com/retrip/retrip/internal/syntax"
)

// Validate reports everything that is wrong with the policies in the fields of
// t, for program start and for tests. The error names the host, field and value
// of each mistake. Validate also reports three problems that RoundTrip
// tolerates:
//
//   - The attempts and waits of a policy can't fit its Deadline, even if no
//     server sends Retry-After or a 429.
//   - Base is, or wraps, a Transport, so the attempts multiply.
//   - A dialect belongs to an API whose calls are POSTs, but the policy never
//     allows a POST to be repeated.
func (t *Transport) Validate() error {
	_, err := compile(t.Policy, t.Hosts)
	errs := []error{err, checkDurations(t.Metrics)}
	if err == nil {
		errs = append(errs, checkFit("Policy", t.Policy, defaults), checkPosts("Policy", t.Policy.over(defaults)))
		base := t.Policy.over(defaults)
		for _, pattern := range sortedKeys(t.Hosts) {
			p, path := t.Hosts[pattern], hostPath(pattern)
			errs = append(errs, checkFit(path, p, base))
			if p.Dialects != nil {
				errs = append(errs, checkPosts(path, p.over(base)))
			}
		}
	}
	if retries(t.Base, 0) {
		errs = append(errs, errors.New("retrip: Base is, or wraps, another retrip.Transport: their attempts multiply; keep only one of them"))
	}
	return joinFirst(errs)
}

// checkDurations checks the names in Metrics.Durations.
func checkDurations(m *Metrics) error {
	if m == nil {
		return nil
	}
	if _, err := meter.NewHosts(m.Durations); err != nil {
		return fmt.Errorf("retrip: Metrics.Durations: %w", err)
	}
	return nil
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

// check returns what is wrong with the values of p, each named by its path.
func (p Policy) check(path string) error {
	var errs []error
	p.eachMistake(func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("retrip: %s.%s is %v: %s", path, field, value, want))
	})
	return joinFirst(errs)
}

// mistakes gets each value of a policy that is wrong, with what it should be.
type mistakes func(field string, value any, want string)

func (bad mistakes) negative(field string, n int64, value any) {
	switch instead, ok := insteadOfOff[field]; {
	case n == Off && ok:
		bad(field, "Off", instead)
	case n == Off:
	case ok:
		bad(field, value, "it must be positive, or 0 to inherit")
	default:
		bad(field, value, "it must be positive, 0 to inherit or Off")
	}
}

func (bad mistakes) duration(field string, d time.Duration) {
	if d < 0 {
		bad.negative(field, int64(d), d)
	}
}

func (bad mistakes) count(field string, n int64) {
	if n < 0 {
		bad.negative(field, n, n)
	}
}

func (bad mistakes) number(field string, f, least, most float64) {
	if f != 0 && f != Off && !(f >= least && f <= most) { // also a NaN
		bad(field, f, fmt.Sprintf("it must be %v to %v, 0 to inherit or Off", least, most))
	}
}

func (bad mistakes) toggle(field string, s Switch) {
	if s != 0 && s != On && s != Off {
		bad(field, s, "it must be On, 0 to inherit or Off")
	}
}

// each calls check for each element of a list, unless there are too many: each policy of a
// host may inherit each list, and requests look into it.
func each[E any](bad mistakes, field string, list []E, check func(E)) {
	if n := len(list); n > mostElements {
		bad(field, fmt.Sprintf("a list of %d", n), fmt.Sprintf("it may have at most %d elements", mostElements))
		return
	}
	for _, e := range list {
		check(e)
	}
}

func (bad mistakes) statuses(field string, list []int) {
	each(bad, field, list, func(status int) {
		if status < 400 || status > 599 {
			bad(field, status, "a status must be 400 to 599")
		}
	})
}

// eachMistake tells bad what is wrong in p.
func (p Policy) eachMistake(bad mistakes) {
	bad.count("MaxAttempts", int64(p.MaxAttempts))
	bad.duration("Backoff.Base", p.Backoff.Base)
	bad.duration("Backoff.Cap", p.Backoff.Cap)
	bad.duration("Backoff.ThrottleBase", p.Backoff.ThrottleBase)
	if p.Backoff.Jitter > NoJitter {
		bad("Backoff.Jitter", p.Backoff.Jitter, "it must be FullJitter, EqualJitter, DecorrelatedJitter or NoJitter")
	}
	bad.duration("Deadline", p.Deadline)
	bad.duration("AttemptTimeout", p.AttemptTimeout)
	bad.duration("MaxWait", p.MaxWait)
	bad.count("WholeBody", p.WholeBody)
	bad.duration("BodyIdleTimeout", p.BodyIdleTimeout)
	bad.duration("Resume", p.Resume)
	bad.count("MaxReplayBody", p.MaxReplayBody)
	bad.number("Hedge", p.Hedge, 0.001, 0.2)
	bad.statuses("RetryOn", p.RetryOn)
	bad.statuses("FailOn", p.FailOn)
	bad.statuses("Unprocessed", p.Unprocessed)
	each(bad, "IdempotentMethods", p.IdempotentMethods, func(method string) {
		if !syntax.IsToken(method) {
			bad("IdempotentMethods", fmt.Sprintf("%q", method), "it must be an HTTP method")
		}
	})
	each(bad, "Dialects", p.Dialects, func(name string) {
		if _, ok := dialect.ByName[name]; !ok {
			bad("Dialects", fmt.Sprintf("%q", name), fmt.Sprintf("it must be one of %q", dialect.Names()))
		}
	})
	bad.toggle("IdempotencyKey", p.IdempotencyKey)
	switch {
	case p.RetryHeader == "":
	case !syntax.IsToken(p.RetryHeader):
		bad("RetryHeader", strconv.Quote(p.RetryHeader), `it must be the name of a header, or "off"`)
	case syntax.HasMeaning(p.RetryHeader):
		bad("RetryHeader", strconv.Quote(p.RetryHeader), `it must be the name of a header without another meaning, or "off"`)
	}
	bad.number("Budget", p.Budget, 1, maxBudget)
	bad.number("FleetBudget", p.FleetBudget, 1, maxBudget)
	bad.number("Breaker.Ratio", p.Breaker.Ratio, 0.01, 1)
	bad.duration("Breaker.Window", p.Breaker.Window)
	bad.count("Breaker.MinVolume", int64(p.Breaker.MinVolume))
	bad.duration("Breaker.OpenFor", p.Breaker.OpenFor)
	bad.toggle("Gate.Enabled", p.Gate.Enabled)
}

// conflict says that the value of a field doesn't go together with that of another.
type conflict struct {
	field, other string
	value, limit any
	text         string // for a Printf of these, in the order field, value, other, limit
}

func (c *conflict) Error() string { return c.say(c.field, c.other) }

func (c *conflict) say(field, other string) string {
	return fmt.Sprintf(c.text, field, c.value, other, c.limit)
}

// checkTogether returns what is wrong with the combination of fields of a
// resolved policy, which is a conflict.
func (p Policy) checkTogether() error {
	if p.Backoff.Base > p.Backoff.Cap {
		return &conflict{"Backoff.Base", "Backoff.Cap", p.Backoff.Base, p.Backoff.Cap, "%[1]s is %[2]v: it must not be more than %[3]s, which is %[4]v"}
	}
	const twice = "%[1]s is %[2]v: %[3]s lists this status too"
	retried, unprocessed := setOf(p.RetryOn), setOf(p.Unprocessed)
	for _, status := range p.FailOn {
		if retried[status] {
			return &conflict{"FailOn", "RetryOn", status, status, twice}
		}
		if unprocessed[status] {
			return &conflict{"FailOn", "Unprocessed", status, status, twice}
		}
	}
	return nil
}

func setOf(list []int) map[int]bool {
	set := make(map[int]bool, min(len(list), 200))
	for _, status := range list {
		set[status] = true
	}
	return set
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

// checkFit reports whether the attempts and waits of a valid policy can't fit
// its deadline.
func checkFit(path string, p, base Policy) error {
	r, _ := p.resolve(base)
	if r.policy.Deadline <= 0 || r.policy.AttemptTimeout <= 0 {
		return nil
	}
	attempts := span.Mul(r.policy.AttemptTimeout, r.policy.MaxAttempts)
	waits := r.LongestWaits()
	if sum := span.Add(attempts, waits); sum > r.policy.Deadline {
		return fmt.Errorf("retrip: %s.Deadline is %v: %d attempts of %v with waits of up to %v in total need %v",
			path, r.policy.Deadline, r.policy.MaxAttempts, r.policy.AttemptTimeout, waits, sum)
	}
	return nil
}

// checkPosts reports a dialect of an API whose calls are POSTs in a resolved
// policy that never repeats a POST after a response.
func checkPosts(path string, p Policy) error {
	if p.MaxAttempts == 1 || len(p.Unprocessed) > 0 || p.IdempotencyKey == On || p.Idempotent != nil || p.Classify != nil ||
		slices.Contains(p.IdempotentMethods, http.MethodPost) {
		return nil
	}
	for _, name := range p.Dialects {
		if dialect.ByName[name].Posts {
			return fmt.Errorf("retrip: %s.Dialects is %q: calls of this API are POSTs, and the policy would never repeat a POST; "+
				"set Unprocessed, for example to []int{429}, or IdempotencyKey, IdempotentMethods, Idempotent or Classify", path, name)
		}
	}
	return nil
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
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if !field.IsExported() {
			continue
		}
		if inner, ok := v.Field(i).Interface().(http.RoundTripper); ok && retries(inner, depth+1) {
			return true
		}
	}
	return false
}

// What a zero field of Transport.Policy inherits.
const (
	defaultMaxAttempts   = 4
	defaultBackoffBase   = 100 * time.Millisecond
	defaultBackoffCap    = 10 * time.Second
	defaultThrottleBase  = time.Second
	defaultMaxWait       = 30 * time.Second
	defaultMaxReplayBody = 64 << 10
	defaultBudget        = 5

	maxBudget = 1_000_000
)

// over returns p with its unset fields taken from base.
func (p Policy) over(base Policy) Policy {
	inherit(&p.MaxAttempts, base.MaxAttempts)
	inherit(&p.Backoff.Base, base.Backoff.Base)
	inherit(&p.Backoff.Cap, base.Backoff.Cap)
	inherit(&p.Backoff.ThrottleBase, base.Backoff.ThrottleBase)
	inherit(&p.Backoff.Jitter, base.Backoff.Jitter)
	inherit(&p.Deadline, base.Deadline)
	inherit(&p.AttemptTimeout, base.AttemptTimeout)
	inherit(&p.MaxWait, base.MaxWait)
	inherit(&p.WholeBody, base.WholeBody)
	inherit(&p.BodyIdleTimeout, base.BodyIdleTimeout)
	inherit(&p.Resume, base.Resume)
	inherit(&p.MaxReplayBody, base.MaxReplayBody)
	inherit(&p.Hedge, base.Hedge)
	inheritSlice(&p.RetryOn, base.RetryOn)
	inheritSlice(&p.FailOn, base.FailOn)
	inheritSlice(&p.Unprocessed, base.Unprocessed)
	inheritSlice(&p.IdempotentMethods, base.IdempotentMethods)
	inherit(&p.IdempotencyKey, base.IdempotencyKey)
	inheritSlice(&p.Dialects, base.Dialects)
	inherit(&p.RetryHeader, base.RetryHeader)
	inherit(&p.Budget, base.Budget)
	inherit(&p.FleetBudget, base.FleetBudget)
	inherit(&p.Breaker.Ratio, base.Breaker.Ratio)
	inherit(&p.Breaker.Window, base.Breaker.Window)
	inherit(&p.Breaker.MinVolume, base.Breaker.MinVolume)
	inherit(&p.Breaker.OpenFor, base.Breaker.OpenFor)
	inherit(&p.Gate.Enabled, base.Gate.Enabled)
	if p.Gate.Key == nil {
		p.Gate.Key = base.Gate.Key
	}
	if p.Classify == nil {
		p.Classify = base.Classify
	}
	if p.Idempotent == nil {
		p.Idempotent = base.Idempotent
	}
	return p
}

func inherit[T comparable](field *T, base T) {
	var zero T
	if *field == zero {
		*field = base
	}
}

func inheritSlice[T any](field *[]T, base []T) {
	if *field == nil {
		*field = base
	}
}

// defaults is what Transport.Policy inherits from.
var defaults = Policy{
	MaxAttempts:   defaultMaxAttempts,
	Backoff:       Backoff{Base: defaultBackoffBase, Cap: defaultBackoffCap, ThrottleBase: defaultThrottleBase, Jitter: FullJitter},
	MaxWait:       defaultMaxWait,
	MaxReplayBody: defaultMaxReplayBody,
	Budget:        defaultBudget,
	FleetBudget:   account.DefaultSize,
}
