// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/retrip/retrip"
)

// recoverySeeds is how many runs must agree that a scenario recovers.
const recoverySeeds = 3

// RunAll runs scenarios on as many processors as there are and returns their
// results in the same order. The progress function, if not nil, is called from
// time to time with the share that is done, by one goroutine at a time. If there
// is an error, results that are missing are nil and others may be partial;
// parameters out of bounds are found before the first run.
func RunAll(ctx context.Context, scenarios []Scenario, progress func(done float64)) ([]*Result, error) {
	results := make([]*Result, len(scenarios))
	for _, s := range scenarios {
		if err := s.Validate(); err != nil {
			return results, err
		}
	}
	err := parallel(ctx, len(scenarios), progress, func(ctx context.Context, i int, within func(float64)) (err error) {
		results[i], err = scenarios[i].Run(ctx, within)
		return err
	})
	return results, err
}

// Seeds returns s as often as n says, with one seed after the other.
func (s Scenario) Seeds(n int) []Scenario {
	list := make([]Scenario, n)
	for i := range list {
		list[i] = s
		list[i].Seed += uint64(i)
	}
	return list
}

// RecoveryError is a scenario that doesn't recover from its trigger.
type RecoveryError struct {
	Policy  string  // empty if it has no name
	Clients int     // of the fleet
	Load    float64 // share of the backend's capacity that arrives
	Steady  float64 // attempts per second in the end, as a share of that capacity

	// Recovery is what was seen in the end: the time to recover, when that is
	// longer than the scenario's horizon allows, or Never.
	Recovery time.Duration

	// Recovers is the largest fleet for which the same policy does recover, 0
	// if there is none.
	Recovers int
}

func (e *RecoveryError) Error() string {
	var b strings.Builder
	name := e.Policy
	if name == "" {
		name = "this policy"
	}
	fmt.Fprintf(&b, "sim: at %d clients and %.0f %% load %s ", e.Clients, 100*e.Load, name)
	if e.Recovery == Never {
		fmt.Fprintf(&b, "stays at %.1f× load for ever: ", e.Steady)
	} else {
		fmt.Fprintf(&b, "takes %v to recover: ", e.Recovery)
	}
	if e.Recovers > 0 {
		fmt.Fprintf(&b, "it recovers in time up to about %d clients", e.Recovers)
	} else {
		b.WriteString("it recovers in time at no fleet size")
	}
	return b.String()
}

// CheckRecovery returns nil if goodput comes back after the trigger of s, with
// each of three seeds and before the horizon, and a *[RecoveryError] that says
// what happens instead, and from which fleet size on, if it doesn't. It is
// meant for the tests of those who commit policies.
func CheckRecovery(ctx context.Context, s Scenario) error {
	ok, err := s.recovers(ctx)
	if ok || err != nil {
		return err
	}
	// "For ever" deserves a second, longer look.
	longer := s
	longer.Horizon = min(maxHorizon, s.Horizon+5*time.Minute)
	results, err := RunAll(ctx, longer.Seeds(recoverySeeds), nil)
	if err != nil {
		return err
	}
	e := &RecoveryError{Policy: s.Policy.Name, Clients: s.Fleet.Clients, Load: s.Load()}
	for _, r := range results {
		e.Steady = max(e.Steady, r.Steady/max(1, s.Backend.capacity()))
		if r.Recovery == Never || e.Recovery == Never {
			e.Recovery = Never
		} else {
			e.Recovery = max(e.Recovery, r.Recovery)
		}
	}
	limit, err := search(ctx, s, OfClients, 1, float64(s.Fleet.Clients), nil)
	if err != nil {
		return err
	}
	e.Recovers = int(limit.Value)
	return e
}

func (s Scenario) recovers(ctx context.Context) (bool, error) {
	if s.Trigger.For == 0 {
		return false, &ParameterError{"Trigger.For", s.Trigger.For, "positive, for something to recover from"}
	}
	results, err := RunAll(ctx, s.Seeds(recoverySeeds), nil)
	if err != nil {
		return false, err
	}
	for _, r := range results {
		if r.Recovery == Never {
			return false, nil
		}
	}
	return true, nil
}

// Quantity is what [Largest] makes as large as possible.
type Quantity int

const (
	OfClients     Quantity = iota // Fleet.Clients, 1 to 100 000
	OfLoad                        // Arrivals.Rate, as a share of the backend's capacity: 0.05 to 0.99
	OfBudgetSize                  // Budget.Size, 1 to 10 000
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
		s.Policy.Retry.Budget.Size = value
	case OfMaxAttempts:
		s.Policy.Retry.MaxAttempts = int(value)
	default:
		s.Fleet.Clients = int(value)
	}
	return s
}

// Limit is the answer of [Largest].
type Limit struct {
	Quantity  Quantity
	Value     float64 // the largest that recovers; 0 if none does
	Unbounded bool    // Value is the largest that was tried
}

// Largest returns the largest value of a quantity with which s recovers from
// its trigger, as [CheckRecovery] would say, everything else being as it is.
// It takes for granted that a smaller value recovers if a larger one does, and
// is exact to 1 % where the quantity is larger than 100. The progress
// function, if not nil, is called after each step with a guess of the share
// that is done.
func Largest(ctx context.Context, s Scenario, q Quantity, progress func(done float64)) (Limit, error) {
	least, most := q.bounds()
	if q == OfLoad && s.Backend.capacity() == 0 {
		return Limit{}, &ParameterError{"Backend.Workers", s.Backend.Workers, "positive, for a load to mean anything"}
	}
	if s.Policy.limit != nil && q == OfBudgetSize {
		return Limit{}, fmt.Errorf("sim: %s has no Budget.Size", s.Policy.name())
	}
	return search(ctx, s, q, least, most, progress)
}

// search looks for the largest value from least to most. Fleets span orders of
// magnitude, so the middle is the geometric one.
func search(ctx context.Context, s Scenario, q Quantity, least, most float64, progress func(float64)) (Limit, error) {
	limit := Limit{Quantity: q}
	step := q.step()
	round := func(x float64) float64 { return math.Round(math.Round(x/step)*step*1e6) / 1e6 }
	tried := 0
	try := func(value float64) (bool, error) {
		ok, err := s.with(q, value).recovers(ctx)
		if tried++; progress != nil {
			progress(float64(tried) / float64(tried+4))
		}
		return ok, err
	}
	lo, hi := least, most
	if ok, err := try(lo); !ok || err != nil {
		return limit, err
	}
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
			limit.Value = lo
			return limit, nil
		}
		ok, err := try(middle)
		if err != nil {
			return limit, err
		}
		if ok {
			lo = middle
		} else {
			hi = middle
		}
	}
}

// PurseTime returns how long a client goes on retrying when everything fails:
// its budget lasts for Size/(MaxAttempts-1) of its own requests, and in a fleet
// each client sends one every Clients/Rate. It is the law behind slow
// recoveries of large fleets: an allowance per client multiplies by their
// number. It is 0 for a policy without retries and Never for one without a
// budget or with the rule of another system.
func (s Scenario) PurseTime() (time.Duration, error) {
	rules, err := s.rules()
	if err != nil {
		return 0, err
	}
	p := rules.Policy()
	if p.MaxAttempts < 2 {
		return 0, nil
	}
	if p.Budget.Size == retrip.Off || s.Policy.limit != nil {
		return Never, nil
	}
	requests := p.Budget.Size / float64(p.MaxAttempts-1)
	return time.Duration(requests * float64(s.Fleet.Clients) / s.Arrivals.Rate * float64(time.Second)), nil
}
