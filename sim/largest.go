// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
)

// recovers reports whether s passes [CheckRecovery] with its own load and trigger.
func (s Scenario) recovers(ctx context.Context) (bool, error) {
	if s.Trigger.For == 0 {
		return false, &ParameterError{"Trigger.For", s.Trigger.For, "positive, for something to recover from"}
	}
	c := RecoveryCheck{Allowed: recoveryAllowed, Troubles: []Trouble{}}
	if err := c.validate(s); err != nil {
		return false, err
	}
	p := c.places(s)[0]
	without, err := c.without(ctx, p)
	if err != nil || without.recovery == Never || !without.effect {
		return err == nil && without.recovery != Never, err
	}
	seen, err := c.with(ctx, p, without)
	return seen.ok, err
}

// Quantity is the parameter that [Largest] maximizes.
type Quantity int

const (
	OfClients     Quantity = iota // Fleet.Clients, 1 to 100 000
	OfLoad                        // Arrivals.Rate, as a share of the backend's capacity: 0.05 to 0.99
	OfBudgetSize                  // Policy.Budget, 1 to 10 000
	OfMaxAttempts                 // MaxAttempts, 1 to 100
)

// String returns the name of the parameter.
func (q Quantity) String() string {
	if q < OfClients || q > OfMaxAttempts {
		return fmt.Sprintf("Quantity(%d)", int(q))
	}
	return [...]string{"clients", "load", "budget size", "attempts"}[q]
}

func (q Quantity) bounds() (least, most float64) {
	switch q {
	case OfLoad:
		return 0.05, 0.99
	case OfBudgetSize:
		return 1, 10_000
	case OfMaxAttempts:
		return 1, 100
	default:
		return 1, 100_000
	}
}

func (q Quantity) step() float64 {
	if q == OfLoad {
		return 0.01
	}
	return 1
}

func (s Scenario) with(q Quantity, value float64) Scenario {
	switch q {
	case OfLoad:
		return s.LoadOf(value)
	case OfBudgetSize:
		s.Policy.Retry.Budget = value
	case OfMaxAttempts:
		s.Policy.Retry.MaxAttempts = int(value)
	default:
		s.Fleet.Clients = int(value)
	}
	return s
}

// Limit is the result of [Largest].
type Limit struct {
	Quantity  Quantity
	Value     float64 // the largest that recovers; 0 if none does
	Unbounded bool    // Value is the largest value tried
}

// Largest returns the largest value of a quantity with which s passes
// [CheckRecovery] with its own load and trigger, all other parameters unchanged.
// It assumes that if a value recovers, every smaller
// value does too. The result is exact to 1 % where the quantity is larger than
// 100. Largest calls progress, if not nil, after each step with an estimate of
// the share that is complete.
func Largest(ctx context.Context, s Scenario, q Quantity, progress func(done float64)) (Limit, error) {
	least, most := q.bounds()
	if q == OfLoad && s.Backend.capacity() == 0 {
		return Limit{}, &ParameterError{"Backend.Workers", s.Backend.Workers, "positive, for a load to mean anything"}
	}
	if s.Policy.limit != nil && q == OfBudgetSize {
		return Limit{}, fmt.Errorf("sim: %s has no Budget", s.Policy.name())
	}
	return search(ctx, s, q, least, most, progress)
}

// search finds the largest value in [least, most] that recovers.
func search(ctx context.Context, s Scenario, q Quantity, least, most float64, progress func(float64)) (Limit, error) {
	tried := 0
	return bisect(Limit{Quantity: q}, least, most, func(value float64) (bool, error) {
		ok, err := s.with(q, value).recovers(ctx)
		if tried++; progress != nil {
			progress(float64(tried) / float64(tried+4))
		}
		return ok, err
	})
}

// bisect finds the largest value in [least, most] for which try returns true.
// It halves the interval at the geometric mean, since fleets span orders of
// magnitude. If try returns an error, bisect returns the largest value known to
// be good.
func bisect(limit Limit, least, most float64, try func(float64) (bool, error)) (Limit, error) {
	step := limit.Quantity.step()
	round := func(x float64) float64 { return math.Round(math.Round(x/step)*step*1e6) / 1e6 }
	lo, hi := least, most
	if ok, err := try(lo); !ok || err != nil {
		return limit, err
	}
	limit.Value = lo
	ok, err := try(hi)
	if err != nil {
		return limit, err
	}
	if ok {
		limit.Value, limit.Unbounded = hi, true
		return limit, nil
	}
	for {
		middle := round(math.Sqrt(lo * hi))
		if middle <= lo {
			middle = round(lo + step)
		}
		if middle >= hi || hi-lo < 0.01*lo && step == 1 {
			return limit, nil
		}
		ok, err := try(middle)
		if err != nil {
			return limit, err
		}
		if ok {
			lo, limit.Value = middle, middle
		} else {
			hi = middle
		}
	}
}

// PurseTime returns how long a client keeps retrying while every attempt fails
// at once. The budget stops the client after a fixed number of retries, which
// belong to a few of its own requests, and in a fleet each client sends one
// request per Clients/Rate. Large fleets therefore recover slowly: the
// allowance of one client is multiplied by their number. PurseTime returns 0
// for a policy without retries, and Never for a policy without a budget or with
// the rule of another system.
func (s Scenario) PurseTime() (time.Duration, error) {
	rules, p, err := s.rules()
	if err != nil {
		return 0, err
	}
	if p.MaxAttempts < 2 {
		return 0, nil
	}
	if p.Budget == retrip.Off || s.Policy.limit != nil {
		return Never, nil
	}
	var record host.Record
	retries := 0
	for before := -1; before < retries; {
		before = retries
		call := decide.Call{Attempts: 1}
		for rules.Next(&record, &call, decide.Outcome{Status: http.StatusServiceUnavailable, Idempotent: true, Replay: true}, 0, 0).Retry {
			call.Attempts++
			retries++
		}
	}
	requests := float64(retries) / float64(p.MaxAttempts-1)
	return time.Duration(requests * float64(s.Fleet.Clients) / s.Arrivals.Rate * float64(time.Second)), nil
}
