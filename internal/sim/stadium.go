// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"math/bits"
	"net/http"
	"slices"
	"time"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
)

// Stadium models the live stream of a final: players that each fetch a segment
// every few seconds, a CDN that fails for an instant, and an origin that asks
// the requests it can't serve to come back later.
//
// A player whose request fails while the CDN fails learns of it at once. The
// policy then decides, with one additional rule: a player retries at most once
// per RetryEvery.
type Stadium struct {
	// Policy is the policy of the players; each player has its own host, and the
	// rules of other systems aren't known. AttemptTimeout and Deadline have no
	// effect: every request takes Flight.
	Policy Policy

	Players  int           // 1 to 100 000 000
	Interval time.Duration // between two segments of a player, who starts at a random time within the first one
	Flight   time.Duration // how long a request takes

	// At and For are when the CDN fails and for how long. Requests in flight at
	// the start fail at that moment; requests sent during the failure fail at
	// once.
	At, For time.Duration

	// Capacity is how many requests per second the origin serves, and Burst the
	// backlog it tolerates, as a duration. It refuses requests beyond that.
	Capacity float64
	Burst    time.Duration

	RetryAfter time.Duration // of a refusal, which is rounded to seconds; 0 for none
	RetryEvery time.Duration // the minimum time between two retries of one player
	Horizon    time.Duration // the simulated time at which the run ends, at most an hour
	Bin        time.Duration // the width of the intervals of [StadiumResult.Series]. If 0, 50 ms
	Seed       uint64        // chooses the random numbers
}

// CupFinal returns a Stadium of 25 million players, a segment every 4 s, a
// failure of 100 ms, and an origin that serves 8 million requests per second.
func CupFinal() Stadium {
	return Stadium{
		Policy:     Policy{Retry: retrip.Policy{MaxAttempts: 2}},
		Players:    25_000_000,
		Interval:   4 * time.Second,
		Flight:     50 * time.Millisecond,
		At:         6 * time.Second,
		For:        100 * time.Millisecond,
		Capacity:   8_000_000,
		Burst:      10 * time.Millisecond,
		RetryAfter: 2 * time.Second,
		RetryEvery: 30 * time.Second,
		Horizon:    20 * time.Second,
		Seed:       1,
	}
}

// StadiumResult is the outcome of a [Stadium].
type StadiumResult struct {
	Policy  string
	Players int
	Seed    uint64
	Partial bool // the run was interrupted
	Until   time.Duration

	Fetches int64 // first attempts
	Failed  int64 // attempts that failed while the CDN failed
	Refused int64 // attempts that the origin refused
	Retries int64 // attempts after the first
	Lost    int64 // segments that never came

	PeakLoad    float64       // attempts per second in one Bin
	PeakRetries float64       // retries per second in one Bin
	PeakWaiting int64         // the most retries waiting at one time, including what a gate holds back
	Spread      time.Duration // the time span of the middle 90 % of the retries

	Bin    time.Duration
	Series []StadiumPoint
}

// StadiumPoint holds the counts of one interval of [StadiumResult.Series].
type StadiumPoint struct {
	Fetches, Retries, Failed, Refused int32
}

// valid returns the rules of a model of which no parameter is out of bounds.
func (m Stadium) valid() (*decide.Rules, retrip.Policy, error) {
	var c checker
	c.count("Players", m.Players, 1, 100_000_000)
	c.duration("Interval", m.Interval, time.Millisecond, time.Hour)
	c.duration("Flight", m.Flight, 0, time.Hour)
	c.duration("At", m.At, 0, time.Hour)
	c.duration("For", m.For, 0, time.Hour)
	c.number("Capacity", m.Capacity, 1, 1e9)
	c.duration("Burst", m.Burst, 0, time.Hour)
	c.duration("RetryAfter", m.RetryAfter, 0, time.Hour)
	c.duration("RetryEvery", m.RetryEvery, 0, time.Hour)
	c.duration("Horizon", m.Horizon, time.Millisecond, time.Hour)
	c.want(m.At+m.For <= m.Horizon, "At", m.At, "such that At + For is within the horizon, "+m.Horizon.String())
	c.ours(m.Policy)
	if c.err != nil {
		return nil, retrip.Policy{}, c.err
	}
	return m.Policy.rules()
}

// player is the state of a player that has had a failure. Other players need no
// state but their phase, because their Host would be the zero Host.
type player struct {
	host    host.Record
	retried int64 // time of the last retry; 0 means none
}

const playersPerChunk = 1 << 14

// stadium is a Stadium in progress.
type stadium struct {
	*Stadium
	rules   *decide.Rules
	asks    bool     // a breaker or gate decides about first attempts
	phases  []uint32 // of the players, ascending, in 2^-32 of the interval
	trouble []uint32 // index of the player's state plus one; 0 means none
	states  [][]player
	made    uint32
	calls   []segment
	free    []int32
	queue   *queue
	draws   *source
	full    int64 // picoseconds: when the origin will have finished its backlog
	cost    int64 // picoseconds for one request
	waiting int64
	result  StadiumResult
}

// segment is a request that waits for its retry or its first attempt.
type segment struct {
	call   decide.Call
	player uint32
	turn   uint32 // of the current wait; events of earlier waits are stale
}

// Run simulates m. It calls progress, if not nil, from time to time with the
// share of the simulated time that is complete. Cancellation and errors are as
// in [Scenario.Run].
func (m Stadium) Run(ctx context.Context, progress func(done float64)) (*StadiumResult, error) {
	rules, policy, err := m.valid()
	if err != nil {
		return nil, err
	}
	if m.Bin == 0 {
		m.Bin = min(50*time.Millisecond, m.Horizon)
	}
	s := &stadium{
		Stadium: &m,
		rules:   rules,
		asks:    asksFirst(policy),
		phases:  phases(newSource(m.Seed, streamArrivals), m.Players),
		trouble: make([]uint32, m.Players),
		queue:   &queue{},
		draws:   newSource(m.Seed, streamDraws),
		cost:    int64(1e12 / m.Capacity),
		result: StadiumResult{Policy: m.Policy.name(), Players: m.Players, Seed: m.Seed, Bin: m.Bin,
			Series: make([]StadiumPoint, m.Horizon/m.Bin+1)},
	}
	return s.run(ctx, progress)
}

// phases returns n uniformly distributed numbers in ascending order.
func phases(draws *source, n int) []uint32 {
	list := make([]uint32, n)
	for i := range list {
		list[i] = uint32(draws.Uint64() >> 32)
	}
	slices.Sort(list)
	return list
}

func (s *stadium) run(ctx context.Context, progress func(float64)) (*StadiumResult, error) {
	var (
		next   int   // player that fetches next
		round  int64 // time at which its round began
		now    int64
		events int64
		err    = ctx.Err()
	)
	horizon, interval := int64(s.Horizon), uint64(s.Interval)
	for err == nil {
		offset, _ := bits.Mul64(uint64(s.phases[next])<<32, interval)
		now = round + int64(offset)
		if e, ok := s.queue.first(); ok && e.at <= now {
			if now = e.at; now >= horizon {
				break
			}
			e, _ := s.queue.pop()
			s.wake(e.who, e.what, now)
		} else {
			if now >= horizon {
				break
			}
			s.begin(uint32(next), now)
			if next++; next == s.Players {
				next, round = 0, round+int64(s.Interval)
			}
		}
		if events++; events%cancelCheckEach == 0 {
			err = ctx.Err()
			if progress != nil && events%(16*cancelCheckEach) == 0 {
				progress(float64(now) / float64(horizon))
			}
		}
	}
	if err == nil {
		now = horizon
	}
	s.result.Until, s.result.Partial = time.Duration(now), err != nil
	s.result.finish()
	return &s.result, err
}

func (s *stadium) point(now int64) *StadiumPoint { return &s.result.Series[now/int64(s.Bin)] }

// send makes an attempt and returns its outcome and the time of the answer.
func (s *stadium) send(now int64) (o decide.Outcome, answered int64) {
	o = decide.Outcome{Status: http.StatusOK, Repeatable: true, Replay: true}
	begin, end := int64(s.At), int64(s.At+s.For)
	if now >= begin-int64(s.Flight) && now < end && begin < end {
		s.result.Failed++
		s.point(max(now, begin)).Failed++
		o.Status = 0
		return o, max(now, begin)
	}
	at := 1000 * now
	if s.full = max(s.full, at) + s.cost; s.full-at > 1000*int64(s.Burst)+s.cost {
		s.full -= s.cost
		s.result.Refused++
		s.point(now).Refused++
		o.Status, o.RetryAfter = http.StatusServiceUnavailable, s.RetryAfter
	}
	return o, now + int64(s.Flight)
}

// begin handles a player that wants its next segment.
func (s *stadium) begin(p uint32, now int64) {
	var call decide.Call
	if s.asks && s.trouble[p] != 0 {
		// A request that may be woken needs a slot first.
		i := s.hold(p, call)
		s.wake(i, s.calls[i].turn, now)
		return
	}
	s.fetch(p, call, now)
}

// fetch makes the first attempt for a segment.
func (s *stadium) fetch(p uint32, call decide.Call, now int64) {
	s.result.Fetches++
	s.point(now).Fetches++
	o, answered := s.send(now)
	if o.Status == http.StatusOK && s.trouble[p] == 0 {
		return
	}
	if call.Attempts == 0 {
		var a decide.Action
		call.Step(s.rules, nil, &decide.Event{Kind: decide.Began}, &a, 0, 0)
	}
	s.ended(p, &call, o, answered)
}

// wake continues a request after a wait.
func (s *stadium) wake(i int32, turn uint32, now int64) {
	q := &s.calls[i]
	if q.turn != turn {
		return
	}
	p := s.state(q.player)
	first := q.call.Attempts == 0
	a := s.step(&p.host, &q.call, decide.Event{Kind: decide.Due}, now)
	if a.Do == decide.Sleep {
		s.sleep(i, a.Wait, now)
		return
	}
	s.waiting--
	q.turn++
	s.free = append(s.free, i)
	if a.Do != decide.Send {
		s.result.Lost++
		return
	}
	if first {
		s.fetch(q.player, q.call, now)
		return
	}
	p.retried = max(1, now)
	s.result.Retries++
	s.point(now).Retries++
	o, answered := s.send(now)
	call := q.call
	s.ended(q.player, &call, o, answered)
}

// ended processes the outcome of an attempt.
func (s *stadium) ended(player uint32, call *decide.Call, o decide.Outcome, now int64) {
	p := s.state(player)
	a := s.step(&p.host, call, decide.Event{Kind: decide.Ended, Outcome: o}, now)
	if a.Do == decide.Answer {
		if o.Status != http.StatusOK {
			s.result.Lost++
		}
		return
	}
	if p.retried > 0 && now-p.retried < int64(s.RetryEvery) {
		call.Step(s.rules, &p.host, &decide.Event{Kind: decide.Gone}, &a, time.Duration(now), 0)
		wakeOthers(&p.host, a.Wakes, func(i int32) { s.sleep(i, 0, now) })
		s.result.Lost++
		return
	}
	if a.Do == decide.Queue {
		a.Wait = 0
	}
	s.sleep(s.hold(player, *call), a.Wait, now)
}

// step takes a request through one step of the machine.
func (s *stadium) step(h *host.Record, call *decide.Call, e decide.Event, now int64) (a decide.Action) {
	call.Step(s.rules, h, &e, &a, time.Duration(now), s.draws.Uint64())
	wakeOthers(h, a.Wakes, func(i int32) { s.sleep(i, 0, now) })
	return a
}

// hold stores a waiting request and returns its slot.
func (s *stadium) hold(player uint32, call decide.Call) int32 {
	i := int32(len(s.calls))
	if n := len(s.free); n > 0 {
		i = s.free[n-1]
		s.free = s.free[:n-1]
	} else {
		s.calls = append(s.calls, segment{})
	}
	if s.asks {
		call.Waiter = i
	}
	s.calls[i].call, s.calls[i].player = call, player
	s.waiting++
	return i
}

// sleep makes a request wait. It replaces any earlier wait.
func (s *stadium) sleep(i int32, wait time.Duration, now int64) {
	q := &s.calls[i]
	q.turn++
	s.result.PeakWaiting = max(s.result.PeakWaiting, s.waiting)
	if wait < s.Horizon {
		s.queue.push(now+int64(wait), i, q.turn)
	}
}

// state returns the state of a player, creating it on first use.
func (s *stadium) state(p uint32) *player {
	i := s.trouble[p]
	if i == 0 {
		if s.made%playersPerChunk == 0 {
			s.states = append(s.states, make([]player, playersPerChunk))
		}
		s.made++
		i = s.made
		s.trouble[p] = i
	}
	return &s.states[(i-1)/playersPerChunk][(i-1)%playersPerChunk]
}

func (r *StadiumResult) finish() {
	r.Series = r.Series[:min(len(r.Series), int(r.Until/r.Bin))]
	perSecond := float64(time.Second) / float64(r.Bin)
	var seen int64
	first, last := -1, -1
	for i, p := range r.Series {
		r.PeakLoad = max(r.PeakLoad, float64(p.Fetches+p.Retries)*perSecond)
		r.PeakRetries = max(r.PeakRetries, float64(p.Retries)*perSecond)
		seen += int64(p.Retries)
		if first < 0 && 20*seen > r.Retries {
			first = i
		}
		if last < 0 && 20*seen >= 19*r.Retries && seen > 0 {
			last = i
		}
	}
	if first >= 0 && last >= first {
		r.Spread = time.Duration(last-first+1) * r.Bin
	}
}
