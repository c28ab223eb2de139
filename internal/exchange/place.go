// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
)

// place is where a request stands: at its host, in its waits, with what
// the machine keeps of it.
type place struct {
	clock
	cfg   *Config
	rules *decide.Rules // of cfg, or those for a host without an entry of its own
	req   *http.Request
	call  decide.Call
	host  *host.Entry   // pinned; nil while the host is in no trouble
	woken chan struct{} // signals that the call must ask again; nil if it can't wait at a gate
}

// pin finds the host of the request, which has failed. It returns the current instant. It
// must not be inlined, to keep the stack frame of completeEvent small.
//
//go:noinline
func (x *place) pin() time.Duration {
	now := x.now()
	key := hostkey.Of(x.req.URL)
	if hostkey.IsLong(x.req.URL) {
		// A new entry keeps the key, and with it the string of the URL.
		key = key.Clone()
	}
	x.setHost(x.env.Hosts.PinNew(key, now))
	return now
}

// pinIfTroubled finds the host of the request with pin, if the host may be in trouble. It returns
// the current instant, or 0 if it isn't.
//
//go:noinline
func (x *place) pinIfTroubled(pin func(*host.Table, hostkey.Key, time.Duration) *host.Entry) time.Duration {
	if x.env.calm(x.req) {
		return 0
	}
	now := x.now()
	x.setHost(pin(&x.env.Hosts, hostkey.Of(x.req.URL), now))
	return now
}

// setHost makes e, which may be nil, the host of the request.
func (x *place) setHost(e *host.Entry) {
	if x.host = e; e != nil && x.req.URL != nil { // a Base may take a request without a URL
		x.call.Goes(x.req.Method, x.req.URL.Path)
	}
	switch {
	case e == nil:
	case e.Others:
		x.rules = x.cfg.ForOthers()
	case x.cfg.Gated:
		x.call.GateKey = x.cfg.Program.GateKey(x.req)
	}
}

// wakeOthers wakes the calls that must ask h again. Each channel has room for one
// wake-up. One is enough, because the call asks again after it has received that
// wake-up.
func wakeOthers(h *host.Record) {
	for {
		woken, ok := h.NextWoken().(chan struct{})
		if !ok {
			return
		}
		select {
		case woken <- struct{}{}:
		default:
		}
	}
}

// clock is the time of an exchange. It reads the system's clock only if the time
// matters.
type clock struct {
	env      *Env          // for its epoch
	started  time.Time     // first reading; zero before
	stepped  time.Duration // instant of the last step, if there was a host
	deadline time.Duration // instant at which Policy.Deadline, or Policy.Resume, ends an attempt; 0 if the context's deadline does
}

// start returns the first reading of the clock.
func (c *clock) start() time.Time {
	if c.started.IsZero() {
		c.started = time.Now()
	}
	return c.started
}

// now returns the current instant.
func (c *clock) now() time.Duration {
	if c.started.IsZero() {
		c.started = time.Now()
		return c.env.instant(c.started)
	}
	return c.env.Now()
}

// drainTime returns how long the end of the last attempt may take in the wait.
func (x *place) drainTime(wait time.Duration) time.Duration {
	most := min(max(wait, body.DrainLeast), body.DrainTime)
	if x.call.Deadline != 0 && most > wait {
		// The attempt gets half of what is left.
		most = min(most, max(wait, (x.call.Deadline-x.now())/2))
	}
	return most
}
