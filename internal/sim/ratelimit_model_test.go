// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

// RateLimit models a server that limits the rate of requests, and one or more
// processes that run at that limit. Each process has its own workers, or
// requests that arrive independently. The result says how much of the limit the
// processes use, how many refusals that costs, and how long a request waits.
type RateLimit struct {
	Policy retrip.Policy // of the processes; each has its own host. AttemptTimeout and Deadline have no effect

	Limit         ServerLimit
	Tenants       []float64 // the limits of keys through which workers cycle, each a token bucket of as many per second, instead of Limit
	GatePerTenant bool      // each key has its own gate, as by Policy.Gate.Key

	// Obeys makes each process keep to every Retry-After for all of its requests,
	// and otherwise send: a client to compare with, for a policy without a gate.
	Obeys bool

	Processes int           // that share the limit
	Stagger   time.Duration // within which they start one after another
	Workers   int           // of each process, which make one request after another
	Rate      float64       // requests per second that arrive at each process besides, and wait for no worker
	Burst     int           // such requests that arrive at once, at BurstAt
	BurstAt   time.Duration
	Deadline  time.Duration // of each request. If 0, none

	DelayLow, DelayHigh time.Duration // bounds of the one-way network delay

	Service     time.Duration // on an accepted request, which also counts towards a Concurrency limit
	Exponential bool          // Service is the mean of an exponential distribution
	Failures    float64       // share of accepted requests that are answered with 500, and count against the limit

	WarmUp, Horizon time.Duration // when counting starts, and the run ends
	Seed            uint64
}

// RateLimitResult is the outcome of a [RateLimit]. "After the warm-up" means:
// among the answers that clients received from RateLimit.WarmUp on.
type RateLimitResult struct {
	Accepted, Refused int64 // attempts, after the warm-up
	GaveUp            map[retrip.Reason]int64

	Used     float64 // accepted requests as a share of what the limit allows, after the warm-up
	Refusals float64 // per accepted request, after the warm-up

	// Worst is the longest time from arrival to success, among requests that
	// succeeded after the warm-up. Fair is what Worst would be if the workers
	// took turns at the whole limit; it is 0 without workers.
	Worst, Fair time.Duration

	Waited  time.Duration // the sum of all times from arrival to success
	Last    time.Duration // the time of the last success
	Share   float64       // of the process that got the largest share, after the warm-up
	Least   float64       // of the process that got the smallest
	Tenants []int64       // accepted by key, after the warm-up
	Early   int64         // attempts made while the process, or its key, had been told to wait
}

// limitRun is a RateLimit in progress.
type limitRun struct {
	RateLimit
	*play.World
	rules     play.Judge
	servers   []limitServer
	reached   int // attempts that have reached the server
	processes []*limitProcess
	result    RateLimitResult
}

// limitProcess is a process, with the only host that it knows.
type limitProcess struct {
	*limitRun
	host     host.Record
	out      int             // requests in progress
	told     []time.Duration // until when the server has asked it to wait, by key
	accepted int64           // after the warm-up
}

func (m RateLimit) run(t *testing.T) *RateLimitResult {
	t.Helper()
	r := &limitRun{RateLimit: m, World: play.NewWorld(m.Seed), rules: play.Rules(t, m.Policy), servers: m.servers()}
	r.result = RateLimitResult{GaveUp: map[retrip.Reason]int64{}, Tenants: make([]int64, len(r.servers))}
	for n := range m.Processes {
		p := &limitProcess{limitRun: r, told: make([]time.Duration, len(r.servers))}
		r.processes = append(r.processes, p)
		var at time.Duration
		if n > 0 {
			at = r.below(max(r.Stagger, 50*time.Millisecond))
		}
		for k := range r.Workers {
			r.At(at, func() { p.work(k) })
		}
		for k := range r.Burst {
			r.At(r.BurstAt, func() { p.request(k, func(bool) {}) })
		}
		if r.Rate > 0 {
			p.arrive(at, 0)
		}
	}
	r.Run(r.Horizon)
	r.finish()
	return &r.result
}

func (r *limitRun) below(d time.Duration) time.Duration {
	return time.Duration(r.Random.Int64N(int64(d)))
}

func (r *limitRun) exponential(mean float64) time.Duration {
	return time.Duration(r.Random.ExpFloat64() * mean)
}

// way returns a one-way network delay.
func (r *limitRun) way() time.Duration { return r.DelayLow + r.below(r.DelayHigh-r.DelayLow+1) }

// work makes the requests of worker k, one after another.
func (p *limitProcess) work(k int) {
	p.request(k, func(good bool) {
		next := p.Now
		if !good {
			next += 50 * time.Millisecond
		}
		p.At(next, func() { p.work(k) })
	})
}

// arrive makes open arrival k and those after it.
func (p *limitProcess) arrive(after time.Duration, k int) {
	p.At(after+p.exponential(float64(time.Second)/p.Rate), func() {
		p.arrive(p.Now, k+1)
		p.request(k, func(bool) {})
	})
}

// request makes number k of the requests of a kind.
func (p *limitProcess) request(k int, done func(good bool)) {
	key, arrived, call := k%len(p.servers), p.Now, new(decide.Call)
	if p.Deadline > 0 {
		call.Deadline = p.Now + p.Deadline
	}
	if p.GatePerTenant {
		call.GateKey = strconv.Itoa(key)
	}
	p.out++
	send := func(answer func(decide.Outcome)) { p.attempt(call, key, answer) }
	p.Call(&p.host, p.rules, call, send, func(o decide.Outcome, why decide.Reason) {
		good, wait := o.Status == http.StatusOK, p.Now-arrived
		if good {
			p.result.Last = p.Now
			p.result.Waited += wait
			if p.Now >= p.WarmUp {
				p.result.Worst = max(p.result.Worst, wait)
			}
		} else {
			p.result.GaveUp[retrip.Reason(why.String())]++
		}
		// As in Transport, a host is forgotten when no request is in progress and
		// it has no state left to keep.
		if p.out--; p.out == 0 && p.host.Healed(p.Now) {
			p.host = host.Record{}
		}
		done(good)
	})
}

// attempt sends an attempt to the server, and its outcome back.
func (p *limitProcess) attempt(call *decide.Call, key int, answer func(decide.Outcome)) {
	if told := slices.Max(p.told); p.Obeys && told > p.Now {
		if call.Deadline > 0 && told > call.Deadline {
			answer(decide.Outcome{Status: http.StatusTooManyRequests, RetryAfter: told - p.Now})
			return
		}
		p.At(told, func() { p.attempt(call, key, answer) })
		return
	}
	sent, server := p.Now, p.servers[key]
	if sent < p.told[key] {
		p.result.Early++
	}
	reply := func(status int, wait time.Duration) {
		p.At(p.Now+p.way(), func() {
			p.count(status, key, wait)
			answer(decide.Outcome{Status: status, RetryAfter: wait, Took: p.Now - sent, Repeatable: true, Replay: true})
		})
	}
	p.At(sent+p.way(), func() {
		p.reached++
		var ok bool
		var exact time.Duration
		if !(p.Limit.Every > 0 && p.reached%p.Limit.Every == 0) && p.Random.Float64() >= p.Limit.Random {
			ok, exact = server.arrive(p.Now)
		}
		if !ok {
			reply(http.StatusTooManyRequests, p.Limit.Word.of(exact))
			return
		}
		status, service := http.StatusOK, p.Service
		if p.Random.Float64() < p.Failures {
			status = http.StatusInternalServerError
		}
		if p.Exponential {
			service = p.exponential(float64(service))
		}
		p.At(p.Now+service, func() {
			leave(server)
			reply(status, 0)
		})
	})
}

// count counts an answer that reaches the client.
func (p *limitProcess) count(status, key int, wait time.Duration) {
	counts := p.Now >= p.WarmUp
	switch {
	case status == http.StatusTooManyRequests:
		p.told[key] = max(p.told[key], p.Now+wait)
		if counts {
			p.result.Refused++
		}
	case counts:
		p.result.Accepted++
		p.result.Tenants[key]++
		p.accepted++
	}
}

func (r *limitRun) finish() {
	res := &r.result
	allowed, perSecond := 0.0, 0.0
	for _, s := range r.servers {
		allowed += s.allows(r.WarmUp, r.Horizon)
		perSecond += s.allows(0, r.Horizon) / r.Horizon.Seconds()
	}
	accepted := float64(max(1, res.Accepted))
	if allowed > 0 {
		res.Used = float64(res.Accepted) / allowed
	}
	if perSecond > 0 {
		res.Fair = time.Duration(math.Round(float64(r.Workers*r.Processes) / perSecond * float64(time.Second)))
	}
	res.Refusals, res.Least = float64(res.Refused)/accepted, 1
	for _, p := range r.processes {
		res.Share, res.Least = max(res.Share, float64(p.accepted)/accepted), min(res.Least, float64(p.accepted)/accepted)
	}
}
