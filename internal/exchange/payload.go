// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"net/http"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/replay"
)

// payload is the body of a request, which each attempt gets anew.
type payload struct {
	once   *replay.Body   // replays a one-shot body, if there may be another attempt
	copies *replay.Copies // provides any other body that the caller's code makes
	kind   replay.Kind
	begun  bool // an attempt may have read the caller's body in memory
}

// open prepares the body for as many attempts.
func (p *payload) open(cfg *Config, req *http.Request) {
	switch alone := cfg.MaxAttempts <= 1; {
	case p.kind == replay.Once && !alone:
		p.once = replay.Open(req, max(0, cfg.MaxReplayBody))
	case p.kind >= replay.Gotten:
		p.copies = replay.NewCopies(req, alone)
	}
}

// inUse reports whether the base may still need the body of the last attempt, which ends
// with the response.
func (p *payload) inUse() bool { return p.copies != nil && p.copies.InUse() }

// renew gets the body of the next attempt. If nothing of a body in memory has been sent so
// far, the next attempt gets the caller's own again: a caller whose buffer has been sent
// expects to find it empty.
func (x *exchange) renew() (ok bool) {
	switch p := &x.payload; {
	case p.once != nil:
		// While the account was asked, the base may have read more of the body than is kept.
		return x.event.Kind != decide.Heard || p.mayReplay()
	case p.copies != nil:
		if !x.last.unsent(x.env.Inner) {
			p.copies.Sent()
		}
		err := p.copies.Next(x.req.Context(), legacyCancel(x.req), x.drainTime(x.action.Wait))
		x.cause = fault.Usable(err)
		return err == nil
	case !p.begun && x.last.unsent(x.env.Inner):
		unread, _ := body.InMemory(x.req.Body)
		p.begun = unread != x.req.ContentLength
	default:
		p.begun = true
	}
	return true
}

// attach gives a its body.
func (p *payload) attach(a *attempt.Attempt, idempotent bool) {
	switch {
	case p.copies != nil:
		p.copies.Give(&a.Req)
	case p.once != nil:
		p.once.Give(&a.Req)
		// With a GetBody, net/http repeats the request by itself, even if the
		// server might then process it twice.
		if idempotent && p.once.Always() {
			a.Req.GetBody = p.once.GetBody
		}
	case p.begun:
		// It is net/http's own, and can't fail.
		a.Req.Body, _ = a.Req.GetBody()
	}
	if _, memory := body.InMemory(a.Req.Body); p.kind >= replay.Gotten && !memory {
		a.EndBodies()
	}
}

// mayReplay reports whether a one-shot body can be replayed within the attempt. If
// it reports true, the body stays replayable until then.
func (p *payload) mayReplay() (again bool) {
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
	unused := !x.done || x.call.Attempts == 0
	switch {
	case p.once != nil && unused:
		p.once.Seal(replay.Abandoned)
	case p.once != nil && (x.last.err != nil || x.cause != nil):
		p.once.Seal(replay.Failed)
	case p.once != nil:
		p.once.Seal(replay.Answered)
	case p.copies != nil:
		if x.done && !x.last.unsent(x.env.Inner) {
			p.copies.Sent()
		}
		p.copies.Close(unused)
	case unused:
		body.CloseRequest(x.req)
	}
}
