// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/spare"
	"github.com/retrip/retrip/internal/syntax"
)

// send makes an attempt.
func (x *exchange) send() {
	x.last = last{}
	x.event = decide.Event{}
	if x.isHooked() {
		x.tellAttempt()
	}
	if x.timed() {
		x.last.began = x.beginning()
	}
	if x.env.Spares.Some() && !x.doubt.on {
		x.shun()
	}
	if !x.derives() {
		x.sending()
		base := x.base()
		x.last.take(base.RoundTrip(x.req))
		x.learn(base)
		return
	}
	base, req := x.base(), x.derive()
	x.sending()
	x.race(base)
	x.last.awaits = x.bound()
	x.use(base, req)
}

// bound limits the time of the attempt. It reports whether the limit is that of a Read
// which waits for the rest of a body.
func (x *exchange) bound() (awaits bool) {
	var left time.Duration
	if x.deadline != 0 {
		left = max(1, x.deadline-x.last.began)
	}
	if awaits = x.awaitsRest() && (left == 0 || x.r.BodyIdleTimeout < left); awaits {
		x.last.attempt.Limit(x.start(), x.r.BodyIdleTimeout, errBodyIdle)
	} else {
		x.r.limit(x.last.attempt, x.start(), left, x.late())
	}
	return awaits
}

// use makes an attempt with a request of its own.
func (x *exchange) use(base http.RoundTripper, req *http.Request) {
	netHTTP := isNetHTTP(base)
	resp, err := x.last.attempt.Use(base, netHTTP, req)
	for resp == nil && fault.GoneAway(err) && x.last.attempt.MayUseAgain() && x.payload.again() {
		// net/http does the same if the request has a GetBody. The connection
		// has ended, which is no sign of trouble at the host.
		req = x.last.attempt.Again(x.payload.once.Reader())
		resp, err = x.last.attempt.Use(base, netHTTP, req)
	}
	if x.last.awaits && x.last.attempt.InTime() {
		// What Classify waits for must still arrive within AttemptTimeout.
		x.r.limit(x.last.attempt, x.start(), 0, nil)
	}
	x.last.sends = x.last.attempt.Sends()
	x.last.take(resp, err)
	x.learn(base)
	if x.last.resp != nil {
		x.last.attempt.GiveBack(x.last.resp, req, x.req)
	}
}

// beginning returns the current instant. At first attempts to hosts in no trouble,
// that is the first reading of the clock: nothing has waited since.
func (x *exchange) beginning() time.Duration {
	if x.call.Attempts == 1 && x.host == nil {
		return x.env.instant(x.start())
	}
	return x.now()
}

// awaitsRest reports whether the response to the next attempt must arrive within
// BodyIdleTimeout, because a Read of the body that it continues waits for it.
func (x *exchange) awaitsRest() bool {
	p := x.r
	return x.rest != nil && p.BodyIdleTimeout > 0 && (p.AttemptTimeout <= 0 || p.BodyIdleTimeout < p.AttemptTimeout)
}

// isNetHTTP reports whether base is a transport of net/http.
func isNetHTTP(base http.RoundTripper) bool {
	switch base.(type) {
	case *http.Transport, *spare.Turn:
		return true
	}
	return false
}

// timed reports whether the duration of an attempt matters.
func (x *exchange) timed() bool { return x.call.Deadline != 0 || x.r.Timed }

// derives reports whether the next attempt needs a request of its own.
func (x *exchange) derives() bool {
	if x.r.Derives || x.hedges() || x.deadline != 0 || x.key != "" || x.payload.kind >= replay.Gotten || x.isHooked() || x.env.Watch&attempt.WatchHandshake != 0 {
		return true
	}
	if x.doubt.on || x.call.Attempts > 1 && x.payload.kind == replay.Memory || x.r.RetryHeader != "" && x.number() > 1 {
		return true
	}
	return attempt.ChecksInterim(x.req.Context())
}

// number returns the number of the attempt, continuing the count of the
// incoming request on whose behalf the request is made.
func (x *exchange) number() int { return x.incoming() - 1 + x.call.Attempts }

// incoming returns the number of the incoming attempt, if a header tells it.
func (x *exchange) incoming() int {
	if x.asked == nil || x.r.RetryHeader == "" {
		return 1
	}
	return x.asked.Incoming(x.req.Context())
}

// derive returns a request for the next attempt. It shares with the caller's
// request everything that doesn't have to differ.
func (x *exchange) derive() *http.Request {
	x.last.attempt = x.r.begin(x.req, x.idempotent, x.env.Watch)
	req := &x.last.attempt.Req
	x.payload.attach(x.last.attempt, x.idempotent)
	if x.r.WholeBody > 0 && x.payload.kind >= replay.Gotten {
		x.last.attempt.WatchSent()
	}
	if x.key != "" {
		req.Header = syntax.WithHeader(req.Header, "Idempotency-Key", x.key)
	}
	if name, n := x.r.RetryHeader, x.number(); name != "" && n > 1 {
		req.Header = syntax.WithHeader(req.Header, name, strconv.Itoa(n))
	}
	return req
}

// late returns the error of an attempt that ends with x.deadline.
func (x *exchange) late() error {
	if x.rest != nil {
		return errNoProgress
	}
	return errDeadline
}

// ready is how long an attempt may wait for another connection, at most, unless a timeout
// says how long an attempt may take.
const ready = time.Second

// doubt is what a request knows about bad connections to its host.
type doubt struct {
	on       bool          // the next attempt uses another connection than the base would
	http2    bool          // the connection of the last attempt spoke HTTP/2
	atSpare  bool          // it was not the base's
	bad      int32         // attempts whose HTTP/1 connection was lost or timed out
	since    time.Duration // over HTTP/2, an instant by which that attempt should have been answered
	patience time.Duration // how long an attempt waits for another connection
}

// doubts records what err, with which the last attempt has failed, says about its connection.
func (x *exchange) doubts(err error) {
	base, ok := x.env.Base.(*http.Transport)
	if !ok {
		return
	}
	var limit time.Duration
	switch {
	case errors.Is(err, errBodyIdle):
		limit = x.r.BodyIdleTimeout
	case errors.Is(err, errAttemptTimeout):
		limit = x.r.AttemptTimeout
	case base.ResponseHeaderTimeout > 0 && strings.HasSuffix(err.Error(), awaitingHeaders):
		limit = base.ResponseHeaderTimeout
	case !fault.Lost(err):
		// A dial that failed, for instance.
		return
	}
	switch a := x.last.attempt; {
	case a != nil && a.HadConn():
		x.doubt.http2 = a.SpokeHTTP2()
	case a != nil && limit > 0:
		// An attempt without a connection waited for a dial or for its turn.
		// That says nothing about any connection.
		return
	case a == nil && x.rest == nil:
		x.doubt.http2 = strings.HasPrefix(err.Error(), "http2: ")
	}
	switch {
	case !x.doubt.http2:
		x.doubt.bad++
		x.doubt.on, x.doubt.patience = x.doubt.bad > 1, ready
	case limit > 0:
		// Ignore responses from the first half of the attempt: the connection may
		// have frozen after them. The second half lets requests that time out at
		// different moments share a spare.
		x.doubt.on, x.doubt.since, x.doubt.patience = true, x.env.now()-limit/2, limit/3
		x.env.Spares.Doubt(hostkey.Of(x.req.URL), x.env.Epoch.Add(x.doubt.since), x.doubt.atSpare)
	}
}

// awaitingHeaders ends the texts of net/http's errors for
// ResponseHeaderTimeout.
const awaitingHeaders = "timeout awaiting response headers"

// shun makes the attempt avoid the HTTP/2 connection of the base if that is known to be
// frozen.
func (x *exchange) shun() {
	if since, ok := x.env.Spares.Shuns(hostkey.Of(x.req.URL)); ok {
		x.doubt.on, x.doubt.http2, x.doubt.since, x.doubt.patience = true, true, since.Sub(x.env.Epoch), ready
	}
}

// base returns the RoundTripper for the next attempt.
func (x *exchange) base() http.RoundTripper {
	if !x.doubt.on {
		return x.env.Base
	}
	return x.another()
}

// another returns a RoundTripper with another connection than that of the base, or the base
// if it needs none or there can't be one. It must not be inlined, to keep the stack frames of
// other attempts small.
//
//go:noinline
func (x *exchange) another() http.RoundTripper {
	var turn *spare.Turn
	base := x.env.Base.(*http.Transport)
	if x.doubt.http2 {
		turn = x.env.Spares.Get(base, hostkey.Of(x.req.URL), x.env.Epoch.Add(x.doubt.since), x.patience())
	} else {
		turn = x.env.Spares.Once(base, x.patience())
	}
	if turn == nil {
		return base
	}
	return turn
}

// patience returns how long the attempt waits for another connection: it leaves the base
// time to answer.
func (x *exchange) patience() time.Duration {
	if most := x.most(); most > 0 {
		return min(x.doubt.patience, most/3)
	}
	return x.doubt.patience
}

// learn records what the last use of base says about connections.
func (x *exchange) learn(base http.RoundTripper) {
	if x.doubt.on || x.last.resp != nil && x.last.resp.ProtoMajor == 2 && x.env.Spares.Some() {
		x.learnMore(base)
	}
}

//go:noinline
func (x *exchange) learnMore(base http.RoundTripper) {
	turn, _ := base.(*spare.Turn)
	x.doubt.atSpare = !turn.AtBase()
	if !x.doubt.atSpare && x.last.resp != nil && x.last.resp.ProtoMajor == 2 {
		x.env.Spares.Answered(hostkey.Of(x.req.URL))
	}
}

// payload is the body of a request, which each attempt gets anew.
type payload struct {
	req   *http.Request
	kind  replay.Kind
	once  *replay.Body  // replays a one-shot body; nil for other kinds
	given io.Closer     // the body of the last attempt, if GetBody made it
	next  io.ReadCloser // the body of the next attempt, if GetBody made it
	begun bool          // an attempt may have read the caller's body, or still read it
}

// open makes a one-shot body replayable, keeping up to limit bytes if it is a
// stream.
func (p *payload) open(limit int64) {
	if p.kind == replay.Once {
		p.once = replay.Open(p.req, limit)
	}
}

// hold reports whether the body can be replayed, as far as is known. The caller
// must then decide at once about another attempt, and call release.
func (p *payload) hold() (replayable bool) { return p.once == nil || p.once.Hold() }

// release ends hold. If again is true, the body stays replayable until the next
// attempt.
func (p *payload) release(again bool) {
	if p.once != nil {
		p.once.Release(again)
	}
}

// renew calls GetBody for the body of the next attempt. If nothing of a body in memory
// has been sent so far, the next attempt gets the caller's own again: a caller whose
// buffer has been sent expects to find it empty.
func (p *payload) renew(unsent bool) error {
	if p.kind != replay.Memory && p.kind != replay.Gotten {
		return nil
	}
	if p.begun = p.begun || !unsent; !p.begun && p.kind == replay.Memory {
		if unread, _ := body.InMemory(p.req.Body); unread > 0 && unread == p.req.ContentLength {
			return nil
		}
	}
	next, err := p.req.GetBody()
	if err == nil && next == nil {
		err = replay.ErrNoBody
	}
	if err != nil {
		return fault.Usable(err)
	}
	p.next = next
	return nil
}

// attach gives a its body.
func (p *payload) attach(a *attempt.Attempt, idempotent bool) {
	if p.next != nil {
		a.Req.Body, p.given, p.next = p.next, p.next, nil
	}
	switch {
	case p.once != nil:
		a.Req.Body = p.once.Reader()
		// With a GetBody, net/http repeats the request by itself, even if the
		// server might then process it twice.
		if idempotent && p.once.Always() {
			a.Req.GetBody = p.once.GetBody
		}
	case p.kind != replay.None && !body.Sound(a.Req.Body, a.Req.ContentLength):
		a.WatchBody()
	}
	if p.kind >= replay.Gotten {
		a.EndBodies()
	}
}

// again reports whether a one-shot body can be replayed within the attempt. If
// it reports true, the body stays replayable until then.
func (p *payload) again() (again bool) {
	if p.once == nil {
		return false
	}
	again = p.hold()
	p.release(again)
	return again
}

// faulty reports whether a one-shot body caused the failure.
func (p *payload) faulty() bool { return p.once != nil && p.once.AtFault() }

// answered prepares for returning resp: the end of resp is also the end of a
// request body that the base may still be about to read.
func (p *payload) answered(resp *http.Response) {
	if p.once != nil && p.once.Seal(false, false) {
		body.EndWith(resp, p.once)
	}
}

// end closes every body of the request that nothing else closes. failed says
// that the last of the attempts has failed, panicked that it may not have
// returned.
func (p *payload) end(failed, panicked bool, attempts int) {
	if p.next != nil {
		p.next.Close()
	}
	if panicked && p.kind != replay.Once && attempts > 1 && p.given != nil {
		p.given.Close()
	}
	unused := panicked || attempts == 0
	switch {
	case p.once != nil:
		p.once.Seal(failed, unused)
	case unused:
		body.CloseRequest(p.req)
	}
}
