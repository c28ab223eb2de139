// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/dialect"
	"github.com/retrip/retrip/internal/meter"
	"github.com/retrip/retrip/internal/span"
)

// Rules is a [Policy] prepared for decisions: resolved, checked and immutable.
// It is safe for concurrent use. [Policy.Rules] makes it.
type Rules struct {
	policy      Policy // every field resolved
	retry       statusSet
	unprocessed statusSet
	budget      budget.Rule
	timed       bool          // the budget depends on the duration of successes
	fleet       float64       // size of the fleet's account; 0 if the policy takes no part in it
	breaker     *breaker.Rule // nil: off
	dialects    []dialect.Dialect
	maxSends    int
	derives     bool           // every attempt needs a request and context of its own
	pool        *budget.Shared // budget that its hosts share; nil: none
	retryHeader string         // in canonical form; empty: none
	shared      bool           // for a Host that stands for many hosts and has only a budget
	name        string         // the pattern in Transport.Hosts, or "default"
	matched     *atomic.Bool   // whether a request has followed the rules; nil: not tracked
	metrics     *meter.Policy  // nil counts nothing
}

// Rules resolves p, giving unset fields their defaults, and checks it. The
// error names every field that is wrong and its value.
func (p Policy) Rules() (*Rules, error) {
	if err := p.check("Policy"); err != nil {
		return nil, err
	}
	r, err := p.resolve(defaults)
	if err != nil {
		return nil, fmt.Errorf("retrip: Policy.%w", err)
	}
	return r, nil
}

// resolve makes the rules of p over base. It checks only what depends on both p
// and base; check does the rest.
func (p Policy) resolve(base Policy) (*Rules, error) {
	p = p.over(base)
	r := &Rules{policy: p}
	for status := http.StatusInternalServerError; status < 600; status++ {
		r.retry.add(status)
	}
	r.retry.add(http.StatusTooManyRequests)
	for _, status := range p.RetryOn {
		r.retry.add(status)
	}
	for _, status := range p.Unprocessed {
		r.retry.add(status)
		r.unprocessed.add(status)
	}
	for _, status := range p.FailOn {
		r.retry.remove(status)
	}
	if p.Budget.Size != Off {
		r.budget.Size = budget.Micro(p.Budget.Size)
		if p.Budget.Credit != Off {
			r.budget.Credit = budget.Micro(p.Budget.Credit)
		}
	}
	if p.Budget.Size != Off || p.Budget.Shared > 0 {
		// Without a budget, a process whose own network is dead would spend what
		// everyone has.
		r.fleet = max(0, p.FleetBudget)
	}
	for _, name := range p.Dialects {
		r.dialects = append(r.dialects, dialect.ByName[name])
	}
	if !strings.EqualFold(p.RetryHeader, noRetryHeader) {
		r.retryHeader = http.CanonicalHeaderKey(p.RetryHeader)
	}
	r.policy.Breaker = p.Breaker.orDefault()
	if r.policy.Breaker.Ratio > 0 {
		r.breaker = (*breaker.Rule)(&r.policy.Breaker)
	}
	r.timed = r.budget.Size > 0 && p.AttemptTimeout > 0
	r.maxSends = cmp.Or(p.MaxSends, defaultMaxSends)
	r.derives = p.AttemptTimeout > 0 || p.Deadline > 0 || p.MaxSends > 0 || p.BodyIdle > 0
	return r, p.checkTogether()
}

// orDefault returns b with the defaults of its unset fields, if b is on.
func (b Breaker) orDefault() Breaker {
	if b != (Breaker{}) && b.Ratio != Off {
		inherit(&b.Ratio, defaultBreaker.Ratio)
		inherit(&b.Window, defaultBreaker.Window)
		inherit(&b.MinVolume, defaultBreaker.MinVolume)
		inherit(&b.OpenFor, defaultBreaker.OpenFor)
		inherit(&b.Probes, defaultBreaker.Probes)
	}
	return b
}

// override returns the rules of a request whose context sets p.
func (r *Rules) override(p Policy) (*Rules, error) {
	errs := []error{p.check("WithPolicy")}
	if b, off := p.Breaker, (Breaker{Ratio: Off}); b != (Breaker{}) && b != off {
		errs = append(errs, fmt.Errorf("retrip: WithPolicy.Breaker is %+v: its state belongs to the host, so WithPolicy accepts only Breaker{Ratio: Off}", b))
	}
	if b := p.Budget; b != (Budget{}) && b != Unlimited && b != (Budget{Size: Off}) {
		errs = append(errs, fmt.Errorf("retrip: WithPolicy.Budget is %+v: its state belongs to the host, so WithPolicy accepts only Unlimited", b))
	}
	if p.FleetBudget != 0 && p.FleetBudget != Off {
		errs = append(errs, fmt.Errorf("retrip: WithPolicy.FleetBudget is %v: its state belongs to the host, so WithPolicy accepts only Off", p.FleetBudget))
	}
	if p.Gate == On && r.policy.Gate != On {
		errs = append(errs, errors.New("retrip: WithPolicy.Gate is on: its state belongs to the host, so WithPolicy accepts only Off"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	own, err := p.resolve(r.policy)
	if err != nil {
		return nil, fmt.Errorf("retrip: WithPolicy.%w", err)
	}
	if p.Budget.Size != Off {
		own.pool = r.pool
	} else {
		own.fleet = 0
	}
	own.name, own.metrics = r.name, r.metrics
	return own, nil
}

// forShared returns r for a Host that stands for many hosts.
func (r *Rules) forShared() *Rules {
	s := *r
	s.breaker, s.policy.Gate, s.shared = nil, Off, true
	return &s
}

// Policy returns the policy that r was made from, with every inherited field
// filled in. MaxSends stays 0 if no policy sets it; see [Transport.PolicyOf].
func (r *Rules) Policy() Policy {
	return r.policy.clone()
}

// clone returns p with slices of its own.
func (p Policy) clone() Policy {
	p.RetryOn = slices.Clone(p.RetryOn)
	p.FailOn = slices.Clone(p.FailOn)
	p.Unprocessed = slices.Clone(p.Unprocessed)
	p.IdempotentMethods = slices.Clone(p.IdempotentMethods)
	p.Dialects = slices.Clone(p.Dialects)
	return p
}

// retryable reports whether o is a failure that another attempt may fix.
func (r *Rules) retryable(o Outcome) bool {
	switch {
	case o.Canceled || o.Hopeless || o.Verdict == Final:
		return false
	case o.Verdict == Retryable || o.Verdict == NotProcessed:
		return true
	default:
		return o.Status == 0 || r.retry.has(o.Status)
	}
}

// repeatable reports whether a request that ended in o may be repeated without
// unwanted effects.
func (r *Rules) repeatable(o Outcome) bool {
	return o.Idempotent || o.Verdict == NotProcessed || r.unprocessed.has(o.Status)
}

// refused reports whether o is a refusal in the eyes of a gate. The gate then
// holds back all further requests.
func (r *Rules) refused(o Outcome) bool {
	return o.received() == http.StatusTooManyRequests || o.received() == http.StatusServiceUnavailable && o.RetryAfter > 0
}

// pauses reports whether a Retry-After on status applies to all clients of the
// host. That of a 429 applies to one key or tenant, and only a gate obeys it
// for other requests.
func (r *Rules) pauses(status int) bool {
	return !r.shared && status == http.StatusServiceUnavailable
}

// longestWaits returns the sum of the longest waits between the attempts of one
// request, if no server asks for more, not even with a bare 429.
func (r *Rules) longestWaits() time.Duration {
	var sum, previous time.Duration
	for retry := 1; retry < r.policy.MaxAttempts; retry++ {
		_, hi := r.policy.Backoff.window(retry, previous)
		if hi == previous {
			// The waits have reached the cap, or there is no backoff: every
			// further wait is the same.
			return span.Add(sum, span.Mul(hi, r.policy.MaxAttempts-retry))
		}
		sum, previous = span.Add(sum, hi), hi
	}
	return sum
}

// statusSet is a set of statuses from 400 to 599.
type statusSet [4]uint64

func (s *statusSet) add(status int)    { s[(status-400)/64] |= 1 << ((status - 400) % 64) }
func (s *statusSet) remove(status int) { s[(status-400)/64] &^= 1 << ((status - 400) % 64) }

func (s *statusSet) has(status int) bool {
	i := uint(status - 400)
	return i < 200 && s[i/64]&(1<<(i%64)) != 0
}
