// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package replay provides the body of a request to several attempts: a stream is kept as it is
// read, a file is read again by offset (replay.go, reader.go, kept.go), and others are made again
// (copies.go). Payload chooses (payload.go).
package replay

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/body"
)

// Kind is the way in which a request body can be replayed.
type Kind uint8

const (
	None   Kind = iota // there is no body
	Unfit              // the body is in memory, and not as long as announced: no attempt can send it
	Memory             // the body is in memory, and GetBody is net/http's own
	Gotten             // the caller's own code returns a body, perhaps the one reader again
	Once               // there is one reader: a stream, or a file
)

// KindOf returns how the body of req can be replayed.
func KindOf(req *http.Request) Kind {
	if req.Body == nil || req.Body == http.NoBody { // most requests; inlined
		return None
	}
	return kindOf(req)
}

func kindOf(req *http.Request) Kind {
	unread, memory := body.InMemory(req.Body)
	switch {
	case memory && req.ContentLength > 0 && unread != req.ContentLength:
		return Unfit
	case req.GetBody == nil:
		return Once
	case memory && slices.Contains(ofNetHTTP(), reflect.ValueOf(req.GetBody).Pointer()):
		return Memory
	default:
		return Gotten
	}
}

// ofNetHTTP returns the code of the functions that http.NewRequest sets as GetBody.
var ofNetHTTP = sync.OnceValue(func() (code []uintptr) {
	for _, r := range []io.Reader{bytes.NewBufferString("x"), bytes.NewReader([]byte("x")), strings.NewReader("x")} {
		if req, err := http.NewRequest("", "", r); err == nil {
			code = append(code, reflect.ValueOf(req.GetBody).Pointer())
		}
	}
	return code
})

// Body provides a body of which there is one reader to the attempts of its
// request. Each attempt gets the whole body, byte for byte, or none of it.
type Body struct {
	req *http.Request

	// part is set for a file, or a section of one, which is read by offset, off
	// being the position of the caller's reader. Any other body is a stream, which
	// is kept while it is read.
	part   seekable
	off, n int64

	announced http.Header // the trailers before the first attempt

	// mu is never held while the caller's body is read or closed; a file may be sought.
	// The callers of unexported methods hold it, but for free.
	mu      sync.Mutex
	current *reader
	trailer http.Header   // of the attempt
	first   reader        // the first reader needs no allocation of its own
	sealed  bool          // no further attempt follows
	failed  bool          // the last attempt has failed
	closed  bool          // the caller's body is closed, or about to be
	reading bool          // a reader is reading the caller's body
	change  chan struct{} // closed when reading or a reader ends; nil if nobody waits for that
	using   bool          // the base is at work
	stuck   *time.Timer   // runs free; nil if the base isn't known to wait for a Read

	// What reads by offset leaves the caller's reader where it is, which net/http
	// doesn't. So place moves it.
	pos    int64 // bytes that the last attempt has read of part
	least  int64 // and the most that any attempt has
	placed int64 // the caller's reader is at off + placed

	// The fields below are for streams.
	limit    int64 // bytes to keep
	kept     kept
	read     int64   // bytes read of the caller's body
	spilling bool    // a read is in progress whose bytes would not be kept
	spilled  bool    // bytes were read that were not kept
	ended    error   // how the stream ended, io.EOF included
	last     *reader // the reader that has read the caller's body last

	fault atomic.Bool // the caller's body failed, not the host
}

var errSuperseded = errors.New("retrip: the attempt that this request body belonged to is over")

var errNoBody = errors.New("retrip: Request.GetBody returned neither a body nor an error")

var errPanicked = errors.New("retrip: a Read of the request body has panicked")

var errNotKept = errors.New("retrip: the request body can't be sent again: more of it has been read than Policy.MaxReplayBody")

// Open returns a replayable body for req. If the body is a stream, Body keeps
// up to limit bytes.
func Open(req *http.Request, limit int64) *Body {
	r := &Body{req: req, limit: limit, announced: req.Trailer.Clone()}
	if r.part, r.off, r.n = section(req.Body); r.part == nil && req.ContentLength <= limit {
		r.kept.expect(req.ContentLength)
	}
	return r
}

// seekable is a reader that can also be read by offset.
type seekable interface {
	io.ReaderAt
	io.Seeker
}

// section returns the reader in b, its position and the number of bytes after it, if b
// is a regular file or an io.SectionReader, including one inside an io.NopCloser, in
// which http.NewRequest puts it. Otherwise it returns nil.
func section(b io.ReadCloser) (part seekable, off, n int64) {
	switch reader := body.Unwrap(b).(type) {
	case *os.File:
		if info, err := reader.Stat(); err != nil || !info.Mode().IsRegular() {
			return nil, 0, 0
		}
		// To the end of the file at that time, as a read would.
		part, n = reader, math.MaxInt64
	case *io.SectionReader:
		part, n = reader, reader.Size()
	default:
		return nil, 0, 0
	}
	off, err := part.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, 0, 0
	}
	return part, off, max(0, n-off)
}

// place moves the caller's reader to where the last attempt has read to. If it can't be
// moved, it is closed.
func (r *Body) place() {
	if r.part != nil && r.placed != r.pos {
		r.placed = r.pos
		_, _ = r.part.Seek(r.off+r.pos, io.SeekStart)
	}
}

// Always reports whether the body can be replayed whenever net/http needs it,
// unless the body itself fails. Otherwise GetBody would fail, and net/http
// would return that error instead of the cause.
func (r *Body) Always() bool {
	return r.part != nil || 0 < r.req.ContentLength && r.req.ContentLength < r.limit
}

// GetBody is the GetBody of a derived request. Like net/http, a base calls it
// when it has closed the previous reader. If it hasn't, because it signs what it
// sends, for example, it gets a copy beside that reader.
func (r *Body) GetBody() (io.ReadCloser, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.replayable() {
		return nil, errNotKept
	}
	b := r.current
	if b == nil || b.finished() {
		again := r.newReader()
		again.copied = true
		return again, nil
	}
	copied := r.open(new(reader))
	copied.beside, copied.copied = b, true
	return copied, nil
}

// Reader returns a reader of the whole body for an attempt. The decision to
// make the attempt has already established that the body can be replayed. If a
// read that the previous attempt left in progress has failed since, the reader
// returns that failure at the same position: a request must never be sent with
// a truncated body.
func (r *Body) Reader() io.ReadCloser {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pos = 0
	return r.newReader()
}

// Give gives req, the request of a use of the base, a reader, and trailers of its own.
func (r *Body) Give(req *http.Request) {
	r.mu.Lock()
	r.using = true
	r.trailer = r.announced.Clone()
	req.Trailer = r.trailer
	r.mu.Unlock()
	req.Body = r.Reader()
}

// newReader returns a reader of the whole body for one use of the base, which
// must close it. The previous reader, if any, returns no more bytes.
func (r *Body) newReader() *reader {
	r.supersede()
	b := &r.first
	if b.replay != nil {
		b = new(reader)
	}
	return r.open(b)
}

// open makes b the current reader.
func (r *Body) open(b *reader) *reader {
	b.replay, b.trailer = r, r.trailer
	if r.part != nil {
		b.section = io.NewSectionReader(r.part, r.off, r.n)
	}
	r.current = b
	return b
}

// Hold reports whether the body can be replayed, and keeps r locked until the
// caller has decided about another attempt and calls Release.
func (r *Body) Hold() (replayable bool) {
	if r.part != nil {
		return true
	}
	r.mu.Lock()
	return r.replayable()
}

// Release ends Hold. If again is true, the answer of Hold stays true until the
// next attempt.
func (r *Body) Release(again bool) {
	if r.part != nil {
		return
	}
	if again {
		r.supersede()
	}
	r.mu.Unlock()
}

func (r *Body) replayable() bool {
	return !r.spilled && !r.spilling && (r.ended == nil || r.ended == io.EOF)
}

// supersede ends the current reader, and those beside it.
func (r *Body) supersede() {
	for b := r.current; b != nil; b = b.beside {
		b.end()
	}
}

// End is how the last attempt has ended.
type End uint8

const (
	Answered  End = iota // the base may still begin to read the body
	Refused              // so that the base reads no reader that it has closed
	Failed               // so that the base reads nothing any more
	Abandoned            // so that no attempt will close a reader
)

// Seal declares that no further attempt follows. It moves the caller's reader to
// where the last attempt has read to; later reads of the base move it on. The
// caller's body is closed as soon as the last attempt has closed its readers,
// except for copies that it has dropped.
//
// If Seal reports true, the base may still be about to read a reader that it has
// closed, and won't close it again. Then Cut must follow.
func (r *Body) Seal(how End) (passed bool) {
	r.mu.Lock()
	r.sealed, r.failed = true, how >= Failed
	if how == Abandoned {
		r.supersede()
	}
	for b := r.current; b != nil; b = b.beside {
		// Only a base without copies passes a closed body on.
		if b.again && (how >= Refused || !b.begun && (b.copied || b != r.current)) {
			b.end()
		}
		passed = passed || b.passed()
	}
	r.place()
	done, reading := r.done(), r.reading
	r.unstick()
	r.mu.Unlock()
	switch {
	case !done:
	case reading:
		// A superseded attempt is still reading. Closing the body of a server's
		// request blocks until that read ends, and RoundTrip must return.
		go body.CloseAside(r.req.Body)
	case r.part != nil:
		r.req.Body.Close()
	default:
		body.CloseSoon(r.req.Body)
	}
	return passed
}

// Cut declares that the response is over, and with it the request.
func (r *Body) Cut() { r.Seal(Abandoned) }

// done reports, once, that nobody will read the caller's body any more: it has ended, and
// what it had is kept, or no attempt needs it. Then the kept bytes are released, because
// the reader lives as long as the response.
func (r *Body) done() bool {
	over := r.sealed && (r.current == nil || r.current.finished())
	if over {
		r.drop()
		for b := r.current; b != nil; b = b.beside {
			b.end()
		}
	}
	if r.closed || !over && r.ended == nil {
		return false
	}
	r.closed = true
	return true
}

// unblock is for a base that closes a reader during a Read of it. net/http's HTTP/2 then waits
// for the end of the Read. Perhaps only a Close brings that, as of a pipe whose writer waits for
// the response. So the caller's body is closed, and not sent again, if the base is still at work
// after [body.DrainTime].
func (r *Body) unblock() {
	if r.using && r.stuck == nil {
		r.stuck = time.AfterFunc(body.DrainTime, r.free)
	}
}

// free closes the caller's body, unless the Read or the base has returned.
func (r *Body) free() {
	r.mu.Lock()
	closes := r.stuck != nil && !r.closed
	if closes {
		r.closed = true
		r.drop()
	}
	r.mu.Unlock()
	if closes {
		body.CloseAside(r.req.Body)
	}
}

// unstick records that the base doesn't wait for a Read.
func (r *Body) unstick() {
	if r.stuck != nil {
		r.stuck.Stop()
		r.stuck = nil
	}
}

// Returned declares that the base has returned. It may still be reading.
func (r *Body) Returned() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.using = false
	r.unstick()
}

// drop releases the kept bytes: the body can't be sent again.
func (r *Body) drop() {
	r.kept.free()
	r.spilled = true
}

// await waits until wake is called. It releases mu meanwhile.
func (r *Body) await() {
	if r.change == nil {
		r.change = make(chan struct{})
	}
	change := r.change
	r.mu.Unlock()
	<-change
	r.mu.Lock()
}

// wake wakes the readers that wait.
func (r *Body) wake() {
	if r.change != nil {
		close(r.change)
		r.change = nil
	}
}

// AtFault reports whether the caller's body caused the failure, and not the
// host.
func (r *Body) AtFault() bool { return r.fault.Load() }
