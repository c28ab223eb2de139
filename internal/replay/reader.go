// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"io"
	"maps"
	"net/http"

	"github.com/retrip/retrip/internal/body"
)

// reader is the body of one attempt. The fields from read on are guarded by
// replay.mu, which the callers of finished, dropped, passed, end and room hold.
type reader struct {
	replay  *Body
	section *io.SectionReader
	trailer http.Header // of the attempt; nil if there are none
	pos     int         // position in the kept part of a stream
	read    int64       // bytes read of the section
	begun   bool
	copied  bool    // came from GetBody
	dead    bool    // superseded, or closed by the base: it returns no more bytes
	again   bool    // closed before it was read, but may still be read
	beside  *reader // an older reader of the same attempt, of which this is a copy
	whole   bool    // has returned its end
}

// finished reports whether the base needs neither b nor the readers beside it
// any more.
func (b *reader) finished() bool {
	alone := b.beside == nil
	for ; b != nil; b = b.beside {
		switch {
		case b.dead, b.again && !b.passed(), b.dropped():
		case b.whole && !alone:
			// The base may forget to close one of several readers that it has
			// read to the end, because the copy of a body in memory needs no
			// Close.
		default:
			return false
		}
	}
	return true
}

// dropped reports whether b is a copy that the base has dropped unread and
// unclosed. net/http's HTTP/2 takes a copy before it waits for another send, and
// drops it if the request ends meanwhile, or if there is no connection. After a
// response, the base may still begin with its latest copy.
func (b *reader) dropped() bool {
	r := b.replay
	return r.sealed && b.copied && !b.begun && (r.failed || b != r.current)
}

// passed reports whether the base may still read b to its end, after a response,
// although it has closed it.
func (b *reader) passed() bool { return b.replay.sealed && b.again && !b.whole }

// end makes b return no more bytes.
func (b *reader) end() {
	if !b.dead {
		b.dead, b.again = true, false
		b.replay.wake()
	}
}

func (b *reader) Read(p []byte) (n int, err error) {
	read := b.readStream
	if b.section != nil {
		read = b.readSection
	}
	if n, err = read(p); err != nil {
		b.ended(err)
	}
	return n, err
}

// ended closes the caller's body if the base has closed b before, and nobody
// needs it any more.
func (b *reader) ended(err error) {
	r := b.replay
	r.mu.Lock()
	if err == io.EOF && b.trailer != nil {
		// The caller's code has set them by now, in the caller's own map.
		maps.Copy(b.trailer, r.req.Trailer)
	}
	done := b.again && r.done()
	r.mu.Unlock()
	if done {
		r.req.Body.Close()
	}
}

func (b *reader) readStream(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	p, n, err = b.claim(p)
	if p == nil {
		return n, err
	}
	returned := false
	defer func() {
		if !returned {
			_, _ = b.keep(p, 0, errPanicked)
		}
	}()
	n, err = b.replay.req.Body.Read(p)
	returned = true
	return b.keep(p, n, err)
}

func (b *reader) readSection(p []byte) (int, error) {
	r := b.replay
	r.mu.Lock()
	b.begun = true
	dead := b.dead
	r.mu.Unlock()
	if dead {
		return 0, errSuperseded
	}
	n, err := b.section.Read(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.dead {
		return 0, errSuperseded
	}
	b.read += int64(n)
	if n > 0 {
		r.pos = b.read
	}
	if r.least = max(r.least, b.read); err == io.EOF && b.read < r.least {
		err = errShorter // the file has been cut meanwhile
	}
	b.whole = b.whole || err != nil
	if body.AtFault(r.req.ContentLength, b.read, err) {
		r.fault.Store(true)
	}
	if r.sealed {
		r.place()
	}
	return n, err
}

// claim reads from the kept bytes, or the end of the stream after them. If there
// is neither, it announces a read of the caller's body and returns what to read
// into: p, shortened so that the bytes read are either kept entirely or not at
// all.
func (b *reader) claim(p []byte) (into []byte, n int, err error) {
	r := b.replay
	r.mu.Lock()
	defer r.mu.Unlock()
	b.begun = true
	for !b.dead {
		switch {
		case b.pos < r.kept.len:
			n = r.kept.read(p, b.pos)
			b.pos += n
			return nil, n, nil
		case r.spilled && r.last != b:
			return nil, 0, errNotKept
		case r.ended != nil:
			b.whole = true
			return nil, 0, r.ended
		case !r.reading:
			return b.room(p), 0, nil
		}
		// An earlier attempt is still reading.
		r.await()
	}
	return nil, 0, errSuperseded
}

// room announces a read of the caller's body into p, and shortens p.
func (b *reader) room(p []byte) []byte {
	r := b.replay
	r.reading, r.last = true, b
	if r.sealed && b.beside == nil && r.current == b {
		// Neither a replay nor a copy will ever need the data.
		r.drop()
	}
	if r.spilled {
		return p
	}
	if room := r.limit - int64(r.kept.len); room > 0 {
		return p[:min(int64(len(p)), room)]
	}
	r.spilling = true
	return p
}

// keep stores the bytes of a claimed read. They stay readable for a later
// attempt even if this attempt has been superseded meanwhile.
func (b *reader) keep(p []byte, n int, err error) (int, error) {
	r := b.replay
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reading = false
	r.unstick()
	r.wake()
	switch {
	case r.spilling:
		r.spilling = false
		if n > 0 {
			r.drop()
		}
	case !r.spilled:
		r.kept.add(p[:n])
		b.pos += n
	}
	r.read += int64(n)
	if err != nil {
		r.ended, b.whole = err, true
	}
	// What a body returns after its Close doesn't matter.
	if body.AtFault(r.req.ContentLength, r.read, err) && !r.closed {
		r.fault.Store(true)
	}
	if b.dead {
		return 0, errSuperseded
	}
	return n, err
}

// Close ends the attempt's use of the body. When a connection turns out to be
// unusable for a request, net/http's HTTP/2 closes the request body and then
// passes the same body to another connection. So a reader that is closed before
// it is read may still be read, even after the response, and net/http doesn't
// close it again.
func (b *reader) Close() error {
	r := b.replay
	r.mu.Lock()
	if r.reading && r.last == b && !b.dead { // else the base at work isn't the one that closes it
		r.unblock()
	}
	if b.begun || b.dead || r.sealed {
		b.end()
	} else {
		b.again = true
	}
	done := r.done()
	r.mu.Unlock()
	if done {
		// The base has what it needs, whatever Close returns.
		_ = r.req.Body.Close()
	}
	return nil
}
