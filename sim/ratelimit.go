// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/retrip/retrip"
)

// RateLimit is a server that limits the rate of requests, and one or more
// processes that live at that limit, each with workers of its own or requests
// that arrive by themselves. The question is how much of the limit they get, at
// the cost of how many refusals, and how long a request waits.
type RateLimit struct {
	// Policy is what the processes follow, each with a host of its own. Rules
	// of other systems are not supported here, and AttemptTimeout has nothing
	// to say.
	Policy Policy

	// Limit is what the server does.
	Limit ServerLimit

	// Tenants gives each key a limit of its own, which is a token bucket of so
	// many requests per second with a burst of as many, at least 1. Workers
	// take turns with the keys. If nil, there is one key and Limit.
	Tenants []float64

	// GatePerTenant gives every key a gate of its own, as Policy.GateKey does.
	GatePerTenant bool

	// Processes is how many share the limit, 1 to 1000, and Stagger the time
	// in which they start.
	Processes int
	Stagger   time.Duration

	// Workers is how many each process has, 0 to 100 000. Each makes one
	// request after another.
	Workers int

	// Rate is how many requests per second arrive at each process besides,
	// whoever may be free, and Burst how many at once at the instant BurstAt.
	Rate    float64
	Burst   int
	BurstAt time.Duration

	// Deadline is that of a request. If 0, there is none.
	Deadline time.Duration

	// DelayLow and DelayHigh bound the time that a request or an answer is on
	// its way, uniformly distributed.
	DelayLow, DelayHigh time.Duration

	// Service is how long the server works on a request that it accepts, for
	// the limit of a Concurrency too. Exponential makes it the mean of an
	// exponential distribution.
	Service     time.Duration
	Exponential bool

	// Failures is the share of accepted requests that are answered 500. They
	// count against the limit all the same.
	Failures float64

	// WarmUp is when counting begins, Horizon where the simulated time ends,
	// at most 24 h.
	WarmUp, Horizon time.Duration

	// Seed chooses the random numbers.
	Seed uint64
}

// ServerLimit is a server's limit of the rate of requests.
type ServerLimit struct {
	Kind LimitKind

	// Rate is what a TokenBucket is refilled by, per second.
	Rate float64

	// Count is the size of a TokenBucket, what is accepted in each window, and
	// how many a Concurrency accepts at one time.
	Count int

	// Window is the length of the windows, and Phase the instant at which one
	// begins: of fixed ones only.
	Window, Phase time.Duration

	// Until is when an Outage ends: before, everything is refused, and after,
	// nothing.
	Until time.Duration

	// From and To bound a time in which a TokenBucket is refilled by Meanwhile
	// per second instead of Rate.
	From, To  time.Duration
	Meanwhile float64

	// Word is what a refusal says about when to come back.
	Word Word
}

// LimitKind is how a server limits.
type LimitKind int

const (
	TokenBucket LimitKind = iota
	FixedWindow
	SlidingWindow
	Concurrency
	Outage
)

// Word is the Retry-After of a refusal.
type Word struct {
	Kind WordKind

	// Length is what a ConstantWord says, whatever is the case.
	Length time.Duration
}

// WordKind is where a server takes its Retry-After from.
type WordKind int

const (
	RoundedWord  WordKind = iota // the right time, rounded up to seconds, at least one
	ExactWord                    // the right time
	ConstantWord                 // Length
	NoWord                       // there is none
)

func (w Word) of(exact time.Duration) time.Duration {
	switch w.Kind {
	case ExactWord:
		return max(1, exact)
	case ConstantWord:
		return w.Length
	case NoWord:
		return 0
	}
	return max(time.Second, (exact + time.Second - 1).Truncate(time.Second))
}

// RateLimitResult is what became of a [RateLimit]. What is counted "after the
// warm-up" is what the clients learnt of from RateLimit.WarmUp on.
type RateLimitResult struct {
	Policy  string
	Seed    uint64
	Partial bool // the run was interrupted
	Until   time.Duration
	Events  int64

	Accepted, Refused int64 // attempts, after the warm-up
	Failed            int64 // requests that ended without success, in the whole run
	GaveUp            []ReasonCount

	Used     float64 // accepted as a share of what the limit allows, after the warm-up
	Refusals float64 // refused per accepted, after the warm-up

	// Worst is the longest time from the arrival of a request that succeeded
	// after the warm-up to its success, and Fair what it would be if the
	// workers took turns at the whole limit; 0 without workers.
	Worst, Fair time.Duration

	Waited   time.Duration // the sum of such times
	Last     time.Duration // the instant of the last success
	Share    float64       // of the process that got most, after the warm-up
	Tenants  []int64       // accepted by key, after the warm-up
	Attempts int           // the most that one request made
	Early    int64         // attempts made within the time that the process, or its key, was told to wait
}

// Validate reports the first parameter that is out of bounds, as a
// *[ParameterError], or what is wrong with the policy. Run does the same.
func (m RateLimit) Validate() error {
	var c checker
	l := m.Limit
	c.want(l.Kind >= TokenBucket && l.Kind <= Outage, "Limit.Kind", int(l.Kind), "one of the constants")
	if m.Tenants == nil && l.Kind == TokenBucket {
		c.number("Limit.Rate", l.Rate, 0.001, maxRate)
	}
	if m.Tenants == nil && l.Kind != Outage {
		c.count("Limit.Count", l.Count, 1, maxRate)
	}
	if l.Kind == FixedWindow || l.Kind == SlidingWindow {
		c.duration("Limit.Window", l.Window, time.Millisecond, maxHorizon)
	}
	c.duration("Limit.Phase", l.Phase, 0, maxHorizon)
	c.duration("Limit.Until", l.Until, 0, maxHorizon)
	c.duration("Limit.From", l.From, 0, maxHorizon)
	c.duration("Limit.To", l.To, 0, maxHorizon)
	c.number("Limit.Meanwhile", l.Meanwhile, 0, maxRate)
	c.want(l.To <= l.From || l.Meanwhile > 0, "Limit.Meanwhile", l.Meanwhile, "positive")
	c.want(l.Word.Kind >= RoundedWord && l.Word.Kind <= NoWord, "Limit.Word.Kind", int(l.Word.Kind), "one of the constants")
	c.duration("Limit.Word.Length", l.Word.Length, 0, maxHorizon)
	for _, rate := range m.Tenants {
		c.number("Tenants", rate, 0.001, maxRate)
	}
	c.count("Processes", m.Processes, 1, 1000)
	c.duration("Stagger", m.Stagger, 0, maxHorizon)
	c.count("Workers", m.Workers, 0, 100_000)
	c.number("Rate", m.Rate, 0, maxRate)
	c.count("Burst", m.Burst, 0, maxClients)
	c.want(m.Workers > 0 || m.Rate > 0 || m.Burst > 0, "Workers", m.Workers, "positive, or Rate or Burst must be")
	c.duration("BurstAt", m.BurstAt, 0, maxHorizon)
	c.duration("Deadline", m.Deadline, 0, maxHorizon)
	c.duration("DelayLow", m.DelayLow, 0, time.Hour)
	c.duration("DelayHigh", m.DelayHigh, m.DelayLow, time.Hour)
	c.duration("Service", m.Service, 0, time.Hour)
	c.number("Failures", m.Failures, 0, 1)
	c.duration("Horizon", m.Horizon, time.Second, maxHorizon)
	c.duration("WarmUp", m.WarmUp, 0, m.Horizon-1)
	c.want(m.Policy.limit == nil && m.Policy.draw == nil, "Policy", m.Policy.name(), "a retrip.Policy")
	if c.err != nil {
		return c.err
	}
	_, err := m.Policy.Retry.Rules()
	return err
}

// limitServer decides about one attempt when it arrives. For one that it
// refuses it knows how long it takes until the next would be accepted.
type limitServer interface {
	arrive(now time.Duration) (ok bool, exact time.Duration)
	leave()
	allows(from, to time.Duration) float64
}

func (m *RateLimit) servers() []limitServer {
	if m.Tenants != nil {
		var list []limitServer
		for _, rate := range m.Tenants {
			list = append(list, newBucket(ServerLimit{Rate: rate, Count: max(1, int(rate))}))
		}
		return list
	}
	switch l := m.Limit; l.Kind {
	case FixedWindow:
		return []limitServer{&fixedWindow{ServerLimit: l, window: -1}}
	case SlidingWindow:
		return []limitServer{&slidingWindow{ServerLimit: l}}
	case Concurrency:
		return []limitServer{&concurrent{ServerLimit: l, service: m.Service}}
	case Outage:
		return []limitServer{outage(l.Until)}
	default:
		return []limitServer{newBucket(l)}
	}
}

type bucket struct {
	ServerLimit
	tokens float64
	at     time.Duration
}

func newBucket(l ServerLimit) *bucket { return &bucket{ServerLimit: l, tokens: float64(l.Count)} }

// allows returns what is refilled from one instant to another.
func (b *bucket) allows(from, to time.Duration) float64 {
	inside := max(0, min(to, b.To)-max(from, b.From)).Seconds()
	return float64(((to-from).Seconds()-inside)*b.Rate) + float64(inside*b.Meanwhile)
}

func (b *bucket) arrive(now time.Duration) (bool, time.Duration) {
	b.tokens = min(float64(b.Count), b.tokens+b.allows(b.at, now))
	b.at = now
	if b.tokens >= 1-1e-9 {
		b.tokens--
		return true, 0
	}
	rate := b.Rate
	if now >= b.From && now < b.To {
		rate = b.Meanwhile
	}
	return false, time.Duration((1 - b.tokens) / rate * float64(time.Second))
}

func (b *bucket) leave() {}

type fixedWindow struct {
	ServerLimit
	window time.Duration
	used   int
}

func (f *fixedWindow) arrive(now time.Duration) (bool, time.Duration) {
	since := now - f.Phase + f.Window*((f.Phase+f.Window-1)/f.Window)
	if k := since / f.Window; k != f.window {
		f.window, f.used = k, 0
	}
	if f.used < f.Count {
		f.used++
		return true, 0
	}
	return false, f.Window - since%f.Window
}

func (f *fixedWindow) leave() {}

func (f *fixedWindow) allows(from, to time.Duration) float64 {
	return float64(f.Count) * (to - from).Seconds() / f.Window.Seconds()
}

type slidingWindow struct {
	ServerLimit
	log []time.Duration
}

func (s *slidingWindow) arrive(now time.Duration) (bool, time.Duration) {
	past, _ := slices.BinarySearch(s.log, now-s.Window+1)
	s.log = s.log[past:]
	if len(s.log) < s.Count {
		s.log = append(s.log, now)
		return true, 0
	}
	return false, s.log[0] + s.Window - now
}

func (s *slidingWindow) leave() {}

func (s *slidingWindow) allows(from, to time.Duration) float64 {
	return float64(s.Count) * (to - from).Seconds() / s.Window.Seconds()
}

type concurrent struct {
	ServerLimit
	service time.Duration
	busy    int
}

func (s *concurrent) arrive(time.Duration) (bool, time.Duration) {
	if s.busy < s.Count {
		s.busy++
		return true, 0
	}
	return false, s.service / time.Duration(s.Count)
}

func (s *concurrent) leave() { s.busy-- }

func (s *concurrent) allows(from, to time.Duration) float64 {
	return float64(s.Count) * (to - from).Seconds() / s.service.Seconds()
}

// outage is the instant until which everything is refused.
type outage time.Duration

func (o outage) arrive(now time.Duration) (bool, time.Duration) {
	return now >= time.Duration(o), time.Duration(o) - now
}

func (o outage) leave() {}

func (o outage) allows(_, _ time.Duration) float64 { return 0 }

// What an event is, in the lowest bits of its tag; the rest is the turn of the
// request that it belongs to.
const (
	limitArrival  = iota // of an open arrival at a process
	limitBegin           // a worker begins
	limitAsk             // a wait is over, or a request was woken
	limitReach           // an attempt gets to the server
	limitServed          // and is done
	limitAnswered        // the answer gets to the client
	limitKinds    = 8
)

// limitCall is a request, or a worker that makes one after another.
type limitCall struct {
	call    retrip.Call
	arrived time.Duration
	sent    time.Duration
	outcome retrip.Outcome
	process int32
	tenant  int32
	turn    uint32
	worker  bool
}

// limitRun is a RateLimit under way.
type limitRun struct {
	*RateLimit
	rules    *retrip.Rules
	gated    bool
	hosts    []retrip.Host
	out      []int // requests under way by host
	told     [][]time.Duration
	servers  []limitServer
	queue    *queue
	requests []limitCall
	free     []int32

	arrivals, service, faults, draws, network *source

	failure chance
	now     time.Duration
	shares  []int64
	result  RateLimitResult
}

// Run simulates m; see [Scenario.Run] for the rest.
func (m RateLimit) Run(ctx context.Context, progress func(done float64)) (*RateLimitResult, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	rules, err := m.Policy.Retry.Rules()
	if err != nil {
		return nil, err
	}
	r := &limitRun{
		RateLimit: &m,
		rules:     rules,
		gated:     rules.Policy().Gate == retrip.On,
		hosts:     make([]retrip.Host, m.Processes),
		out:       make([]int, m.Processes),
		told:      make([][]time.Duration, m.Processes),
		servers:   m.servers(),
		queue:     newQueue(20),
		arrivals:  newSource(m.Seed, streamArrivals),
		service:   newSource(m.Seed, streamService),
		faults:    newSource(m.Seed, streamFaults),
		draws:     newSource(m.Seed, streamDraws),
		network:   newSource(m.Seed, streamNetwork),
		failure:   newChance(m.Failures),
		shares:    make([]int64, m.Processes),
		result:    RateLimitResult{Policy: m.Policy.name(), Seed: m.Seed, Tenants: make([]int64, len(m.servers()))},
	}
	r.start()
	return r.run(ctx, progress)
}

func (r *limitRun) start() {
	for p := range r.hosts {
		r.told[p] = make([]time.Duration, len(r.servers))
		var at time.Duration
		if p > 0 {
			at = time.Duration(r.arrivals.below(uint64(max(r.Stagger, 50*time.Millisecond))))
		}
		for k := range r.Workers {
			i := r.make(int32(p), k)
			r.requests[i].worker = true
			r.queue.push(int64(at), i, limitBegin)
		}
		for k := range r.Burst {
			r.queue.push(int64(r.BurstAt), r.make(int32(p), k), limitBegin)
		}
		if r.Rate > 0 {
			r.queue.push(int64(at+r.arrivals.exponential(float64(time.Second)/r.Rate)), int32(p), limitArrival)
		}
	}
}

// make returns a request of process p, the kth of those that are made alike.
func (r *limitRun) make(p int32, k int) int32 {
	var i int32
	if n := len(r.free); n > 0 {
		i = r.free[n-1]
		r.free = r.free[:n-1]
	} else {
		i = int32(len(r.requests))
		r.requests = append(r.requests, limitCall{})
	}
	q := &r.requests[i]
	q.process, q.tenant, q.worker = p, int32(k%len(r.servers)), false
	return i
}

func (r *limitRun) run(ctx context.Context, progress func(float64)) (*RateLimitResult, error) {
	err := ctx.Err()
	for err == nil {
		e, ok := r.queue.pop()
		if !ok || e.at >= int64(r.Horizon) {
			r.now = r.Horizon
			break
		}
		r.now = time.Duration(e.at)
		if r.result.Events++; r.result.Events%cancelCheckEach == 0 {
			err = ctx.Err()
			if progress != nil {
				progress(float64(r.now) / float64(r.Horizon))
			}
		}
		r.happen(e)
	}
	r.result.Until, r.result.Partial = r.now, err != nil
	r.finish()
	return &r.result, err
}

func (r *limitRun) happen(e event) {
	kind := e.what % limitKinds
	if kind == limitArrival {
		r.queue.push(e.at+int64(r.arrivals.exponential(float64(time.Second)/r.Rate)), e.who, limitArrival)
		r.begin(r.make(e.who, int(r.result.Events)))
		return
	}
	q := &r.requests[e.who]
	switch {
	case kind == limitBegin:
		r.begin(e.who)
	case e.what/limitKinds != q.turn%(1<<29):
	case kind == limitAsk:
		r.ask(e.who)
	case kind == limitReach:
		r.reach(e.who)
	case kind == limitServed:
		r.servers[q.tenant].leave()
		r.push(e.who, r.way(), limitAnswered)
	case kind == limitAnswered:
		r.answered(e.who)
	}
}

// push schedules what comes next for a request: only the newest counts.
func (r *limitRun) push(i int32, after time.Duration, kind uint32) {
	q := &r.requests[i]
	q.turn++
	if after < r.Horizon {
		r.queue.push(int64(r.now+after), i, q.turn%(1<<29)*limitKinds+kind)
	}
}

// way returns how long a request or an answer is on its way.
func (r *limitRun) way() time.Duration {
	if r.DelayHigh == r.DelayLow {
		return r.DelayLow
	}
	return r.DelayLow + time.Duration(r.network.below(uint64(r.DelayHigh-r.DelayLow)))
}

func (r *limitRun) begin(i int32) {
	q := &r.requests[i]
	q.call, q.arrived, q.outcome = retrip.Call{}, r.now, retrip.Outcome{}
	if r.Deadline > 0 {
		q.call.Deadline = r.now + r.Deadline
	}
	if d := r.rules.Policy().Deadline; d > 0 && (q.call.Deadline == 0 || d < r.Deadline) {
		q.call.Deadline = r.now + d
	}
	if r.gated {
		q.call.Waiter = i
		if r.GatePerTenant {
			q.call.Gate = strconv.Itoa(int(q.tenant))
		}
	}
	r.out[q.process]++
	r.ask(i)
}

// ask has the host say whether an attempt may be made now, and does what it
// says.
func (r *limitRun) ask(i int32) {
	q := &r.requests[i]
	h, draw := &r.hosts[q.process], r.draws.Uint64()
	var d retrip.Decision
	if q.call.Attempts == 0 {
		d = h.First(r.rules, &q.call, r.now, draw)
	} else {
		d = h.Wake(r.rules, &q.call, r.now, draw)
	}
	r.wakeOthers(h, d.Wakes)
	switch {
	case !d.Retry:
		r.end(i, false, d.Reason)
	case d.Wait > 0:
		r.push(i, d.Wait, limitAsk)
	default:
		q.call.Attempts++
		q.sent = r.now
		r.result.Attempts = max(r.result.Attempts, q.call.Attempts)
		if r.now < r.told[q.process][q.tenant] {
			r.result.Early++
		}
		r.push(i, r.way(), limitReach)
	}
}

func (r *limitRun) wakeOthers(h *retrip.Host, any bool) {
	for any {
		i, ok := h.Woken().(int32)
		if !ok {
			return
		}
		r.push(i, 0, limitAsk)
	}
}

// reach is an attempt that gets to the server.
func (r *limitRun) reach(i int32) {
	q := &r.requests[i]
	ok, exact := r.servers[q.tenant].arrive(r.now)
	q.outcome = retrip.Outcome{Status: http.StatusOK, Idempotent: true, Replay: true}
	if !ok {
		q.outcome.Status, q.outcome.RetryAfter = http.StatusTooManyRequests, r.Limit.Word.of(exact)
		r.push(i, r.way(), limitAnswered)
		return
	}
	if r.faults.happens(r.failure) {
		q.outcome.Status = http.StatusInternalServerError
	}
	service := r.Service
	if r.Exponential {
		service = r.service.exponential(float64(service))
	}
	r.push(i, service, limitServed)
}

// answered is an answer that gets to the client.
func (r *limitRun) answered(i int32) {
	q := &r.requests[i]
	o := q.outcome
	o.Took = r.now - q.sent
	counts := r.now >= r.WarmUp
	if o.Status == http.StatusTooManyRequests {
		if counts {
			r.result.Refused++
		}
		r.told[q.process][q.tenant] = max(r.told[q.process][q.tenant], r.now+o.RetryAfter)
	} else if counts {
		r.result.Accepted++
		r.result.Tenants[q.tenant]++
		r.shares[q.process]++
	}
	h := &r.hosts[q.process]
	d := h.Next(r.rules, &q.call, o, r.now, r.draws.Uint64())
	r.wakeOthers(h, d.Wakes)
	switch {
	case !d.Retry:
		r.end(i, o.Status == http.StatusOK, d.Reason)
	case d.AtGate:
		r.push(i, 0, limitAsk)
	default:
		r.push(i, d.Wait, limitAsk)
	}
}

// end ends a request. A worker begins the next one.
func (r *limitRun) end(i int32, good bool, reason retrip.Reason) {
	q := &r.requests[i]
	q.turn++
	if good {
		wait := r.now - q.arrived
		r.result.Last = r.now
		r.result.Waited += wait
		if r.now >= r.WarmUp {
			r.result.Worst = max(r.result.Worst, wait)
		}
	} else {
		r.result.Failed++
		r.result.GaveUp = countReason(r.result.GaveUp, reason)
	}
	// As Transport does: a host is forgotten when no request is under way and
	// nothing is left to be remembered.
	p := q.process
	if r.out[p]--; r.out[p] == 0 && r.hosts[p].Healed(r.now) {
		r.hosts[p] = retrip.Host{}
	}
	switch {
	case !q.worker:
		r.free = append(r.free, i)
	case good:
		r.queue.push(int64(r.now), i, limitBegin)
	default:
		r.queue.push(int64(r.now+50*time.Millisecond), i, limitBegin)
	}
}

func (r *limitRun) finish() {
	res := &r.result
	slices.SortFunc(res.GaveUp, func(a, b ReasonCount) int { return cmp.Compare(b.Count, a.Count) })
	allowed, perSecond := 0.0, 0.0
	for _, s := range r.servers {
		allowed += s.allows(r.WarmUp, max(r.now, r.WarmUp))
		perSecond += s.allows(0, r.Horizon) / r.Horizon.Seconds()
	}
	if allowed > 0 {
		res.Used = float64(res.Accepted) / allowed
	}
	res.Refusals = float64(res.Refused) / float64(max(1, res.Accepted))
	if perSecond > 0 {
		res.Fair = time.Duration(math.Round(float64(r.Workers*r.Processes) / perSecond * float64(time.Second)))
	}
	if res.Accepted > 0 {
		res.Share = float64(slices.Max(r.shares)) / float64(res.Accepted)
	}
}
