// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// theme says of what a world has more than others.
type theme uint8

const (
	anything   theme = iota
	downloads        // that break
	hedging          // many quick requests, of which some are late
	limits           // many requests to sites that limit their rate
	panics           // of hooks, and functions of policies
	peeks            // by Classify, at bodies that come slowly
	breakers         // that open soon, and callers who go
	uploads          // to servers that respond early, by a base that handles bodies
	departures       // of HTTP/2 servers, one after another
	pauses           // many requests at once to hosts that ask for pauses of different lengths
	resets           // of connections, after which nothing may be repeated
	discards         // of bodies that come slowly, and callers who go meanwhile
	parts            // of sites that fail, beside others that don't
	rewinds          // of the one reader by GetBody, trailers, and a base that still reads
	themes
)

// busy reports whether callers make many calls.
func (d draws) busy() bool { return d.theme == hedging || d.theme == limits || d.theme == parts }

// ofTheme returns s with what the theme says of sites.
func (d draws) ofTheme(s Site) Site {
	switch d.theme {
	case hedging:
		if d.odds(70) {
			s.Conns, s.Outages, s.Shed, s.Limit, s.Streams = nil, nil, 0, 0, 0
		}
	case resets:
		s.Outages = nil
		if d.odds(50) {
			d.list(8, 90, func() { s.Conns = append(s.Conns, ConnFault{Fails: d.odds(50)}) })
			break
		}
		d.list(8, 90, func() {
			s.Conns = append(s.Conns, ConnFault{Kind: Resets, Down: d.odds(70), After: d.n(6000) >> d.n(6)})
		})
	case pauses, peeks, discards:
		if d.odds(70) {
			s.Conns, s.Outages = nil, nil
		}
	case parts:
		s.Conns, s.Limit, s.Shed = nil, 0, 0
		s.Outages = append([]Outage{{For: 10*time.Second + d.log(20*time.Second), Word: -1, Part: 1}}, s.Outages...)
	case departures:
		if d.odds(80) {
			s.TLS = false
		}
		d.list(24, 95, func() { s.Conns = append(s.Conns, ConnFault{Kind: Departs}) })
	}
	return s
}

// themed makes the default policy of tr that of the theme.
func (d draws) themed(tr *Transport) {
	p := &tr.Default
	switch d.theme {
	case downloads:
		p.Resume, p.MaxAttempts = time.Minute, 1+d.n(4)
		p.Classify = NoClassify
	case hedging:
		p.Hedge = 0.05 + float64(d.n(16))/100
		p.Budget, p.Breaker.Ratio, p.Gate.Enabled = 0, retrip.Off, retrip.Off
		if d.odds(20) {
			// A response may come while the other one is judged.
			p.Classify, tr.Wrapped = PeeksAtStart, true
		}
	case limits:
		p.Gate.Enabled = retrip.On
	case parts:
		tr.Default = Policy{Policy: retrip.Policy{MaxAttempts: 2 + d.n(4), Budget: float64(d.n(3)), Backoff: retrip.Backoff{Base: time.Millisecond + d.log(50*time.Millisecond)}}}
		p.FailOn = pick(d.tape, nil, []int{500}, []int{502})
	case peeks:
		p.Classify = PeeksAtStart
		if d.odds(50) {
			p.AttemptTimeout = 30*time.Millisecond + d.log(300*time.Millisecond)
		}
	case pauses:
		p.Budget, p.Breaker.Ratio, p.Deadline, p.AttemptTimeout = retrip.Off, retrip.Off, 0, 0
		p.MaxAttempts, p.MaxWait, p.Keyed = 3+d.n(3), time.Minute, false
		p.Gate.Enabled = pick[retrip.Switch](d.tape, retrip.Off, retrip.Off, retrip.On)
		if d.odds(30) {
			p.Dialects, p.Keyed = []string{"discord"}, d.odds(50)
		}
		if d.odds(30) {
			// Pauses that are renewed soon last longer than a request may wait.
			p.MaxWait, p.Backoff.Cap = time.Second+d.log(4*time.Second), time.Second
		}
	case discards:
		p.Budget, p.Breaker.Ratio, p.Gate.Enabled, p.AttemptTimeout, p.Deadline = retrip.Off, retrip.Off, retrip.Off, 0, 0
		p.Backoff.Base, tr.Wrapped = 100*time.Millisecond+d.log(800*time.Millisecond), d.odds(50)
	case resets:
		tr.Default, tr.Bare = d.policy(6), d.odds(50)
		tr.Default.Idempotent = pick(d.tape, NoIdempotent, NeverIdempotent)
	case panics:
		tr.Wrapped = d.odds(60)
		p.Classify = Classify(d.n(int(classifies)))
	case uploads:
		tr.Wrapped, tr.Handles = d.odds(70), d.odds(70)
	case rewinds:
		tr.Wrapped, tr.Handles = d.odds(80), d.odds(50)
		p.Budget, p.Breaker.Ratio, p.MaxAttempts = retrip.Off, retrip.Off, 2+d.n(4)
	case breakers:
		p.Breaker = retrip.Breaker{Ratio: 0.5, MinVolume: 1 + d.n(2), OpenFor: time.Second + d.log(8*time.Second)}
	}
}

// busyCall returns call number n of a caller that makes many.
func (d draws) busyCall(c Call, n int) Call {
	c.Gap /= 16
	if d.theme == parts && d.odds(80) {
		c.Method, c.Body, c.Size, c.Part = http.MethodGet, NoBody, 0, 1+n%2
	}
	if d.theme == hedging && d.odds(80) {
		c.Method = pick(d.tape, http.MethodGet, http.MethodGet, http.MethodGet, http.MethodHead, http.MethodPut, "QUERY")
		if c.Body = NoBody; c.Method != http.MethodGet {
			c.Body, c.Size = pick(d.tape, NoBody, Bytes, OwnGet, Stream), 1+d.n(3000)
		}
	}
	if !d.odds(80) {
		c.Script = d.script()
		return c
	}
	late := 15
	if d.theme == hedging && n < 8 {
		late = 2 // the usual time of an answer must be known before any hedge
	}
	for range 2 {
		if !d.odds(late) {
			break
		}
		s := Step{Delay: d.log(2 * time.Second), Length: 10}
		if len(c.Script) > 0 && c.Drip == 0 && d.odds(40) {
			s.Stall = d.log(2 * time.Second)
		}
		c.Script = append(c.Script, s)
		late = 50 // the hedge is late, too
	}
	c.Deadline, c.Cancel, c.Policy = 0, 0, nil
	if d.theme == limits {
		c.Body %= 3
	}
	return c
}

// pausing returns a call that a host may ask to wait.
func (d draws) pausing(c Call) Call {
	c.Gap, c.Policy, c.Deadline, c.Cancel = c.Gap/16, nil, 0, 0
	d.list(3, 60, func() {
		c.Script = append(c.Script, Step{Status: pick(d.tape, 503, 503, 429), Word: pick(d.tape, Silence, Seconds, Date, OfAll), Wait: 1 + d.n(6), Delay: d.log(time.Second)})
	})
	if d.odds(15) {
		c.Policy = &Policy{Policy: retrip.Policy{MaxWait: 1 + d.log(3*time.Second)}} // less than others wait
	}
	return c
}

// rewinding returns an upload whose server responds early, or whose base fails.
func (d draws) rewinding(c Call) Call {
	c.Gap, c.Policy, c.Method, c.Direct, c.Deadline = c.Gap/16, nil, pick(d.tape, http.MethodPut, http.MethodPost), true, 0
	c.Body, c.Size, c.Drip = pick(d.tape, Rewinds, Rewinds, OwnGet, Stream), 1+d.n(40<<10), 0
	c.Trailer = d.odds(50)
	d.list(4, 80, func() {
		s := Step{Status: pick(d.tape, 503, 503, 0), Early: d.odds(60), Close: d.odds(30), Length: d.n(300)}
		if d.odds(20) {
			s = Step{Kind: pick(d.tape, CutBefore, CutAfter)}
		}
		c.Script = append(c.Script, s)
	})
	if d.odds(30) {
		c.Drip = d.log(30 * time.Millisecond)
	}
	return c
}

// discarding returns a call whose caller may go while a body that comes slowly is
// discarded.
func (d draws) discarding(c Call) Call {
	c.Gap, c.Policy, c.Deadline, c.Cancel, c.Drip = c.Gap/16, nil, 0, 0, 0
	d.list(3, 80, func() {
		c.Script = append(c.Script, Step{Status: pick(d.tape, 503, 500, 429), Length: 2 + d.n(3000), Plain: d.odds(40), Stall: time.Millisecond + d.log(time.Second)})
	})
	if d.odds(70) {
		c.Cancel, c.Cause, c.Legacy = time.Millisecond+d.log(300*time.Millisecond), d.odds(40), d.odds(30)
	}
	return c
}

// peeking returns a call all of whose responses may come too slowly for who peeks at them.
func (d draws) peeking(c Call) Call {
	c.Method, c.Body, c.Drip, c.Policy, c.Deadline, c.Cancel = http.MethodGet, NoBody, 0, nil, 0, 0
	for range 1 + d.n(5) {
		c.Script = append(c.Script, Step{Length: 2 + d.n(300), Stall: 350*time.Millisecond + d.log(time.Second)})
	}
	return c
}

// breaking returns a call that fails, is slow or whose caller goes.
func (d draws) breaking(c Call) Call {
	c.Gap, c.Policy = d.log(2*time.Second), nil
	c.Script = append(c.Script, Step{Status: pick(d.tape, 503, 500, 0), Delay: d.log(time.Second)})
	if d.odds(50) {
		c.Cancel = d.log(time.Second)
	}
	return c
}

// script returns what a server does with the arrivals of a call.
func (d draws) script() (script []Step) {
	same := d.theme == downloads && d.odds(40) // a server that is always odd in the same way
	d.list(6, 75, func() {
		s := d.step()
		if same && len(script) > 0 {
			s.Length, s.Bump = script[0].Length, s.Bump || d.odds(30)
			if s.Ranges = script[0].Ranges; s.Ranges == PartAs200 {
				s.Ranges, s.Bump = RightRange, false
			}
		}
		script = append(script, s)
	})
	return script
}

// download returns a response with a long body, which mostly breaks.
func (d draws) download() Step {
	s := Step{Length: 100 + d.n(30<<10), Plain: d.odds(4), Bump: d.odds(10), Ranges: RangeKind(d.n(2 * int(rangeKinds)))}
	if s.Ranges >= rangeKinds {
		s.Ranges = RightRange
	}
	if d.odds(70) {
		s.Cut = 1 + d.n(s.Length)
	}
	if d.odds(20) {
		s.Stall = d.log(8 * time.Second)
	}
	return s
}
