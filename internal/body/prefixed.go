// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"
)

// Prefixed is a body of which some bytes have been read ahead. Its Read returns
// those bytes first. Then it returns the error that ended the reading ahead, if
// there was one, or the rest of the body. One goroutine may call Read while
// another calls Close.
type Prefixed struct {
	io.ReadCloser           // the rest
	ahead         [][]byte  // bytes read ahead that Read has not returned yet
	first         [1][]byte // backs ahead, which mostly is a single buffer
	n             int64     // number of those bytes
	err           error
	late          *lateRead                // a Read whose end nobody has awaited; nil if there is none
	reading       atomic.Pointer[lateRead] // late, while it is in progress
	closed        atomic.Bool
	source        *http.Response // whose trailers a late Read may set; nil if there was none
	apart         *http.Response // a copy of source from before the first late Read
	context       Cutter         // of the attempt; nil if it has none of its own
}

const (
	// firstBuffer is how much is read ahead at first if the length of the body is
	// unknown.
	firstBuffer = 4 << 10

	// mostTrust is the largest buffer that an announced length gets before its
	// bytes arrive.
	mostTrust = 64 << 10
)

// Ahead reads n bytes of body ahead, or fewer if body is shorter or breaks. It
// returns a body that begins with them. length is the announced length of body,
// unknown if it is not positive. Ahead doesn't wait for the end of a body that
// has arrived completely.
func Ahead(body io.ReadCloser, n, length int64) *Prefixed {
	b := prefixed(body)
	n = most(n, length)
	for b.n < n && b.err == nil {
		b.fill(n, length)
	}
	return b
}

// AheadSoon is Ahead for the body of resp, whose bytes may take long to arrive. If
// the length is unknown, AheadSoon waits for the first bytes, and at most for the
// time more after them. A Read may still be in progress then; see [Apart].
func AheadSoon(resp *http.Response, n int64, more time.Duration) *Prefixed {
	b, length := prefixed(resp.Body), resp.ContentLength
	n = most(n, length)
	for b.n < n && b.err == nil && (length > 0 || b.n == 0) {
		b.fill(n, length)
	}
	if b.n >= n || b.err != nil {
		return b
	}
	timer := time.NewTimer(more)
	defer timer.Stop()
	for b.n < n && b.err == nil {
		if b.late == nil {
			if b.apart == nil {
				b.source, b.apart = resp, new(*resp)
				b.apart.Trailer = maps.Clone(resp.Trailer)
			}
			b.late = b.readLate(n)
		}
		select {
		case <-b.late.ended:
			b.absorb()
		case <-timer.C:
			b.watch(false)
			return b
		}
	}
	return b
}

// Apart returns resp, or a copy if AheadSoon has left a Read of its body in
// progress: net/http sets the trailers of resp in that Read, while the caller may
// look at those that resp announces. The copy gets them at the end of its body.
// context is that of the attempt, whose end ends the Read, or nil.
func Apart(resp *http.Response, context Cutter) *http.Response {
	b, ok := resp.Body.(*Prefixed)
	if !ok || b.late == nil {
		return resp
	}
	b.context = context
	if b.source != resp {
		return resp
	}
	b.apart.Body = b
	return b.apart
}

func prefixed(body io.ReadCloser) *Prefixed {
	if b, ok := body.(*Prefixed); ok {
		return b
	}
	return &Prefixed{ReadCloser: body}
}

// most returns n, or the length of a body if that is known to be less.
func most(n, length int64) int64 {
	if length > 0 {
		return min(n, length)
	}
	return n
}

// fill reads once, towards a total of n bytes. An announced length allocates what
// it says, within limits. Other buffers grow as bytes arrive, without copying
// what has arrived.
func (b *Prefixed) fill(n, length int64) {
	if b.late != nil {
		b.await()
		return
	}
	if b.room() == 0 {
		size := max(firstBuffer, b.n)
		if length > 0 {
			size = max(mostTrust, b.n)
		}
		b.add(make([]byte, 0, min(size, n-b.n)))
	}
	last := &b.ahead[len(b.ahead)-1]
	free := (*last)[len(*last):cap(*last)]
	m, err := readSome(b.ReadCloser, free[:min(int64(len(free)), n-b.n)])
	*last = (*last)[:len(*last)+m]
	b.n += int64(m)
	b.err = err
}

// room returns how many bytes the last buffer still has room for.
func (b *Prefixed) room() int {
	if len(b.ahead) == 0 {
		return 0
	}
	last := b.ahead[len(b.ahead)-1]
	return cap(last) - len(last)
}

// add appends a buffer.
func (b *Prefixed) add(p []byte) {
	if b.ahead == nil {
		b.ahead = b.first[:0]
	}
	b.ahead = append(b.ahead, p)
}

// lateRead is a Read in a goroutine of its own. Its results are valid once ended
// is closed.
type lateRead struct {
	ended    chan struct{}
	got      []byte
	err      error
	panicked any
}

// readLate begins a Read towards a total of n bytes. It ends when bytes arrive,
// or when the body ends or is closed.
func (b *Prefixed) readLate(n int64) *lateRead {
	r := &lateRead{ended: make(chan struct{}), got: make([]byte, min(n-b.n, firstBuffer))}
	b.reading.Store(r)
	go func() {
		defer close(r.ended)
		defer b.reading.Store(nil)
		defer func() { r.panicked = recover() }()
		var m int
		m, r.err = readSome(b.ReadCloser, r.got)
		r.got = r.got[:m]
	}()
	return r
}

// await waits for the late Read, which must make progress from here on.
func (b *Prefixed) await() {
	b.watch(true)
	<-b.late.ended
	b.absorb()
}

// absorb takes over the results of the late Read, which has ended.
func (b *Prefixed) absorb() {
	r := b.late
	b.late = nil
	rethrow(r.panicked)
	switch {
	case len(r.got) > b.room():
		b.add(r.got)
	case len(r.got) > 0:
		last := &b.ahead[len(b.ahead)-1]
		*last = append(*last, r.got...)
	}
	b.n += int64(len(r.got))
	b.err = r.err
}

// watch says whether somebody waits for a Read, to the body below that must make
// progress, if there is one.
func (b *Prefixed) watch(somebody bool) {
	below := layer(b.ReadCloser, func(b io.ReadCloser) bool {
		_, ok := b.(*Watched)
		return ok
	})
	if w, ok := below.(*Watched); ok {
		w.await(somebody)
	}
}

// errNegative is the error for a Read that reports a negative count, or more
// bytes than the buffer holds.
var errNegative = errors.New("retrip: the body's Read returned a wrong count")

// patience is the number of Reads in a row without bytes and without an error
// after which a body is given up.
const patience = 100

// readSome reads at least one byte, or returns an error.
func readSome(r io.Reader, p []byte) (int, error) {
	for range patience {
		n, err := r.Read(p)
		switch {
		case n < 0 || n > len(p):
			return 0, errNegative
		case n > 0 || err != nil:
			return n, err
		}
	}
	return 0, io.ErrNoProgress
}

// some is a Reader whose Read is readSome.
type some struct{ r io.Reader }

func (s some) Read(p []byte) (int, error) { return readSome(s.r, p) }

// Bytes returns up to n of the bytes read ahead that Read has not returned yet.
// They must not be changed, and are valid until the next Read. Appending to them
// copies them.
func (b *Prefixed) Bytes(n int) []byte {
	if b.n == 0 {
		return nil
	}
	if len(b.ahead) > 1 && len(b.ahead[0]) < n {
		b.first[0] = slices.Concat(b.ahead...)
		b.ahead = b.first[:]
	}
	n = min(n, len(b.ahead[0]))
	return b.ahead[0][:n:n]
}

// Err returns the error that ended the reading ahead, or [io.EOF] at the end of
// the body. It returns nil if there is more to read.
func (b *Prefixed) Err() error { return b.err }

// SetErr replaces the error that ended the reading ahead.
func (b *Prefixed) SetErr(err error) { b.err = err }

// Read returns the bytes read ahead, then the rest of the body.
func (b *Prefixed) Read(p []byte) (int, error) {
	n, err := b.read(p)
	if err == io.EOF && b.apart != nil {
		b.apart.Trailer = b.source.Trailer
	}
	return n, err
}

func (b *Prefixed) read(p []byte) (int, error) {
	switch {
	case b.closed.Load() && b.late != nil:
		return 0, http.ErrBodyReadAfterClose
	case b.closed.Load():
		// The body below decides what a Read after Close returns.
		return b.ReadCloser.Read(p)
	case b.n == 0 && b.late != nil && len(p) > 0:
		b.await()
	}
	switch {
	case b.n > 0:
		return b.take(p)
	case b.err != nil:
		return 0, b.err
	case b.late != nil:
		return 0, nil
	default:
		return b.ReadCloser.Read(p)
	}
}

// take moves bytes read ahead to p.
func (b *Prefixed) take(p []byte) (int, error) {
	n := copy(p, b.ahead[0])
	b.ahead[0] = b.ahead[0][n:]
	b.n -= int64(n)
	if len(b.ahead[0]) == 0 {
		b.ahead[0] = nil // for the garbage collector
		b.ahead = b.ahead[1:]
	}
	if b.n == 0 {
		b.ahead = nil
		if b.err == io.EOF {
			return n, io.EOF
		}
	}
	return n, nil
}

// Close closes the body. It doesn't wait for a Read that is in progress, unless the
// attempt has a context, whose end ends the Read.
func (b *Prefixed) Close() error {
	b.closed.Store(true)
	late := b.reading.Load()
	if late == nil {
		return b.ReadCloser.Close()
	}
	if b.context != nil {
		b.context.Cut()
		Await(late.ended, cutTime, nil, nil)
	}
	dismiss(b.ReadCloser)
	return nil
}

// In reports whether resp, the response to req, has a body to read. After 101 Switching
// Protocols, or a CONNECT that succeeded, it has a connection instead. req may be nil.
func In(req *http.Request, resp *http.Response) bool {
	if resp == nil || resp.Body == nil || resp.Body == http.NoBody || Never(req, resp) {
		return false
	}
	tunnel := req != nil && req.Method == http.MethodConnect && resp.StatusCode/100 == 2
	_, conn := resp.Body.(io.Writer)
	return !conn && !tunnel && resp.StatusCode != http.StatusSwitchingProtocols
}

// Never reports whether resp, the response to req, can't have a body, whatever length it
// announces (RFC 9110 §6.4.1). Over HTTP/2, net/http gives it one that breaks. req may be nil.
func Never(req *http.Request, resp *http.Response) bool {
	switch status := resp.StatusCode; status {
	case http.StatusSwitchingProtocols:
		return false
	case http.StatusNoContent, http.StatusNotModified:
		return true
	default:
		return status/100 == 1 || req != nil && req.Method == http.MethodHead
	}
}
