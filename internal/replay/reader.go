// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"io"

	"github.com/retrip/retrip/internal/body"
)

// reader is the body of one attempt.
type reader struct {
	replay  *Body
	section *io.SectionReader
	read    int64         // bytes read of the section
	pos     int           // position in the kept part of a stream
	begun   bool          // replay.mu guards this field and those below
	over    bool          // superseded
	closed  bool          // superseded, or closed by the base
	late    bool          // read after the base has closed it
	gone    chan struct{} // closed when nothing more can be read
}

// end makes b return no more bytes. The caller holds the replay's lock.
func (b *reader) end() {
	if !b.closed || b.late {
		b.closed, b.late = true, false
		close(b.gone)
	}
}

// dead reports whether b returns no more bytes. The caller holds the replay's
// lock.
func (b *reader) dead() bool { return b.closed && !b.late }

// begin returns a channel that is closed when nothing more can be read.
//
// When a connection turns out to be unusable for a request, net/http's HTTP/2
// closes the request body and then passes the same body to another connection.
// So a reader that was closed before it was read may still be read, until no
// attempt follows: nobody will close it again.
func (b *reader) begin() <-chan struct{} {
	r := b.replay
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.closed && !b.begun && !b.over && !r.sealed {
		b.late, b.gone = true, make(chan struct{})
	}
	b.begun = true
	return b.gone
}

func (b *reader) Read(p []byte) (int, error) {
	gone := b.begin()
	if b.section != nil {
		select {
		case <-gone:
			return 0, errSuperseded
		default:
			return b.readSection(p)
		}
	}
	if len(p) == 0 {
		return 0, nil
	}
	r := b.replay
	if n, err, done := b.readKept(p); done {
		return n, err
	}
	select {
	case <-r.turn:
		defer func() { r.turn <- struct{}{} }()
	case <-gone:
		return 0, errSuperseded
	}
	// The previous attempt may have read on until it passed the turn.
	if n, err, done := b.readKept(p); done {
		return n, err
	}
	p, ok := b.claim(p)
	if !ok {
		return 0, errSuperseded
	}
	n, err := r.req.Body.Read(p)
	return b.keep(p, n, err)
}

func (b *reader) readSection(p []byte) (int, error) {
	n, err := b.section.Read(p)
	b.read += int64(n)
	if body.AtFault(b.replay.req.ContentLength, b.read, err) {
		b.replay.fault.Store(true)
	}
	return n, err
}

// readKept reads from the kept data, or returns the end of the stream behind
// it.
func (b *reader) readKept(p []byte) (n int, err error, done bool) {
	r := b.replay
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case b.dead():
		return 0, errSuperseded, true
	case b.pos < len(r.kept):
		n = copy(p, r.kept[b.pos:])
		b.pos += n
		return n, nil, true
	case r.ended != nil:
		return 0, r.ended, true
	}
	return 0, nil, false
}

// claim announces a read of the caller's body. It shortens p so that the bytes
// read are either kept entirely or not at all.
func (b *reader) claim(p []byte) ([]byte, bool) {
	r := b.replay
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.dead() {
		return nil, false
	}
	if r.sealed {
		// No replay will ever need the data.
		r.kept, r.spilled = nil, true
	}
	if !r.spilled {
		if room := r.limit - int64(len(r.kept)); room > 0 {
			p = p[:min(int64(len(p)), room)]
		} else {
			r.spilling = true
		}
	}
	return p, true
}

// keep stores the bytes of a claimed read. They stay readable for a later
// attempt even if this attempt has been superseded meanwhile.
func (b *reader) keep(p []byte, n int, err error) (int, error) {
	r := b.replay
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.spilling:
		r.spilling = false
		if n > 0 {
			r.kept, r.spilled = nil, true
		}
	case !r.spilled:
		r.kept = append(r.kept, p[:n]...)
		b.pos += n
	}
	r.read += int64(n)
	if err != nil {
		r.ended = err
	}
	if body.AtFault(r.req.ContentLength, r.read, err) {
		r.fault.Store(true)
	}
	if b.dead() {
		return 0, errSuperseded
	}
	return n, err
}

// Close ends the attempt's use of the body.
func (b *reader) Close() error {
	r := b.replay
	r.mu.Lock()
	b.end()
	done := r.done()
	r.mu.Unlock()
	if done {
		return r.req.Body.Close()
	}
	return nil
}
