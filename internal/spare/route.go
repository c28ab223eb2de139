// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare

import (
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/retrip/retrip/internal/hostkey"
)

// ready is how long an attempt may wait for another connection, at most, unless a timeout
// says how long an attempt may take.
const ready = time.Second

// Route is what a request knows about bad connections to its host, and so over which its
// next attempt goes. The zero Route is the connection that the base chooses.
type Route struct {
	Other    bool          // from the next attempt on, another connection than the base would use
	HTTP2    bool          // for Suspect: the last connection spoke HTTP/2; else: the other one is the shared spare
	Pooled   bool          // for Suspect: the last connection had served an earlier request
	at       *pool         // whose it was; nil: the base's
	bad      int32         // attempts whose HTTP/1 connection was lost or timed out
	since    time.Time     // over HTTP/2, when that attempt should have been answered
	patience time.Duration // how long an attempt waits for another connection
}

// Suspect records that the last attempt has lost its connection conn, which is nil if unknown,
// or has been ended by the time limit unless that is 0. r.HTTP2 says what conn spoke. It reports
// whether conn is dead: another to the host delivers meanwhile.
func (r *Route) Suspect(l *Pools, key hostkey.Key, limit time.Duration, conn net.Conn) (dead bool) {
	switch {
	case !r.HTTP2:
		r.bad++
		r.Other, r.patience = r.Other || r.bad > 1 || r.Pooled && limit > 0, ready
	case limit > 0:
		// Ignore responses from the first half of the attempt: the connection may
		// have frozen after them. The second half lets requests that time out at
		// different moments share a spare.
		now := time.Now()
		r.Other, r.since, r.patience = true, now.Add(-limit/2), limit/3
		works := l.Doubt(key, r.since, r.at != nil)
		return works != nil && works != r.at || r.at == nil && conn != nil && l.delivers(key, now.Add(-limit), r.since, conn)
	}
	return false
}

// Renew makes the next attempt use a new connection, and reports whether it can: the last
// attempt had the base's, and the base allows another one.
func (r *Route) Renew(l *Pools, base http.RoundTripper) bool {
	t, ok := base.(*http.Transport)
	if !ok || r.Other || !l.Allows(t) {
		return false
	}
	r.Other, r.HTTP2, r.patience = true, false, ready
	return true
}

// Avoid makes the attempt avoid the HTTP/2 connection of the base if that is known to be
// frozen, and reports whether the attempt uses another connection.
func (r *Route) Avoid(l *Pools, u *url.URL) bool {
	if !r.Other && l.Some() {
		if since, ok := l.Avoids(hostkey.Of(u)); ok {
			r.Other, r.HTTP2, r.since, r.patience = true, true, since, ready
		}
	}
	return r.Other
}

// Another returns a RoundTripper with another connection than that of the base, for an
// attempt that may take most, or the base if there can't be another one. It must not be
// inlined, to keep the stack frames of other attempts small.
//
//go:noinline
func (r *Route) Another(l *Pools, base http.RoundTripper, u *url.URL, most time.Duration) http.RoundTripper {
	var turn *Turn
	t := base.(*http.Transport)
	if r.HTTP2 {
		turn = l.Get(t, hostkey.Of(u), r.since, within(r.patience, most))
	} else {
		turn = l.Once(t, within(r.patience, most))
	}
	if turn == nil {
		return base
	}
	return turn
}

// Beside returns a turn for a hedge that may take most, beside an attempt over HTTP/2; see
// [Pools.ForHedge].
func (r *Route) Beside(l *Pools, base *http.Transport, key hostkey.Key, first *Turn, since time.Time, most, delay time.Duration) *Turn {
	r.Other, r.HTTP2 = true, true
	return l.ForHedge(base, key, first, since, within(ready, most), delay)
}

// within returns how long an attempt that may take most waits for another connection: it
// leaves the base time to answer. A most of 0 is as long as the attempt likes.
func within(patience, most time.Duration) time.Duration {
	if most > 0 {
		return min(patience, most/3)
	}
	return patience
}

// Used records what the use of base over conn, which is nil if unknown, says about
// connections. It began at the instant began, zero if unknown. resp is nil if it failed.
//
//go:noinline
func (r *Route) Used(l *Pools, base http.RoundTripper, u *url.URL, resp *http.Response, conn net.Conn, began time.Time) {
	turn, _ := base.(*Turn)
	r.at = nil
	if !turn.AtBase() {
		r.at = turn.pool
	} else if resp != nil && resp.ProtoMajor == 2 {
		if resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests {
			began = time.Time{}
		}
		l.RecordAnswer(hostkey.Of(u), conn, began)
	}
}
