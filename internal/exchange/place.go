// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
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
	if x.host = e; e != nil {
		x.call.Goes(x.req.Method, x.req.URL.Path)
	}
	switch {
	case e == nil:
	case e.Others:
		x.rules = x.cfg.ForOthers()
	case x.cfg.Gate:
		x.call.Gate = x.cfg.Program.GateName(x.req)
	}
}

// wakeOthers wakes the calls that must ask h again. Each channel has room for one
// wake-up. One is enough, because the call asks again after it has received that
// wake-up.
func wakeOthers(h *host.Record) {
	for {
		woken, ok := h.Woken().(chan struct{})
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

// gone returns why the caller no longer wants a response, or nil if it still
// does. If a context has a cause, gone joins the context's error and its cause;
// net/http returns only one of them.
func (x *place) gone() error {
	// Check Done, as net/http does: a custom context may have an error but no
	// Done channel.
	if err := x.req.Context().Err(); err != nil && x.req.Context().Done() != nil {
		if cause := fault.Usable(context.Cause(x.req.Context())); !errors.Is(cause, err) {
			return errors.Join(err, cause)
		}
		return err
	}
	canceled := legacyCancel(x.req)
	if canceled == nil {
		return nil
	}
	select {
	case <-canceled:
		// http.Client closes the channel for its Timeout, when the deadline of
		// the context passes.
		if deadline, ok := x.req.Context().Deadline(); ok && !time.Now().Before(deadline) {
			return context.DeadlineExceeded
		}
		return context.Canceled
	default:
		return nil
	}
}

// legacyCancel returns the channel of Request.Cancel, which is deprecated. But
// http.Client closes it for its Timeout, and net/http obeys it.
func legacyCancel(req *http.Request) <-chan struct{} {
	return req.Cancel //lint:ignore SA1019 see above
}
