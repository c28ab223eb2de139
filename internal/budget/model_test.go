// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// model is a host's budget as documented, in thousandths of tokens. A
// size of 0 means no limit.
type model struct {
	missing int
	row     int           // failed retries in a row
	recent  int           // successes until the last timeout is forgotten
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
	since    time.Duration // instant at which it last began to wait
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

func (m *model) failure(q *modelRequest, timeout, old bool) {
	size := q.policy.size
	if size > 0 && m.missing > 0 {
		if timeout {
			m.recent = 10
		}
		if q.budgeted && !old && (q.failed == 0 || m.recent > 0) {
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

// The budget behaves like its model, over random steps of up to
// eight concurrent requests whose policy changes meanwhile.
//
//retrip:promise P14
func TestBudget_Model(t *testing.T) {
	testenv.OneGoroutine(t)
	const steps = 5000
	runs := testenv.Size(24, 300)
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

// walk drives one host and its model through random steps, and counts what
// happened.
type walk struct {
	t       *testing.T
	seed    uint64
	random  *rand.Rand
	host    *host.Record
	model   model
	policy  *modelPolicy // for requests to come
	out     []*modelRequest
	now     time.Duration
	bad     float64 // failure rate of attempts
	late    float64 // share of the failures that are timeouts
	counted map[string]int
}

func pick[T any](random *rand.Rand, list ...T) T { return list[random.IntN(len(list))] }

// swap puts another policy in force, like SetPolicies.
func (s *walk) swap() {
	p := &modelPolicy{
		size:     pick(s.random, 0, 1000, 1500, 2000, 5000, 5000, 5000, 20_000, 200_000),
		credit:   pick(s.random, 0, 1, 200, 200, 200, 250, 7000),
		limit:    pick(s.random, 0, time.Second, time.Second),
		attempts: pick(s.random, 1, 2, 4, 4, 4, 10),
	}
	policy := retrip.Policy{MaxAttempts: p.attempts, AttemptTimeout: p.limit, Budget: retrip.Off}
	if p.size > 0 {
		policy.Budget = float64(p.size) / 1000
	} else {
		p.credit = 0
	}
	p.rules = play.Rules(s.t, policy)
	p.rules.Budget.Credit = int64(p.credit) * 1000
	s.policy = p
	s.host.Debt.Fit(p.rules.Budget.Size)
	s.model.fit(p.size)
	s.counted["swaps"]++
}

// end removes q, and fits the tokens that it may have spent to the policy in
// force, like an exchange at its end.
func (s *walk) end(i int) {
	q := s.out[i]
	s.out = append(s.out[:i], s.out[i+1:]...)
	if q.policy != s.policy {
		s.host.Debt.Fit(s.policy.rules.Budget.Size)
		s.model.fit(s.policy.size)
	}
}

// begin begins the first attempt of q, or the next one.
func (s *walk) begin(q *modelRequest, ask func(*host.Record, *decide.Call, time.Duration, uint64) play.Decision) {
	d := ask(s.host, &q.call, s.now, s.random.Uint64())
	require.True(s.t, d.Retry && d.Wait == 0, "nothing holds it back: %+v", d)
	q.waiting = false
	q.attempts++
	q.call.Attempts++
}

// attempt ends the attempt of request i in a random way.
func (s *walk) attempt(i int) {
	q, draw := s.out[i], s.random.Uint64()
	took := pick(s.random, 0, 700*time.Millisecond, 700*time.Millisecond+1, 999*time.Millisecond)
	o := decide.Outcome{Repeatable: s.random.IntN(12) > 0, Replay: s.random.IntN(12) > 0, Took: took}
	nothing := s.random.IntN(16) // that it says about the host, if below 3
	good := nothing >= 3 && s.random.Float64() >= s.bad
	switch {
	case nothing == 0:
		o.Canceled, o.Timeout = true, s.random.IntN(2) == 0
	case nothing == 1:
		o.Hopeless = true
	case nothing == 2:
		o.Verdict, o.Timeout = decide.Final, s.random.IntN(2) == 0
	case good:
		o.Status = pick(s.random, http.StatusOK, http.StatusOK, http.StatusOK, http.StatusNotFound, http.StatusServiceUnavailable)
		if o.Status >= 500 {
			o.Verdict, good, nothing = decide.Final, false, 2
		}
	case s.random.Float64() < s.late:
		if o.Timeout = s.random.IntN(2) == 0; !o.Timeout {
			o.Status = http.StatusGatewayTimeout
		}
	default:
		o.Status = pick(s.random, 0, http.StatusServiceUnavailable, http.StatusTooManyRequests)
		o.Resent = o.Status == 0 && s.random.IntN(8) == 0
	}
	full := s.now - pick(s.random, 1100*time.Millisecond, time.Minute)
	s.host.Full = full // no retry bides
	d := q.policy.rules.Next(s.host, &q.call, o, s.now, draw)
	if nothing < 3 || good {
		switch {
		case good:
			s.model.success(q, took)
		case o.Hopeless:
			s.model.giveBack(q)
		default:
			q.spent()
		}
		require.False(s.t, d.Retry)
		require.Equal(s.t, o.Canceled, d.Reason == decide.Canceled)
		require.True(s.t, o.Canceled || d.Reason == decide.None)
		s.end(i)
		return
	}
	late := o.Timeout || o.Status == http.StatusGatewayTimeout
	s.model.failure(q, late, q.since < full)
	want := decide.None
	switch {
	case o.Resent && (q.attempts >= q.policy.attempts || !o.Repeatable):
		want = decide.HiddenSends
	case q.attempts >= q.policy.attempts:
		want = decide.MaxAttempts
	case !o.Repeatable:
		want = decide.NotIdempotent
	case !o.Replay:
		want = decide.BodyNotReplayable
	default:
		q.since = s.now
		want = s.model.spend(q, late)
	}
	require.Equal(s.t, want == decide.None, d.Retry, "run %d: %v, the model says %v", s.seed, d.Reason, want)
	if q.waiting = d.Retry; d.Retry {
		s.counted["retries"]++
		return
	}
	require.Equal(s.t, want, d.Reason, "run %d", s.seed)
	s.counted[want.String()]++
	s.model.giveUp(q)
	s.end(i)
}

func (s *walk) step() {
	s.now += time.Duration(s.random.Int64N(int64(50 * time.Millisecond)))
	switch n := s.random.IntN(1000); {
	case n < 3:
		s.swap()
		return
	case n == 3: // an hour without a failure
		s.host.Debt, s.model = budget.Debt{}, model{}
		return
	case n == 4:
		s.now += 61 * time.Minute
		return
	case n < 10:
		s.bad, s.late = pick(s.random, 0, .2, .5, .8, 1), pick(s.random, 0, .1, .5, 1)
		return
	case len(s.out) == 0 || n < 300 && len(s.out) < 8:
		q := &modelRequest{policy: s.policy, call: decide.Call{Route: uint32(s.random.IntN(len(s.model.routes)))}}
		s.out = append(s.out, q)
		s.begin(q, q.policy.rules.First)
		return
	}
	i := s.random.IntN(len(s.out))
	q := s.out[i]
	switch {
	case q.waiting && s.random.IntN(10) == 0:
		q.policy.rules.Return(s.host, &q.call)
		q.policy.rules.Return(s.host, &q.call)
		s.model.giveBack(q)
		s.end(i)
	case q.waiting:
		s.begin(q, q.policy.rules.Wake)
	default:
		s.attempt(i)
	}
}

// check compares the host with the model, and checks the invariants.
func (s *walk) check(step int) {
	owed, state, most := s.host.Debt, s.policy.rules.State(s.host, s.now), s.policy.rules.Budget.Size
	for _, q := range s.out {
		most = max(most, q.policy.rules.Budget.Size)
	}
	if s.model.differs(owed) || owed.Missing < 0 || owed.Missing > most || state.Tokens < 0 || state.Tokens > state.Size {
		s.t.Fatalf("run %d, step %d: %+v of %d, the model says %+v, and the state %+v", s.seed, step, owed, most, s.model, state)
	}
}
