// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"strconv"
	"time"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/internal/decide"
)

// ParameterError reports a parameter of a model that is out of bounds.
type ParameterError struct {
	Field string // such as Fleet.Clients
	Value any
	Want  string // what it must be
}

func (e *ParameterError) Error() string {
	return fmt.Sprintf("sim: %s is %v: it must be %s", e.Field, e.Value, e.Want)
}

const (
	maxHorizon = 24 * time.Hour
	maxClients = 1_000_000
	maxRate    = 10_000_000
)

// checker keeps the first parameter it finds out of bounds.
type checker struct{ err error }

func (c *checker) want(ok bool, field string, value any, want string) {
	if !ok && c.err == nil {
		c.err = &ParameterError{field, value, want}
	}
}

func (c *checker) count(field string, n, least, most int) {
	c.want(n >= least && n <= most, field, n, fmt.Sprintf("%d to %d", least, most))
}

func (c *checker) number(field string, x, least, most float64) {
	plain := func(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
	c.want(x >= least && x <= most, field, x, plain(least)+" to "+plain(most))
}

func (c *checker) duration(field string, d, least, most time.Duration) {
	c.want(d >= least && d <= most, field, d, fmt.Sprintf("%v to %v", least, most))
}

// ours wants a policy without a rule that only Scenario knows.
func (c *checker) ours(p Policy) {
	c.want(p.limit == nil && p.draw == nil && !p.account, "Policy", p.name(), "a retrip.Policy")
}

// Validate reports the first parameter that is out of bounds, as a
// *[ParameterError], or an invalid policy. Run validates too.
func (s Scenario) Validate() error {
	_, _, err := s.rules()
	return err
}

func (s Scenario) rules() (*decide.Rules, retrip.Policy, error) {
	var c checker
	c.count("Fleet.Clients", s.Fleet.Clients, 1, maxClients)
	c.duration("Fleet.Timeout", s.Fleet.Timeout, 0, maxHorizon)
	c.number("Arrivals.Rate", s.Arrivals.Rate, 0.001, maxRate)
	c.backend(&s.Backend)
	c.duration("Trigger.At", s.Trigger.At, 0, maxHorizon)
	c.duration("Trigger.For", s.Trigger.For, 0, maxHorizon)
	c.number("Trigger.Slowdown", s.Trigger.Slowdown, 0, 1_000_000)
	c.number("Trigger.Surge", s.Trigger.Surge, 0, 1000)
	c.number("Trigger.FailureRate", s.Trigger.FailureRate, 0, 1)
	c.duration("Trigger.RetryAfter", s.Trigger.RetryAfter, 0, maxHorizon)
	c.duration("Policy.Hedging.After", s.Policy.Hedging.After, 0, maxHorizon)
	c.number("Store.Size", s.Store.Size, 0, 1_000_000)
	c.duration("Horizon", s.Horizon, time.Millisecond, maxHorizon)
	c.want(s.Trigger.For == 0 || s.Trigger.end() <= s.Horizon, "Trigger.At", s.Trigger.At,
		fmt.Sprintf("early enough that the trigger ends within %v", s.Horizon))
	if c.err != nil {
		return nil, retrip.Policy{}, c.err
	}
	return s.Policy.rules()
}
