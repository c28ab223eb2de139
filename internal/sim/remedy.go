// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/account"
)

// Remedy is a change of a policy that may make it pass.
type Remedy struct {
	NoBreaker bool
	Budget    float64 // 0 for the policy's own
	Account   bool    // of the fleet, with a quarter of its requests per second as its size
}

// Of names the change, for a fleet that sends so many requests per second.
func (m Remedy) Of(rate float64) string {
	var parts []string
	if m.NoBreaker {
		parts = append(parts, "breaker off")
	}
	if m.Budget > 0 {
		parts = append(parts, fmt.Sprintf("budget %v", m.Budget))
	}
	if m.Account {
		parts = append(parts, fmt.Sprintf("the fleet's account with fleet_budget %.0f", max(1, rate/partRate*account.DefaultSize)))
	}
	return strings.Join(parts, " and ")
}

// Remedies returns changes that p doesn't have yet, from the least on.
func (p Policy) Remedies() (list []Remedy) {
	off := p.Retry.Breaker.Ratio > 0
	if off {
		list = append(list, Remedy{NoBreaker: true})
	}
	least := Remedy{NoBreaker: off}
	for _, size := range []float64{2, 1} {
		if _, r, err := p.rules(); err == nil && (r.Budget > size || r.Budget == retrip.Off) {
			least.Budget = size
			list = append(list, least)
		}
	}
	if !p.account {
		list = append(list, Remedy{NoBreaker: off, Account: true})
		if least.Account = true; least.Budget > 0 {
			list = append(list, least)
		}
	}
	return list
}

// apply returns p with the change. A budget or account takes the place of the rule
// of another system.
func (m Remedy) apply(p Policy) Policy {
	if m.NoBreaker {
		p.Retry.Breaker = retrip.Breaker{Ratio: retrip.Off}
	}
	if m.Budget > 0 || m.Account {
		p.limit = nil
		p.Retry.Budget = cmp.Or(m.Budget, p.Retry.Budget)
	}
	p.account = p.account || m.Account
	return p
}

// PassesWith returns the first of the remedies with which p passes in all cases.
func PassesWith(ctx context.Context, p Policy, cases []RecoveryCase) (m Remedy, found bool, err error) {
next:
	for _, m := range p.Remedies() {
		for _, c := range cases {
			if c.place == nil {
				continue
			}
			if seen, err := c.place.try(ctx, m.apply(p)); err != nil {
				return m, false, err
			} else if seen.Verdict != Passes {
				continue next
			}
		}
		return m, true, nil
	}
	return Remedy{}, false, nil
}
