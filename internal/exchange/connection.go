// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/spare"
)

// ready is how long an attempt may wait for another connection, at most, unless a timeout
// says how long an attempt may take.
const ready = time.Second

// connection is what a request knows about bad connections to its host, and so over which
// its next attempt goes. The zero connection is one that the base chooses.
type connection struct {
	other    bool          // the next attempt uses another connection than the base would
	http2    bool          // the connection of the last attempt spoke HTTP/2, and another one is shared
	atSpare  bool          // it was not the base's
	bad      int32         // attempts whose HTTP/1 connection was lost or timed out
	since    time.Duration // over HTTP/2, an instant by which that attempt should have been answered
	patience time.Duration // how long an attempt waits for another connection
}

// suspect records what err, with which an attempt with an [http.Transport] has failed, says
// about its connection. a is nil if the attempt wasn't derived, or if it is a body that has
// broken, whose protocol is known. limit is the time limit that has ended the attempt, or 0.
func (c *connection) suspect(env *Env, u *url.URL, a *attempt.Attempt, err error, limit time.Duration, isBody bool) {
	switch {
	case a != nil && a.Sends() > 0:
		c.http2 = a.SpokeHTTP2()
	case a != nil && limit > 0:
		// An attempt without a connection waited for a dial or for its turn.
		// That says nothing about any connection.
		return
	case a == nil && !isBody:
		c.http2 = strings.HasPrefix(err.Error(), "http2: ")
	}
	switch {
	case !c.http2:
		c.bad++
		c.other, c.patience = c.bad > 1, ready
	case limit > 0:
		// Ignore responses from the first half of the attempt: the connection may
		// have frozen after them. The second half lets requests that time out at
		// different moments share a spare.
		c.other, c.since, c.patience = true, env.now()-limit/2, limit/3
		env.Spares.Doubt(hostkey.Of(u), env.Epoch.Add(c.since), c.atSpare)
	}
}

// renew makes the next attempt use a new connection, and reports whether it can: the last
// attempt had the base's, and the base allows another one.
func (c *connection) renew(env *Env) bool {
	base, ok := env.Base.(*http.Transport)
	if !ok || c.other || !env.Spares.Allows(base) {
		return false
	}
	c.other, c.http2, c.patience = true, false, ready
	return true
}

// avoids makes the attempt avoid the HTTP/2 connection of the base if that is known to be
// frozen, and reports whether it is.
func (c *connection) avoids(env *Env, u *url.URL) bool {
	since, ok := env.Spares.Avoids(hostkey.Of(u))
	if ok {
		c.other, c.http2, c.since, c.patience = true, true, since.Sub(env.Epoch), ready
	}
	return ok
}

// another returns a RoundTripper with another connection than that of the base, for an
// attempt that may take most, or the base if there can't be another one. It must not be
// inlined, to keep the stack frames of other attempts small.
//
//go:noinline
func (c *connection) another(env *Env, u *url.URL, most time.Duration) http.RoundTripper {
	var turn *spare.Turn
	wait := c.waitsFor(most)
	base := env.Base.(*http.Transport)
	if c.http2 {
		turn = env.Spares.Get(base, hostkey.Of(u), env.Epoch.Add(c.since), wait)
	} else {
		turn = env.Spares.Once(base, wait)
	}
	if turn == nil {
		return base
	}
	return turn
}

// waitsFor returns how long an attempt that may take most waits for another connection: it
// leaves the base time to answer. A most of 0 is as long as the attempt likes.
func (c *connection) waitsFor(most time.Duration) time.Duration {
	if most > 0 {
		return min(c.patience, most/3)
	}
	return c.patience
}

// used records what the use of base, which has returned resp or an error, says about
// connections.
//
//go:noinline
func (c *connection) used(env *Env, u *url.URL, base http.RoundTripper, resp *http.Response) {
	turn, _ := base.(*spare.Turn)
	c.atSpare = !turn.AtBase()
	if !c.atSpare && resp != nil && resp.ProtoMajor == 2 {
		env.Spares.Answered(hostkey.Of(u))
	}
}
