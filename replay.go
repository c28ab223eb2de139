// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"errors"
	"io"
	"math"
	"net/http"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
)

// replay hands a body that can be had only once to the attempts of its request,
// to each one from the start and byte for byte, or not at all.
type replay struct {
	req *http.Request

	// Of a file, or a section of one: what to read by offset, from where the
	// caller's reader stood. Anything else is kept while it streams.
	section bool
	at      io.ReaderAt
	off, n  int64

	mu      sync.Mutex // never held while the caller's body is read or closed
	current *bodyReader
	sealed  bool          // no further attempt follows
	closed  bool          // the caller's body is closed, or about to be
	turn    chan struct{} // whoever holds it may read the caller's body

	// Of a stream.
	limit    int64 // bytes to keep
	kept     []byte
	read     int64 // bytes read of the caller's body
	spilling bool  // a read is under way that would not be kept
	spilled  bool  // something was read that was not kept
	ended    error // how the stream ended, io.EOF included

	fault atomic.Bool // the caller's body is at fault, and not the host
}

var errSuperseded = errors.New("retrip: the attempt that this request body belonged to is over")

var errNoBody = errors.New("retrip: Request.GetBody returned neither a body nor an error")

var errNotKept = errors.New("retrip: the request body can't be sent again: more of it has been read than Policy.MaxReplayBody")

// openReplay makes the onceBody of req one that can be had again, keeping up to
// limit bytes if it is a stream.
func openReplay(req *http.Request, limit int64) *replay {
	r := &replay{req: req, limit: limit, turn: make(chan struct{}, 1)}
	r.at, r.off, r.n, r.section = section(req.Body)
	r.turn <- struct{}{}
	return r
}

// section returns what a body reads by offset, if it does: the rest of a
// regular file or of an io.SectionReader, also inside an io.NopCloser, where
// http.NewRequest puts it.
func section(body io.ReadCloser) (at io.ReaderAt, off, n int64, ok bool) {
	var reader io.Reader = body
	if t := reflect.TypeOf(body); t == nopCloserType || t == nopCloserWriterToType {
		reader, _ = reflect.ValueOf(body).Field(0).Interface().(io.Reader)
	}
	switch reader := reader.(type) {
	case *os.File:
		info, err := reader.Stat()
		if err != nil || !info.Mode().IsRegular() {
			return nil, 0, 0, false
		}
		off, err = reader.Seek(0, io.SeekCurrent)
		// Up to wherever its end is by then, as reading it would be.
		return reader, off, math.MaxInt64 - off, err == nil
	case *io.SectionReader:
		outer, base, size := reader.Outer()
		pos, err := reader.Seek(0, io.SeekCurrent)
		return outer, base + pos, max(0, size-pos), err == nil
	}
	return nil, 0, 0, false
}

// always reports whether the body can be sent again whenever net/http asks for
// it, unless the body itself fails. GetBody would fail otherwise, and net/http
// would return its error instead of the cause.
func (r *replay) always() bool {
	return r.section || 0 < r.req.ContentLength && r.req.ContentLength < r.limit
}

// getBody is the GetBody of a request that was derived.
func (r *replay) getBody() (io.ReadCloser, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.replayable() {
		return nil, errNotKept
	}
	return r.newReader(), nil
}

// reader returns a reader of the whole body for an attempt. That it can be had
// again was asked before the attempt was decided on. If the read that the
// attempt before it left under way has failed since, the reader meets that
// failure where it happened: a request must never go out with less of a body.
func (r *replay) reader() io.ReadCloser {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.newReader()
}

// newReader returns a reader of the whole body for a use of the base, which
// must close it. The one before it, if any, yields no more bytes. r is locked.
func (r *replay) newReader() *bodyReader {
	r.supersede()
	b := &bodyReader{replay: r, gone: make(chan struct{})}
	if r.section {
		b.section = io.NewSectionReader(r.at, r.off, r.n)
	}
	r.current = b
	return b
}

// decide tells f whether the body can be sent again, and holds that true until
// the next attempt if f answers that it will be. The lock is held meanwhile:
// f must only decide.
func (r *replay) decide(f func(replayable bool) (again bool)) {
	if r.section {
		f(true)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if f(r.replayable()) {
		r.supersede()
	}
}

func (r *replay) replayable() bool {
	return !r.spilled && !r.spilling && (r.ended == nil || r.ended == io.EOF)
}

func (r *replay) supersede() {
	if b := r.current; b != nil {
		b.over = true
		b.end()
	}
}

// seal says that no further attempt follows. The caller's body is closed as
// soon as the last attempt has closed what it was given; at once, if abandon
// says that no attempt will.
func (r *replay) seal(abandon bool) {
	r.mu.Lock()
	r.sealed = true
	if abandon {
		r.supersede()
	}
	done := r.done()
	r.mu.Unlock()
	if !done {
		return
	}
	select {
	case <-r.turn:
		r.req.Body.Close()
	default:
		// An attempt that is over still reads it. To close the body of a
		// server's request takes as long as that, and RoundTrip has to return.
		go closeAside(r.req.Body)
	}
}

// done reports, once, that nobody will read the body any more, and lets go of
// what was kept of it: the reader lives as long as the response. r is locked.
func (r *replay) done() bool {
	if !r.sealed || r.closed || r.current != nil && !r.current.closed {
		return false
	}
	r.closed = true
	r.kept, r.spilled = nil, true
	if r.current != nil {
		r.current.end()
	}
	return true
}

// bodyReader is the body of one attempt.
type bodyReader struct {
	replay  *replay
	section *io.SectionReader
	read    int64         // bytes of the section
	pos     int           // in what is kept of a stream
	begun   bool          // guarded, as what follows, by replay.mu
	over    bool          // superseded
	closed  bool          // superseded, or closed by the base
	late    bool          // read although the base has closed it
	gone    chan struct{} // closed when nothing can be read any more
}

// end makes b yield no more bytes. The replay is locked.
func (b *bodyReader) end() {
	if !b.closed || b.late {
		b.closed, b.late = true, false
		close(b.gone)
	}
}

// dead reports whether b yields no more bytes. The replay is locked.
func (b *bodyReader) dead() bool { return b.closed && !b.late }

// begin returns a channel that is closed when nothing can be read any more.
//
// net/http's HTTP/2 closes the body of a request for which the connection has
// turned out to be unusable, and then hands the same body to another
// connection. So a reader that was closed before anything was read of it may be
// read after all, until no attempt follows: nobody will close it again.
func (b *bodyReader) begin() <-chan struct{} {
	r := b.replay
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.closed && !b.begun && !b.over && !r.sealed {
		b.late, b.gone = true, make(chan struct{})
	}
	b.begun = true
	return b.gone
}

func (b *bodyReader) Read(p []byte) (int, error) {
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
	// An attempt before this one may have read on until it gave the turn back.
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

func (b *bodyReader) readSection(p []byte) (int, error) {
	n, err := b.section.Read(p)
	b.read += int64(n)
	if faulty(b.replay.req.ContentLength, b.read, err) {
		b.replay.fault.Store(true)
	}
	return n, err
}

// readKept reads from what is kept, or the end of the stream behind it.
func (b *bodyReader) readKept(p []byte) (n int, err error, done bool) {
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

// claim announces a read of the caller's body, and shortens p so that what is
// read either is kept whole or not at all.
func (b *bodyReader) claim(p []byte) ([]byte, bool) {
	r := b.replay
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.dead() {
		return nil, false
	}
	if r.sealed {
		// No replay will ever ask for it.
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

// keep takes in what a claimed read has brought. It stays readable for a later
// attempt even if this one was superseded meanwhile.
func (b *bodyReader) keep(p []byte, n int, err error) (int, error) {
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
	if faulty(r.req.ContentLength, r.read, err) {
		r.fault.Store(true)
	}
	if b.dead() {
		return 0, errSuperseded
	}
	return n, err
}

// Close ends the attempt's use of the body.
func (b *bodyReader) Close() error {
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
