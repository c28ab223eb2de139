// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"io"
	"net/http"
	"time"
)

// Headers of a refusal. Responses share them, so they must not be modified in
// place.
var (
	refusalNever  = []string{"false"}
	refusalType   = []string{"text/plain; charset=utf-8"}
	refusalLength = []string{"11"}
	refusalClose  = []string{"close"}
)

const refusalBody = "overloaded\n"

const (
	// bodyWait is how long a refusal waits for the rest of the request's body. A
	// body that was sent with its header has come by then, and the connection
	// can be used again.
	bodyWait = 100 * time.Microsecond

	// mostKept is the largest body that is read to keep a connection.
	mostKept = 256 << 10

	// lingerTime is how long the rest of an upload is read after its refusal.
	// Many clients read nothing before they have sent everything. If the
	// connection were closed while they send, the reset would make them lose the
	// refusal, and try again.
	lingerTime = 5 * time.Second

	// mostLingering is how many uploads a Handler reads on at a time, and
	// lingerSize how much of each. net/http waits half a second before it closes
	// the connection of any other refused upload.
	mostLingering = 100
	lingerSize    = 32 << 20
)

// refuse answers r with the 503 of a refusal. It doesn't wait for an upload, as
// net/http would: that reads up to 256 KB of the body before it sends a
// response, unless the connection is to be closed.
func (s *state) refuse(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h["X-Should-Retry"], h["Content-Type"], h["Content-Length"] = refusalNever, refusalType, refusalLength
	unread := hasUnread(r) && !readAll(w, r)
	if unread {
		h["Connection"] = refusalClose
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, refusalBody)
	if unread {
		s.linger(w, r)
	}
}

// hasUnread reports whether r may have a body that net/http would read before
// it answers.
func hasUnread(r *http.Request) bool {
	return r.ProtoMajor == 1 && r.ContentLength != 0 && r.Body != nil
}

// readAll reads the body of r if that takes no time, and reports whether it has
// read it all.
func readAll(w http.ResponseWriter, r *http.Request) bool {
	// A chunked body couldn't be read on after a timeout. To read the body of a
	// client that waits for a 100 would ask for that body.
	if r.ContentLength < 0 || r.ContentLength > mostKept || r.Header["Expect"] != nil || !hasReadDeadline(w) {
		return false
	}
	// A deadline is set only to end the read. One that was set before would also
	// be that of the next request.
	ended := make(chan struct{})
	end := time.AfterFunc(bodyWait, func() {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now())
		close(ended)
	})
	_, err := io.Copy(io.Discard, r.Body)
	if !end.Stop() {
		<-ended
		return false
	}
	return err == nil
}

// linger reads the rest of the body of r after its answer.
func (s *state) linger(w http.ResponseWriter, r *http.Request) {
	if !hasReadDeadline(w) {
		return
	}
	wait := lingerTime
	if s.lingering.Add(1) > mostLingering || http.NewResponseController(w).Flush() != nil {
		wait = 0
	}
	defer s.lingering.Add(-1)
	if http.NewResponseController(w).SetReadDeadline(time.Now().Add(wait)) == nil {
		_, _ = io.CopyN(io.Discard, r.Body, lingerSize)
	}
}

// hasReadDeadline reports whether the read deadline of w can be set.
func hasReadDeadline(w http.ResponseWriter) bool {
	for {
		switch t := w.(type) {
		case interface{ SetReadDeadline(time.Time) error }:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return false
		}
	}
}
