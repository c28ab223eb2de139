// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"io"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/replay"
)

// payload is the body of a request, which each attempt gets anew.
type payload struct {
	kind  replay.Kind
	once  *replay.Body  // replays a one-shot body; nil for other kinds
	given io.Closer     // the body of the last attempt, if GetBody made it
	next  io.ReadCloser // the body of the next attempt, if GetBody made it
	begun bool          // an attempt may have read the caller's body, or still read it
}

// renew gets the body of the next attempt, while the response in hand can still be
// returned if there is none. If nothing of a body in memory has been sent so far, the next
// attempt gets the caller's own again: a caller whose buffer has been sent expects to find
// it empty.
func (x *exchange) renew() (ok bool) {
	p := &x.payload
	if p.kind == replay.Once {
		// While the account was asked, the base may have read more of the body than is kept.
		return x.event.Kind != decide.Heard || p.again()
	}
	if p.begun = p.begun || !x.last.unsent(x.env.Inner); !p.begun && p.kind == replay.Memory {
		if unread, _ := body.InMemory(x.req.Body); unread > 0 && unread == x.req.ContentLength {
			return true
		}
	}
	next, err := x.req.GetBody()
	if err == nil && next == nil {
		err = replay.ErrNoBody
	}
	if err != nil {
		x.cause = fault.Usable(err)
		return false
	}
	p.next = next
	return true
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
	again = p.once.Hold()
	p.once.Release(again)
	return again
}

// closeBodies closes every body of the request that nothing else closes.
func (x *exchange) closeBodies() {
	p := &x.payload
	if p.next != nil {
		p.next.Close()
	}
	if !x.done && p.kind != replay.Once && x.call.Attempts > 1 && p.given != nil {
		p.given.Close()
	}
	unused := !x.done || x.call.Attempts == 0
	switch {
	case p.once != nil && unused:
		p.once.Seal(replay.Abandoned)
	case p.once != nil && x.last.err != nil:
		p.once.Seal(replay.Failed)
	case p.once != nil:
		p.once.Seal(replay.Answered)
	case unused:
		body.CloseRequest(x.req)
	}
}
