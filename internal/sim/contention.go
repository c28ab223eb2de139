// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
)

// Contention models clients that all update one row with optimistic locking:
// each reads the row and writes it back on condition that no other client has
// written in between. A client that lost the race backs off and starts over.
// The backend is unbounded; the cost is wasted calls and time. The model
// follows Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture
// Blog, 2015.
type Contention struct {
	// Policy is the policy of the clients, without the rules of other systems. Its
	// budget and number of attempts apply, although the article's model bounds
	// neither. AttemptTimeout and Deadline have no effect: clients wait for every
	// answer.
	Policy Policy

	Clients int // 1 to 100 000, which start at t = 0

	// Delay and Deviation are the mean and the standard deviation of the
	// one-way network delay. The delay is the absolute value of a normally
	// distributed draw.
	Delay, Deviation time.Duration

	Trials int           // how often the simulation is repeated, 1 to 1 000 000
	Bin    time.Duration // the width of the intervals of [ContentionResult.Series]. If 0, 20 ms
	Seed   uint64        // chooses the random numbers
}

// ArticleContention returns the article's scenario: 100 clients, a one-way
// delay of 10 ± 2 ms, and unlimited retries. Its backoff is full jitter from 10
// ms to 2 s, because the article starts at its second window.
func ArticleContention() Contention {
	return Contention{
		Policy:    contender(retrip.Backoff{Base: 10 * time.Millisecond}, "full"),
		Clients:   100,
		Delay:     10 * time.Millisecond,
		Deviation: 2 * time.Millisecond,
		Trials:    100,
		Seed:      1,
	}
}

func contender(b retrip.Backoff, name string) Policy {
	b.Cap = 2 * time.Second
	return Policy{Name: name, Retry: retrip.Policy{MaxAttempts: math.MaxInt32, Backoff: b, Budget: retrip.Off}}
}

// Contenders returns the policies that the article of [Contention] compares, in
// its order: no backoff, exponential backoff without jitter, then equal, full
// and decorrelated jitter.
func Contenders() []Policy {
	const base = 10 * time.Millisecond
	return []Policy{
		contender(retrip.Backoff{Base: retrip.Off}, "no-backoff"),
		contender(retrip.Backoff{Base: base, Jitter: retrip.NoJitter}, "no-jitter"),
		contender(retrip.Backoff{Base: base, Jitter: retrip.EqualJitter}, "equal"),
		contender(retrip.Backoff{Base: base, Jitter: retrip.FullJitter}, "full"),
		contender(retrip.Backoff{Base: base / 2, Jitter: retrip.DecorrelatedJitter}, "decorrelated"),
	}
}

// ContentionResult is the outcome of a [Contention], averaged over its trials.
type ContentionResult struct {
	Policy  string
	Clients int
	Seed    uint64
	Partial bool // the run was interrupted
	Trials  int  // completed

	Calls  float64 // writes, successful or not
	Time   time.Duration
	GaveUp float64 // clients that never wrote

	// Series counts the calls of the first trial in intervals of Bin.
	Bin    time.Duration
	Series []int64
}

// valid returns the rules of a model of which no parameter is out of bounds.
func (m Contention) valid() (*decide.Rules, retrip.Policy, error) {
	var c checker
	c.count("Clients", m.Clients, 1, 100_000)
	c.duration("Delay", m.Delay, 0, time.Hour)
	c.duration("Deviation", m.Deviation, 0, time.Hour)
	c.want(m.Delay > 0 || m.Deviation > 0, "Delay", m.Delay, "positive, or Deviation must be")
	c.count("Trials", m.Trials, 1, 1_000_000)
	c.ours(m.Policy)
	if c.err != nil {
		return nil, retrip.Policy{}, c.err
	}
	return m.Policy.rules()
}

// contentionTrial is the result of one trial.
type contentionTrial struct {
	done          bool
	calls, gaveUp int64
	time          int64
	at            []int64 // times of the calls
}

// Run runs all trials, in parallel on all processors. It calls progress, if not
// nil, after each trial with the share that is complete; calls don't overlap.
// When ctx ends, Run returns the result of the completed trials, marked as
// partial, and the context's error.
func (m Contention) Run(ctx context.Context, progress func(done float64)) (*ContentionResult, error) {
	rules, policy, err := m.valid()
	if err != nil {
		return nil, err
	}
	trials := make([]contentionTrial, m.Trials)
	err = parallel(ctx, m.Trials, progress, func(ctx context.Context, i int) error {
		trials[i] = m.trial(ctx, rules, policy, i)
		return ctx.Err()
	})
	return m.sum(trials, err != nil), err
}

func (m Contention) sum(trials []contentionTrial, partial bool) *ContentionResult {
	r := &ContentionResult{Policy: m.Policy.name(), Clients: m.Clients, Seed: m.Seed, Partial: partial, Bin: m.Bin}
	if r.Bin == 0 {
		r.Bin = 20 * time.Millisecond
	}
	var calls, times, gaveUp int64
	for _, t := range trials {
		if t.done {
			r.Trials++
			calls, times, gaveUp = calls+t.calls, times+t.time, gaveUp+t.gaveUp
		}
	}
	if r.Trials == 0 {
		return r
	}
	n := float64(r.Trials)
	r.Calls, r.GaveUp = float64(calls)/n, float64(gaveUp)/n
	r.Time = time.Duration(float64(times) / n)
	for _, at := range trials[0].at {
		bin := int(at / int64(r.Bin))
		for len(r.Series) <= bin {
			r.Series = append(r.Series, 0)
		}
		r.Series[bin]++
	}
	return r
}

const (
	contentionRead = iota
	contentionWrite
)

// trial simulates until every client has written once or given up.
func (m *Contention) trial(ctx context.Context, rules *decide.Rules, policy retrip.Policy, index int) contentionTrial {
	var t contentionTrial
	seed := m.Seed + uint64(index)*0x9e3779b97f4a7c15
	network, draws := newSource(seed, streamNetwork), newSource(seed, streamDraws)
	hop := func() int64 {
		return int64(math.Abs(float64(network.normal()*float64(m.Deviation)) + float64(m.Delay)))
	}
	hosts := make([]host.Record, m.Clients)
	calls := make([]decide.Call, m.Clients)
	seen := make([]int64, m.Clients) // the version each client read
	asks := asksFirst(policy)
	var q queue
	for i := range calls {
		calls[i].Attempts = 1
		q.push(hop(), int32(i), contentionRead)
	}
	var version int64
	for events := 1; ; events++ {
		e, ok := q.pop()
		if !ok {
			t.done = true
			return t
		}
		if events%cancelCheckEach == 0 && ctx.Err() != nil {
			return t
		}
		i := e.who
		if e.what == contentionRead {
			seen[i] = version
			q.push(e.at+hop()+hop(), i, contentionWrite)
			continue
		}
		t.calls++
		if index == 0 {
			t.at = append(t.at, e.at)
		}
		answered := e.at + hop()
		t.time = max(t.time, answered)
		o := decide.Outcome{Status: http.StatusOK, Idempotent: true, Replay: true}
		if seen[i] == version {
			version++
		} else {
			o.Status, o.Verdict = http.StatusPreconditionFailed, decide.Retryable
		}
		now := time.Duration(answered)
		var a decide.Action
		calls[i].Step(rules, &hosts[i], &decide.Event{Kind: decide.Ended, Outcome: o}, &a, now, draws.Uint64())
		// No other client shares this host, so its state can't change during
		// the wait.
		due := answered
		for a.Do == decide.Sleep || a.Do == decide.Queue {
			due += int64(a.Wait)
			var draw uint64
			if asks {
				draw = draws.Uint64()
			}
			calls[i].Step(rules, &hosts[i], &decide.Event{Kind: decide.Due}, &a, time.Duration(due), draw)
		}
		switch {
		case a.Do == decide.Send:
			q.push(due+hop(), i, contentionRead)
		case o.Status != http.StatusOK:
			t.gaveUp++
		}
	}
}
