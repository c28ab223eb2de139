// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/budget"
)

// budgetSteps drives one host and its model through steps random steps, and
// counts what happened.
type budgetSteps struct {
	t       *testing.T
	seed    uint64
	random  *rand.Rand
	host    *Host
	model   budgetModel
	pool    *budget.Shared
	policy  *modelPolicy // for requests to come
	out     []*modelRequest
	now     time.Duration
	bad     float64 // failure rate of attempts
	late    float64 // share of the failures that are timeouts
	counted map[string]int
}

func pick[T any](random *rand.Rand, list ...T) T { return list[random.IntN(len(list))] }

// swap puts another policy in force, like SetPolicies.
func (s *budgetSteps) swap() {
	p := &modelPolicy{
		size:     pick(s.random, 0, 1000, 1500, 2000, 5000, 5000, 5000, 20_000, 200_000),
		credit:   pick(s.random, 0, 1, 200, 200, 200, 250, 7000),
		limit:    pick(s.random, 0, time.Second, time.Second),
		attempts: pick(s.random, 1, 2, 4, 4, 4, 10),
		gate:     s.random.IntN(6) == 0,
		pooled:   s.random.IntN(3) == 0,
	}
	policy := Policy{MaxAttempts: p.attempts, AttemptTimeout: p.limit, Gate: Off, Budget: Budget{Size: Off, Credit: Off}}
	if p.gate {
		policy.Gate = On
	}
	if p.size > 0 {
		policy.Budget.Size = float64(p.size) / 1000
		if p.credit > 0 {
			policy.Budget.Credit = float64(p.credit) / 1000
		}
	} else {
		p.credit = 0 // there is no budget for it
	}
	p.rules = defaultRules(s.t, policy)
	if p.pooled {
		size := pick(s.random, 1000, 5000, 50_000)
		s.pool = s.pool.Resized(int64(size) * 1000)
		p.rules.pool = s.pool
		s.model.sharedSize = size
		s.model.shared = min(s.model.shared, size)
	}
	s.policy = p
	s.host.record.Debt.Fit(p.rules.budget.Size)
	s.model.fit(p.size)
	if p.size == 0 {
		require.Zero(s.t, s.host.record.Debt.Word.Load(), "an unlimited budget leaves nothing")
	}
	s.counted["swaps"]++
}

// end removes q, and fits the tokens that it may have spent to the policy in
// force, like an exchange at its end.
func (s *budgetSteps) end(i int) {
	q := s.out[i]
	s.out = append(s.out[:i], s.out[i+1:]...)
	if q.policy != s.policy {
		s.host.record.Debt.Fit(s.policy.rules.budget.Size)
		s.model.fit(s.policy.size)
	}
}

// asked acts on an answer of First or Wake for the request i.
func (s *budgetSteps) asked(i int, d Decision) {
	q := s.out[i]
	switch {
	case !d.Retry:
		require.True(s.t, q.policy.gate, "only a gate stops a request here: %v", d.Reason)
		s.model.giveBack(q)
		s.end(i)
	case d.Wait > 0:
		require.True(s.t, q.policy.gate, "only a gate makes it wait on")
		q.waiting = true
	default:
		q.waiting = false
		q.attempts++
		q.call.Attempts++
	}
}

// attempt ends the attempt of request i in a random way.
func (s *budgetSteps) attempt(i int) (did string) {
	q := s.out[i]
	draw := s.random.Uint64()
	took := pick(s.random, 0, 700*time.Millisecond, 700*time.Millisecond+1, 999*time.Millisecond)
	o := Outcome{Idempotent: s.random.IntN(12) > 0, Replay: s.random.IntN(12) > 0, Took: took}
	before := s.host.record.Debt.Load()
	switch n := s.random.IntN(16); {
	case n == 0:
		o.Canceled, o.Timeout = true, s.random.IntN(2) == 0
		d := s.host.Next(q.policy.rules, &q.call, o, s.now, draw)
		require.Equal(s.t, ReasonCanceled, d.Reason)
		require.Equal(s.t, before, s.host.record.Debt.Load(), "a canceled attempt counts for nothing")
		q.paid, q.paidShared = 0, 0
		s.end(i)
		return "canceled"
	case n == 1:
		o.Hopeless = true
		require.Empty(s.t, s.host.Next(q.policy.rules, &q.call, o, s.now, draw).Reason)
		s.model.giveBack(q)
		s.end(i)
		return "hopeless"
	case n == 2:
		o.Verdict, o.Timeout = Final, s.random.IntN(2) == 0
		require.Empty(s.t, s.host.Next(q.policy.rules, &q.call, o, s.now, draw).Reason)
		q.paid, q.paidShared = 0, 0
		s.end(i)
		return "final error"
	}
	if s.random.Float64() >= s.bad {
		o.Status = pick(s.random, http.StatusOK, http.StatusOK, http.StatusOK, http.StatusNotFound, http.StatusServiceUnavailable)
		if o.Status >= 500 {
			o.Verdict = Final
		}
		d := s.host.Next(q.policy.rules, &q.call, o, s.now, draw)
		require.False(s.t, d.Retry)
		require.Empty(s.t, d.Reason)
		s.model.success(q, took)
		if q.policy.size > 0 {
			require.Zero(s.t, s.host.record.Debt.Load().Streak, "any success unlocks")
		}
		s.end(i)
		return "success"
	}
	if s.random.Float64() < s.late {
		o.Timeout = true
	} else {
		o.Status = pick(s.random, 0, http.StatusServiceUnavailable, http.StatusTooManyRequests)
		o.Resent = o.Status == 0 && s.random.IntN(8) == 0
	}
	d := s.host.Next(q.policy.rules, &q.call, o, s.now, draw)
	s.model.failure(q, o.Timeout)
	var want Reason
	free := q.policy.gate && o.Status == http.StatusTooManyRequests // the gate makes it wait instead
	switch {
	case o.Resent && (q.attempts >= q.policy.attempts || !o.Idempotent):
		want = ReasonHiddenSends
	case q.attempts >= q.policy.attempts:
		want = ReasonMaxAttempts
	case !o.Idempotent:
		want = ReasonNotIdempotent
	case !o.Replay:
		want = ReasonBodyNotReplayable
	case q.policy.gate && !d.Retry && d.Reason != ReasonBudgetExhausted:
		want = d.Reason // a rule of the gate
	case !free && !s.model.spend(q, o.Timeout, s.now):
		want = ReasonBudgetExhausted
	}
	if want != "" {
		require.False(s.t, d.Retry, "run %d: %v expected", s.seed, want)
		require.Equal(s.t, want, d.Reason, "run %d", s.seed)
		if want == ReasonBudgetExhausted && s.model.row == 4 {
			s.counted["stopped by the row"]++
		}
		s.end(i)
		s.counted[string(want)]++
		return "gave up: " + string(want)
	}
	require.True(s.t, d.Retry, "run %d: %v, the model retries", s.seed, d.Reason)
	q.waiting = true
	s.counted["retries"]++
	return "retry"
}

func (s *budgetSteps) step() (did string) {
	s.now += time.Duration(s.random.Int64N(int64(50 * time.Millisecond)))
	draw := s.random.Uint64()
	switch n := s.random.IntN(1000); {
	case n < 3:
		s.swap()
		return "swap"
	case n == 3:
		s.host.record.Debt.Clear()
		s.model.missing = 0
		s.model.settle()
		return "an hour without a failure"
	case n == 4:
		s.now += 61 * time.Minute
		return "an hour"
	case n < 10:
		s.bad, s.late = pick(s.random, 0, .2, .5, .8, 1), pick(s.random, 0, .1, .5, 1)
		return "weather"
	case len(s.out) == 0 || n < 300 && len(s.out) < 8:
		q := &modelRequest{policy: s.policy}
		s.out = append(s.out, q)
		s.asked(len(s.out)-1, s.host.First(q.policy.rules, &q.call, s.now, draw))
		return "a request"
	}
	i := s.random.IntN(len(s.out))
	q := s.out[i]
	switch {
	case q.waiting && s.random.IntN(10) == 0:
		s.host.Return(q.policy.rules, &q.call)
		s.host.Return(q.policy.rules, &q.call)
		s.model.giveBack(q)
		s.end(i)
		return "returned"
	case q.waiting:
		s.asked(i, s.host.Wake(q.policy.rules, &q.call, s.now, draw))
		return "woken"
	default:
		return s.attempt(i)
	}
}

// check compares the host with the model, and checks the invariants.
func (s *budgetSteps) check(step int, did string) {
	owed, m := s.host.record.Debt.Load(), &s.model
	same := owed == owedOf(m)
	if s.pool != nil {
		left, size := s.pool.Tokens(s.now)
		shared := m.shared
		if s.now-m.sharedFailed > time.Hour {
			shared = 0
		}
		same = same && budget.Micro(left) == int64(m.sharedSize-shared)*1000 && budget.Micro(size) == int64(m.sharedSize)*1000
	}
	if !same {
		s.t.Fatalf("run %d, step %d: %s: %+v and %+v of the pool, the model says %+v", s.seed, step, did, owed, s.pool, *m)
	}
	most := s.policy.rules.budget.Size
	for _, q := range s.out {
		most = max(most, q.policy.rules.budget.Size)
	}
	if owed.Missing < 0 || owed.Missing > most {
		s.t.Fatalf("run %d, step %d: %s: %d micro-tokens of %d are missing", s.seed, step, did, owed.Missing, most)
	}
	if owed.Missing == 0 && (owed.Streak > 0 || owed.TimedOut) || owed.Streak > budget.StreakLimit {
		s.t.Fatalf("run %d, step %d: %s: %+v", s.seed, step, did, owed)
	}
	state := s.host.State(s.policy.rules, s.now)
	if state.Tokens < 0 || state.Tokens > state.Size {
		s.t.Fatalf("run %d, step %d: %s: %+v", s.seed, step, did, state)
	}
}
