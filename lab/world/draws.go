// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"net/http"
	"slices"
	"time"

	"github.com/retrip/retrip"
)

// planOf returns the world that t stands for.
func planOf(t *tape) Plan {
	d := draws{tape: t, theme: theme(t.n(int(themes) + 2))}
	p := Plan{Salt: uint32(t.upTo(1 << 32)), H2C: d.odds(25) || d.theme == departures}
	p.Sites = append(p.Sites, d.site())
	d.list(2, 40, func() { p.Sites = append(p.Sites, d.site()) })
	p.Transports = append(p.Transports, d.transport())
	apart := d.odds(30)
	d.list(2, 25, func() {
		tr := d.transport()
		if apart {
			tr.Metrics = len(p.Transports)
		}
		p.Transports = append(p.Transports, tr)
	})
	d.list(6, 80, func() { p.Callers = append(p.Callers, d.caller(&p)) })
	d.list(6, 50, func() {
		p.Operations = append(p.Operations, Operation{At: d.instant(8 * time.Second), Transport: d.n(len(p.Transports)), Kind: OperationKind(d.n(int(operationKinds))), Names: d.names()})
	})
	d.maybe(60, func() {
		d.list(12, 90, func() { p.Store = append(p.Store, d.answer()) })
	})
	return p
}

// draws draws the parts of a Plan. The first of several choices is the dullest.
type draws struct {
	*tape
	theme theme
}

func (d draws) site() Site {
	s := Site{
		TLS: d.odds(20), H1: d.odds(40), Streams: pick(d.tape, 0, 0, 0, 1, 3),
		Latency: time.Microsecond + d.log(20*time.Millisecond),
	}
	if d.theme == uploads && d.odds(60) {
		return s
	}
	d.list(6, 40, func() {
		c := ConnFault{Dial: d.log(2 * time.Second), Fails: d.odds(20)}
		if d.odds(60) {
			c.Kind, c.Down, c.After, c.Slow = FaultKind(d.n(int(faultKinds))), d.odds(50), d.n(3000)>>d.n(8), d.log(10*time.Second)
		}
		s.Conns = append(s.Conns, c)
	})
	d.list(3, 35, func() {
		s.Outages = append(s.Outages, Outage{From: d.instant(6 * time.Second), For: d.log(8 * time.Second), Kind: OutageKind(d.n(int(outageKinds))), Word: d.n(4) - 1, Part: pick(d.tape, 0, 0, 0, 1)})
	})
	if d.odds(15) {
		s.Shed = 1 + d.n(3)
	}
	if d.theme == limits || d.odds(4) {
		s.Limit, s.Word = 1+d.n(8), d.n(3)-1
	}
	s.Unsized = d.odds(30)
	return d.ofTheme(s)
}

func (d draws) transport() Transport {
	tr := Transport{Policies: Policies{Default: d.policy(60)}, Verifies: d.odds(20), Refuses: d.odds(20), Fleet: d.odds(25), Logger: d.odds(50), Wrapped: d.odds(20), Hostile: d.odds(25)}
	d.themed(&tr)
	tr.Hosts = d.hosts()
	d.list(3, 35, func() { tr.Next = append(tr.Next, Policies{d.policy(60), d.hosts()}) })
	if d.odds(20) {
		tr.Client = d.log(8 * time.Second)
	}
	tr.Bare = tr.Bare || d.odds(8)
	return tr
}

func (d draws) hosts() map[string]Policy {
	var hosts map[string]Policy
	d.list(3, 35, func() {
		if hosts == nil {
			hosts = map[string]Policy{}
		}
		hosts[pick(d.tape, patterns...)] = d.policy(20)
	})
	return hosts
}

// policy returns a valid policy, in which each part is set with a likelihood of
// percent/2.
func (d draws) policy(percent int) Policy {
	var p Policy
	maybe := func(set func()) { d.maybe(percent/2, set) }
	maybe(func() { p.MaxAttempts = 1 + d.n(6) })
	maybe(func() { p.Backoff.Base = pick(d.tape, retrip.Off, time.Millisecond, d.log(time.Second)) })
	maybe(func() { p.Backoff.Cap = time.Second + d.log(20*time.Second) })
	maybe(func() { p.Backoff.ThrottleBase = pick(d.tape, retrip.Off, d.log(3*time.Second)) })
	maybe(func() { p.Backoff.Jitter = retrip.Jitter(1 + d.n(4)) })
	maybe(func() { p.Deadline = d.log(10 * time.Second) })
	maybe(func() { p.AttemptTimeout = 30*time.Millisecond + d.log(3*time.Second) })
	maybe(func() { p.MaxWait = pick(d.tape, time.Nanosecond, d.log(10*time.Second), time.Minute, 24*time.Hour) })
	maybe(func() { p.WholeBody = pick(d.tape, retrip.Off, int64(1+d.n(5000)), 64<<10) })
	maybe(func() { p.BodyIdleTimeout = 50*time.Millisecond + d.log(5*time.Second) })
	maybe(func() { p.Resume = pick(d.tape, time.Minute, 20*time.Millisecond+d.log(20*time.Second)) })
	maybe(func() { p.MaxReplayBody = pick(d.tape, retrip.Off, int64(1+d.n(2000))) })
	maybe(func() { p.RetryOn = pick(d.tape, []int{}, []int{404, 409}, []int{418, 421}) })
	maybe(func() { p.FailOn = pick(d.tape, []int{}, []int{500}, []int{502, 504}) })
	maybe(func() { p.Unprocessed = pick(d.tape, []int{}, []int{429}, []int{429, 503}, []int{409}) })
	maybe(func() { p.IdempotentMethods = pick(d.tape, []string{}, []string{"POST"}, []string{"REPORT"}) })
	maybe(func() { p.IdempotencyKey = pick[retrip.Switch](d.tape, retrip.Off, retrip.On) })
	maybe(func() {
		p.Dialects = pick(d.tape, []string{}, []string{"retry-after-ms"}, []string{"ratelimit"}, []string{"should-retry"}, []string{"anthropic", "azure"}, []string{"openai", "github"}, []string{"shopify", "discord", "stripe"}, []string{"x-ratelimit-reset", "x-ms-retry-after-ms", "x-amz-retry-after"})
	})
	maybe(func() { p.RetryHeader = pick(d.tape, "off", "World-Retry") })
	maybe(func() {
		p.Budget = pick(d.tape, float64(1+d.n(40)), retrip.Off, 10, 1)
	})
	maybe(func() { p.FleetBudget = pick(d.tape, retrip.Off, float64(1+d.n(100))) })
	maybe(func() {
		p.Breaker = pick(d.tape, retrip.Breaker{Ratio: retrip.Off}, retrip.Breaker{Ratio: 0.5, MinVolume: 1 + d.n(6), OpenFor: d.log(4 * time.Second), Window: d.log(20 * time.Second)})
	})
	maybe(func() { p.Gate.Enabled = pick[retrip.Switch](d.tape, retrip.Off, retrip.On) })
	maybe(func() { p.Hedge = pick(d.tape, retrip.Off, 0.01+float64(d.n(19))/100) })
	maybe(func() { p.Keyed = true })
	maybe(func() { p.Classify = Classify(d.n(int(classifies))) })
	maybe(func() { p.Idempotent = Idempotent(d.n(int(idempotents))) })
	if d.odds(4) {
		// A long budget and no wait: many attempts.
		p.Budget, p.MaxAttempts = retrip.Off, 8
	}
	return p
}

func (d draws) caller(p *Plan) Caller {
	c := Caller{Start: d.log(4 * time.Second), Transport: d.n(len(p.Transports))}
	site := d.n(len(p.Sites))
	most := 4
	more := 85
	if d.busy() {
		most, more = 40, 97
	} else if d.theme == uploads || d.theme == resets || d.odds(5) {
		most, more = 16, 92
	}
	c.Burst = d.odds(12)
	d.list(most, more, func() {
		call := d.call()
		if d.busy() {
			call = d.busyCall(call, len(c.Calls))
		}
		if call.Read == ClosesLater {
			// net/http's Close waits for a mutex until the request body is sent.
			call.Drip, call.Linger = 0, 0
		}
		if slices.ContainsFunc(p.Sites, func(s Site) bool { return s.Shed > 0 }) {
			// net/http's server, too: a response waits for a Read of the request's body,
			// and a shed.Handler reads ahead.
			call.Drip = 0
		}
		call.Site = site
		if d.odds(20) {
			call.Site = d.n(len(p.Sites))
		}
		c.Calls = append(c.Calls, call)
	})
	return c
}

func (d draws) call() Call {
	c := Call{
		Gap:    d.log(2 * time.Second),
		Method: pick(d.tape, http.MethodGet, http.MethodGet, http.MethodGet, http.MethodPost, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodHead, "QUERY", "REPORT", http.MethodOptions),
		Key:    d.odds(8), Safe: d.odds(30), Direct: d.odds(30),
	}
	switch {
	case d.theme == downloads && d.odds(80):
		c.Method = http.MethodGet
	case d.theme == panics && d.odds(50):
		c.Panics = Panic(d.n(int(panicKinds)))
	case d.theme == uploads:
		c.Method = pick(d.tape, http.MethodPut, http.MethodPost, http.MethodHead)
	case d.theme == resets && d.odds(80):
		c.Method = pick(d.tape, http.MethodPost, http.MethodGet)
	}
	if d.theme == parts || d.odds(10) {
		c.Part = d.n(3)
	}
	c.Traced = d.odds(10)
	if d.odds(10) {
		c.Hints = Hints(d.n(int(hintKinds)))
	}
	if d.odds(10) {
		c.Spells = d.n(4)
	}
	if hasBody := []string{http.MethodPost, http.MethodPut, "QUERY", "REPORT"}; slices.Contains(hasBody, c.Method) || d.theme == uploads {
		c.Body, c.Size = BodyKind(d.n(int(bodyKinds))), 1+d.n(3000)
		if d.odds(10) {
			c.Size = d.n(200 << 10)
		} else if d.odds(10) {
			c.Drip = d.log(100 * time.Millisecond)
		}
		switch {
		case d.theme == resets:
			c.Body = pick(d.tape, c.Body, Bytes)
		case d.theme == uploads:
			c.Body, c.Size = pick(d.tape, c.Body, Stream, Stream, Section), 1+d.n(6000)
			if d.odds(80) {
				c.Drip = d.log(100*time.Millisecond) + time.Millisecond
			}
		}
	}
	if d.odds(12) {
		p := d.policy(15)
		// The account, breaker and gate belong to the host.
		p.Budget, p.Breaker, p.Gate, p.Keyed, p.FleetBudget = 0, retrip.Breaker{}, retrip.Gate{}, false, 0
		if d.odds(40) {
			p.Gate.Enabled = retrip.Off
		}
		if d.odds(40) {
			p.Breaker.Ratio = retrip.Off
		}
		if d.odds(40) {
			p.Budget = retrip.Off
		}
		c.Policy = &p
	}
	if d.odds(25) {
		c.Deadline = d.log(10 * time.Second)
	}
	if d.odds(15) {
		c.Cancel, c.Cause, c.Legacy = d.log(5*time.Second), d.odds(40), d.odds(20)
		if d.odds(10) {
			c.Cancel = -1
		}
	}
	if d.odds(25) {
		c.Read, c.Pace = Reading(d.n(int(readings))), d.log(300*time.Millisecond)
	}
	c.Range = c.Method == http.MethodGet && d.odds(8)
	if d.theme == uploads || d.odds(4) {
		c.Linger = d.log(8 * time.Second)
	}
	if d.odds(15) {
		c.Stays = d.log(4 * time.Second)
	}
	if d.theme == uploads && d.odds(60) {
		c.Deadline, c.Cancel = 0, 0
	}
	if d.busy() {
		return c
	}
	switch {
	case d.theme == breakers && d.odds(80):
		return d.breaking(c)
	case d.theme == pauses && d.odds(80):
		return d.pausing(c)
	case d.theme == rewinds && d.odds(90):
		return d.rewinding(c)
	case d.theme == discards && d.odds(80):
		return d.discarding(c)
	case d.theme == peeks && d.odds(30):
		return d.peeking(c)
	case d.theme == resets && d.odds(80):
		c.Gap, c.Deadline, c.Cancel = c.Gap/16, 0, 0
		if d.odds(50) {
			c.Script = append(c.Script, Step{Kind: CutAfter})
		}
		return c
	}
	c.Script = d.script()
	return c
}

func (d draws) step() Step {
	if d.theme == downloads && d.odds(70) {
		return d.download()
	}
	if d.theme == uploads && d.odds(60) {
		// net/http's HTTP/2 stops sending after other responses than these.
		return Step{Duplex: true, Status: pick(d.tape, 0, http.StatusCreated), Length: d.n(600)}
	}
	s := Step{
		Kind:   pick(d.tape, Answers, Answers, Answers, Answers, Answers, Answers, Answers, Answers, Hangs, CutBefore, CutAfter, Redirects, SendsHints, Upgrades),
		Status: pick(d.tape, 0, 503, 503, 429, 429, 500, 502, 504, 404, 409, 418, 418, 421, 202, 202, 201, 304, 400, 403),
		Length: d.n(600),
	}
	if d.odds(30) {
		s.Delay = d.log(3 * time.Second)
	}
	if d.odds(45) {
		s.Word, s.Wait = Word(d.n(int(words))), pick(d.tape, 0, 1, 1, 2, 3, 5, 11, 31, 100000)
	}
	if d.theme == peeks && d.odds(60) {
		return Step{Length: 1 + d.n(300), Plain: d.odds(60), Stall: pick(d.tape, d.log(time.Second), 400*time.Millisecond), Delay: d.log(time.Second)}
	}
	s.Forbid, s.Final, s.Early, s.Plain, s.Close = d.odds(4), d.odds(5), d.odds(8), d.odds(15), d.odds(5)
	if d.odds(20) {
		s.Length = d.n(20 << 10)
	}
	if d.odds(3) {
		s.Length, s.Plain = d.n(600<<10), s.Plain || d.odds(50)
	}
	if d.odds(20) {
		s.Cut = 1 + d.n(s.Length+1)
	}
	if d.odds(12) {
		s.Stall = d.log(8 * time.Second)
	}
	if d.odds(15) {
		s.Ends = Ending(d.n(int(endings)))
	}
	s.Bump = d.odds(10)
	if d.odds(25) {
		s.Ranges = RangeKind(d.n(int(rangeKinds)))
	}
	return s
}

// names returns a number of hosts, seldom more than may have a state.
func (d draws) names() int {
	if d.odds(3) {
		return 6000
	}
	return 1 + d.n(40)
}

func (d draws) answer() Answer {
	a := Answer{After: d.log(time.Second)}
	switch d.n(12) {
	case 8:
		a.Fails = true
	case 9:
		a.Lies = 1 + Lie(d.n(int(lies)-1))
	case 10:
		a.Hangs = true
	case 11:
		a.Panic = d.odds(50)
	}
	return a
}
