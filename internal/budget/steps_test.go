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
)

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
		gate:     s.random.IntN(6) == 0,
	}
	policy := retrip.Policy{MaxAttempts: p.attempts, AttemptTimeout: p.limit, Gate: retrip.Gate{Enabled: retrip.Off}, Budget: retrip.Off}
	if p.gate {
		policy.Gate.Enabled = retrip.On
	}
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

// asked acts on an answer of First or Wake for the request i.
func (s *walk) asked(i int, d play.Decision) {
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
func (s *walk) attempt(i int) {
	q, draw := s.out[i], s.random.Uint64()
	took := pick(s.random, 0, 700*time.Millisecond, 700*time.Millisecond+1, 999*time.Millisecond)
	o := decide.Outcome{Idempotent: s.random.IntN(12) > 0, Replay: s.random.IntN(12) > 0, Took: took}
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
	s.host.Full = s.now - time.Minute // no retry bides
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
	s.model.failure(q, late)
	want := decide.None
	free := q.policy.gate && o.Status == http.StatusTooManyRequests // the gate makes it wait instead
	switch {
	case o.Resent && (q.attempts >= q.policy.attempts || !o.Idempotent):
		want = decide.HiddenSends
	case q.attempts >= q.policy.attempts:
		want = decide.MaxAttempts
	case !o.Idempotent:
		want = decide.NotIdempotent
	case !o.Replay:
		want = decide.BodyNotReplayable
	case q.policy.gate && !d.Retry && d.Reason != decide.BudgetExhausted && d.Reason != decide.RetriesFailing:
		want = d.Reason // a rule of the gate
	case !free:
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
	draw := s.random.Uint64()
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
		s.asked(len(s.out)-1, q.policy.rules.First(s.host, &q.call, s.now, draw))
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
		s.asked(i, q.policy.rules.Wake(s.host, &q.call, s.now, draw))
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
