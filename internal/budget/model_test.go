// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

func TestMain(m *testing.M) { testenv.RareGC(m) }

// model is a host's budget as documented, in thousandths of tokens. A
// size of 0 means no limit.
type model struct {
	missing int
	row     int           // failed retries in a row
	recent  int           // outcomes until the last timeout is forgotten
	routes  [6]modelRoute // by name; fewer than share rows
}

// modelRoute is a part of a host.
type modelRoute struct {
	row  int // failures since a retry succeeded
	good int // successes since the last retry
}

// waits returns how many successes a retry waits for.
func (m *modelRoute) waits(size int) int {
	over := m.row - min(200, max(2, (size+999)/1000))
	if over < 0 {
		return 0
	}
	return []int{2, 8, 32, 128}[min(over, 3)]
}

// modelPolicy is a policy as the model sees it.
type modelPolicy struct {
	rules        play.Judge
	size, credit int
	limit        time.Duration // AttemptTimeout
	attempts     int
	gate         bool
}

// modelRequest is a request in flight.
type modelRequest struct {
	call     decide.Call
	policy   *modelPolicy
	attempts int
	paid     int  // tokens for the last attempt
	budgeted bool // the last attempt is a retry that the budget allowed
	failed   int  // such retries that have failed
	waiting  bool
}

// settle forgets everything about a full budget.
func (m *model) settle() {
	m.missing = max(0, m.missing)
	if m.missing == 0 {
		m.row, m.recent = 0, 0
	}
}

// fit applies a change of policy to a debt.
func (m *model) fit(size int) {
	m.missing = min(m.missing, size)
	if m.settle(); size == 0 {
		*m = model{}
	}
}

// giveBack undoes the payment for an attempt that isn't made.
func (m *model) giveBack(q *modelRequest) {
	if q.paid > 0 {
		m.missing -= q.paid
	}
	q.spent()
	m.settle()
}

func (q *modelRequest) spent() { q.paid, q.budgeted = 0, false }

func (m *model) success(q *modelRequest, took time.Duration) {
	p := q.policy
	slow := p.size > 0 && p.limit > 0 && 10*took > 7*p.limit && m.missing > 0 && m.recent > 0
	first := q.attempts == 1
	if p.size > 0 {
		m.row, m.recent = 0, max(0, m.recent-1)
		switch route := &m.routes[q.call.Route]; {
		case slow:
		case q.budgeted:
			*route = modelRoute{}
		case first && route.row > 0:
			if route.good++; route.good == 255 {
				*route = modelRoute{}
			}
		}
		switch {
		case slow && first && m.missing < p.size:
			m.missing = min(p.size, m.missing+2000)
		case slow:
		case first:
			m.missing -= p.credit
		default:
			m.missing -= q.paid
		}
	}
	q.spent()
	m.settle()
}

func (m *model) failure(q *modelRequest, timeout bool) {
	size := q.policy.size
	if size > 0 && m.missing > 0 {
		m.recent = max(0, m.recent-1)
		if timeout {
			m.recent = 10
		}
		if q.budgeted && (q.failed == 0 || m.recent > 0) {
			m.row++
		}
	}
	if q.budgeted {
		q.failed++
		if route := &m.routes[q.call.Route]; size > 0 {
			route.good = 0
			if m.recent > 0 || timeout || q.failed == 3 || route.waits(size) > 0 {
				route.row = min(255, route.row+1)
			}
		}
	}
	q.spent()
}

// giveUp ends a request that fails.
func (m *model) giveUp(q *modelRequest) {
	route := &m.routes[q.call.Route]
	if size := q.policy.size; size > 0 && q.failed > 0 && q.failed < 3 && m.recent == 0 && route.waits(size) == 0 {
		route.row = min(255, route.row+1)
	}
}

func modelPrice(q *modelRequest, recent int) int {
	switch {
	case recent > 0:
		return 700
	case q.failed == 0 || q.failed >= 3:
		return 500
	default:
		return 0
	}
}

// spend pays for a retry, if the budget allows it, or says why it doesn't.
func (m *model) spend(q *modelRequest, timeout bool) decide.Reason {
	if size := q.policy.size; size > 0 {
		most, left, recent := max(2, (6*size+9999)/10_000), 0, m.recent
		if timeout {
			most, left, recent = (4*size+9999)/10_000, size/5, 10
		}
		cost := modelPrice(q, recent)
		route := &m.routes[q.call.Route]
		waits := route.waits(size)
		switch {
		case m.row >= most:
			return decide.RetriesFailing
		case m.missing+cost+left > size:
			return decide.BudgetExhausted
		case route.good < waits:
			return decide.RetriesFailing
		}
		route.good = 0
		m.missing += cost
		m.recent = recent
		q.paid = cost
	}
	q.budgeted = true
	return 0
}

// differs reports whether d isn't what the model says.
func (m *model) differs(d budget.Debt) bool {
	var routes [len(m.routes)]modelRoute
	for _, route := range d.Routes {
		if route.Row > 0 {
			routes[route.Name] = modelRoute{int(route.Row), int(route.Good)}
		}
	}
	return d.Missing != int64(m.missing)*1000 || int(d.Row) != m.row || int(d.Recent) != m.recent || routes != m.routes
}

// The budget behaves like its model, over a million random steps of up to
// eight concurrent requests whose policy changes meanwhile.
//
//retrip:promise P14
func TestBudget_Model(t *testing.T) {
	testenv.OneGoroutine(t)
	testenv.Slow(t)
	const steps = 10_000
	runs := testenv.Size(40, 300)
	counted := map[string]int{}
	for seed := range uint64(runs) {
		s := &walk{t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 2)), host: &host.Record{}, bad: .5, late: .5, counted: counted}
		s.swap()
		for step := range steps {
			s.step()
			s.check(step)
			// Forgetting a healed host has no effect.
			if len(s.out) == 0 && s.host.Healed(s.now) {
				s.host = &host.Record{}
				counted["forgotten"]++
			}
		}
	}
	t.Logf("%d steps: %v", runs*steps, counted)
	for _, what := range []string{"retries", decide.RetriesFailing.String(), "forgotten", "swaps", decide.BudgetExhausted.String(), decide.MaxAttempts.String(), decide.HiddenSends.String()} {
		require.Greater(t, counted[what], runs, what)
	}
}
