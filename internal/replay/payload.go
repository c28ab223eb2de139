// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/body"
)

// Payload is the body of a request, which each attempt gets anew.
type Payload struct {
	Kind   Kind
	Once   *Body   // replays a one-shot body, if there may be another attempt
	copies *Copies // provides any other body that the caller's code makes
	begun  bool    // an attempt may have read the caller's body in memory
}

// Open prepares the body of req for several attempts, or for one alone. Of a stream, p keeps up to
// limit bytes.
func (p *Payload) Open(req *http.Request, alone bool, limit int64) {
	switch {
	case p.Kind == Once && !alone:
		p.Once = Open(req, max(0, limit))
	case p.Kind >= Gotten:
		p.copies = NewCopies(req, alone)
	}
}

// Attach gives req, which is that of an attempt, its body. It reports whether the body is code of
// the caller's, which must not outlive the attempt.
func (p *Payload) Attach(req *http.Request, idempotent bool) (foreign bool) {
	switch {
	case p.copies != nil:
		p.copies.Give(req)
	case p.Once != nil:
		p.Once.Give(req)
		// With a GetBody, net/http repeats the request by itself, even if the
		// server might then process it twice.
		if idempotent && p.Once.Always() {
			req.GetBody = p.Once.GetBody
		}
	case p.begun:
		// It is net/http's own, and can't fail.
		req.Body, _ = req.GetBody()
	}
	_, memory := body.InMemory(req.Body)
	return p.Kind >= Gotten && !memory
}

// InUse reports whether the base may still need the body of the last attempt, which ends
// with the response.
func (p *Payload) InUse() bool { return p.copies != nil && p.copies.InUse() }

// AtFault reports whether the body caused the failure of the last attempt.
func (p *Payload) AtFault() bool {
	return p.Kind == Unfit || p.Once != nil && p.Once.AtFault() || p.copies != nil && p.copies.AtFault()
}

// MayReplay reports whether a one-shot body can be replayed within the attempt. If
// it reports true, the body stays replayable until the next attempt begins or Close is called.
func (p *Payload) MayReplay() (again bool) {
	if p.Once == nil {
		return false
	}
	again = p.Once.Hold()
	p.Once.Release(again)
	return again
}

// Renew prepares the body of the next attempt of req, for Attach. It may wait for
// most, or until cancel is closed, for the last one to end. If nothing of a body in memory has been
// sent so far, the next attempt gets the caller's own again: a caller whose buffer has been sent
// expects to find it empty.
func (p *Payload) Renew(req *http.Request, unsent bool, cancel <-chan struct{}, most time.Duration) error {
	switch {
	case p.copies != nil:
		if !unsent {
			p.copies.Sent()
		}
		return p.copies.Next(req.Context(), cancel, most)
	case !p.begun && unsent:
		unread, _ := body.InMemory(req.Body)
		p.begun = unread != req.ContentLength
	default:
		p.begun = true
	}
	return nil
}

// Close closes every body of req that nothing else closes. end says how the last attempt has
// ended, and sent whether any of the body may have been sent in it.
func (p *Payload) Close(req *http.Request, end End, sent bool) {
	switch {
	case p.Once != nil:
		p.Once.Seal(end)
	case p.copies != nil:
		if sent {
			p.copies.Sent()
		}
		p.copies.Close(end == Abandoned)
	case end == Abandoned:
		body.CloseRequest(req)
	}
}
