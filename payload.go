// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"io"
	"net/http"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/replay"
)

// payload is the body of a request, which each attempt gets anew.
type payload struct {
	req   *http.Request
	kind  replay.Kind
	once  *replay.Body  // replays a one-shot body; nil for other kinds
	given io.Closer     // the body of the last attempt, if GetBody made it
	next  io.ReadCloser // the body of the next attempt, if GetBody made it
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

// renew calls GetBody for the body of the next attempt.
func (p *payload) renew() error {
	if p.kind != replay.Memory && p.kind != replay.Gotten {
		return nil
	}
	next, err := p.req.GetBody()
	if err == nil && next == nil {
		err = replay.ErrNoBody
	}
	if err != nil {
		return usable(err)
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

// end closes every body of the request that nothing else closes. panicked says
// that the last of the attempts may not have returned.
func (p *payload) end(panicked bool, attempts int) {
	if p.next != nil {
		p.next.Close()
	}
	if panicked && p.kind != replay.Once && attempts > 1 && p.given != nil {
		p.given.Close()
	}
	unused := panicked || attempts == 0
	switch {
	case p.once != nil:
		p.once.Seal(unused)
	case unused:
		body.CloseRequest(p.req)
	}
}
