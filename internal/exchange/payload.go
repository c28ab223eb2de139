// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"io"
	"net/http"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/replay"
)

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
