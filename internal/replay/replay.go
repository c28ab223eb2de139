// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package replay hands a request body that can be had only once to the attempts
// of its request.
package replay

import (
	"errors"
	"io"
	"math"
	"net/http"
	"os"
	"sync"
	"sync/atomic"

	"github.com/retrip/retrip/internal/body"
)

// Body hands a body that can be had only once to the attempts of its request,
// to each one from the start and byte for byte, or not at all.
type Body struct {
	req *http.Request

	// Of a file, or a section of one: what to read by offset, from where the
	// caller's reader stood. Anything else is kept while it streams.
	section bool
	at      io.ReaderAt
	off, n  int64

	mu      sync.Mutex // never held while the caller's body is read or closed
	current *reader
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

var ErrNoBody = errors.New("retrip: Request.GetBody returned neither a body nor an error")

var errNotKept = errors.New("retrip: the request body can't be sent again: more of it has been read than Policy.MaxReplayBody")

// Open makes the body of req one that can be had again, keeping up to
// limit bytes if it is a stream.
func Open(req *http.Request, limit int64) *Body {
	r := &Body{req: req, limit: limit, turn: make(chan struct{}, 1)}
	r.at, r.off, r.n, r.section = section(req.Body)
	r.turn <- struct{}{}
	return r
}

// section returns what a body reads by offset, if it does: the rest of a
// regular file or of an io.SectionReader, also inside an io.NopCloser, where
// http.NewRequest puts it.
func section(b io.ReadCloser) (at io.ReaderAt, off, n int64, ok bool) {
	switch reader := body.Unwrap(b).(type) {
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

// Always reports whether the body can be sent again whenever net/http asks for
// it, unless the body itself fails. GetBody would fail otherwise, and net/http
// would return its error instead of the cause.
func (r *Body) Always() bool {
	return r.section || 0 < r.req.ContentLength && r.req.ContentLength < r.limit
}

// GetBody is the GetBody of a request that was derived.
func (r *Body) GetBody() (io.ReadCloser, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.replayable() {
		return nil, errNotKept
	}
	return r.newReader(), nil
}

// Reader returns a reader of the whole body for an attempt. That it can be had
// again was asked before the attempt was decided on. If the read that the
// attempt before it left under way has failed since, the reader meets that
// failure where it happened: a request must never go out with less of a body.
func (r *Body) Reader() io.ReadCloser {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.newReader()
}

// newReader returns a reader of the whole body for a use of the base, which
// must close it. The one before it, if any, yields no more bytes. r is locked.
func (r *Body) newReader() *reader {
	r.supersede()
	b := &reader{replay: r, gone: make(chan struct{})}
	if r.section {
		b.section = io.NewSectionReader(r.at, r.off, r.n)
	}
	r.current = b
	return b
}

// Decide tells f whether the body can be sent again, and holds that true until
// the next attempt if f answers that it will be. The lock is held meanwhile:
// f must only decide.
func (r *Body) Decide(f func(replayable bool) (again bool)) {
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

func (r *Body) replayable() bool {
	return !r.spilled && !r.spilling && (r.ended == nil || r.ended == io.EOF)
}

func (r *Body) supersede() {
	if b := r.current; b != nil {
		b.over = true
		b.end()
	}
}

// Seal says that no further attempt follows. The caller's body is closed as
// soon as the last attempt has closed what it was given; at once, if abandon
// says that no attempt will.
func (r *Body) Seal(abandon bool) {
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
		go body.CloseAside(r.req.Body)
	}
}

// done reports, once, that nobody will read the body any more, and lets go of
// what was kept of it: the reader lives as long as the response. r is locked.
func (r *Body) done() bool {
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

// AtFault reports whether the caller's body is at fault, and not the host.
func (r *Body) AtFault() bool { return r.fault.Load() }
