// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bytes"
	"context"
	"io"
	"math"
	"net/http"
	"sync"
)

// Part is a piece of a representation: the body of one response.
type Part struct {
	Body  io.ReadCloser
	Skip  int64 // number of bytes to discard first
	Until int64 // offset after the last useful byte
}

// Source provides the rest of a representation.
type Source interface {
	// Continue returns the part that begins at the given offset, after the
	// previous part ended with err. Its error is the error for the reader. When
	// ctx ends, Continue and a Read of the part's body must return at once.
	Continue(ctx context.Context, at int64, err error) (Part, error)
}

// Joined is a response body that other responses continue when it breaks. One
// goroutine may call Read while another calls Close.
type Joined struct {
	first  io.ReadCloser // the response's own body
	source Source
	ctx    context.Context // of all continuations
	at     int64           // offset of the next byte
	until  int64           // offset after the last byte of the current part
	end    int64           // offset after the last byte of all
	tail   []byte          // the last bytes that the reader got, if keep isn't 0
	keep   int             // how many of them to keep at least
	broken error           // how the current part ended
	err    error           // how everything ended

	mu     sync.Mutex // guards the fields below
	body   io.ReadCloser
	cancel context.CancelFunc // ends the last continuation; nil if there was none
	closed bool
}

// Join prepares j for use as a response body that begins with b, at the offset
// at. If it breaks before the offset end, source continues it, until ctx ends.
// A negative end is unknown; j then ends where b says so.
func (j *Joined) Join(ctx context.Context, b io.ReadCloser, source Source, at, end int64) {
	// The first part is the caller's to judge, even if it is too long.
	j.first, j.body, j.until = b, b, math.MaxInt64
	j.ctx, j.source, j.at, j.end = ctx, source, at, end
}

// Keep makes j remember the last n bytes that its reader gets, for Repeated. It
// must be called before the first Read.
func (j *Joined) Keep(n int) { j.keep = n }

// remember keeps the end of p, which the reader gets.
func (j *Joined) remember(p []byte) {
	if len(p) > j.keep {
		p = p[len(p)-j.keep:]
	}
	if j.tail == nil {
		j.tail = make([]byte, 0, 2*j.keep)
	}
	if len(j.tail)+len(p) > cap(j.tail) {
		// Moving the kept bytes only if the buffer is full makes short Reads cheap.
		j.tail = j.tail[:copy(j.tail, j.tail[len(j.tail)-j.keep:])]
	}
	j.tail = append(j.tail, p...)
}

// Repeated discards the first skip bytes of b, and reports whether the last n of
// them are the last n, at least one, that the reader got. It returns the error
// of b if b ends with them or before.
func (j *Joined) Repeated(b io.Reader, skip, n int64) (bool, error) {
	if n > skip || n > int64(len(j.tail)) {
		return false, nil
	}
	if err := discard(b, skip-n); err != nil {
		return false, err
	}
	p := make([]byte, n)
	if _, err := io.ReadFull(some{b}, p); err != nil {
		return false, unexpected(err)
	}
	return bytes.Equal(p, j.tail[len(j.tail)-len(p):]), nil
}

// Read reads the body and its continuations.
func (j *Joined) Read(p []byte) (int, error) {
	for {
		switch {
		case j.err != nil:
			return 0, j.over()
		case j.broken != nil:
			if err := j.proceed(); err != nil {
				return 0, err
			}
		}
		room := p[:min(int64(len(p)), j.until-j.at)]
		if len(room) == 0 && len(p) > 0 {
			// The part has been read completely.
			j.ended(io.EOF)
			continue
		}
		// Only this goroutine changes j.body.
		n, err := j.body.Read(room)
		if n < 0 || n > len(room) {
			// The number of bytes read is unknown from here on.
			j.finish(errNegative)
			return 0, j.err
		}
		if j.keep > 0 {
			j.remember(room[:n])
		}
		j.at += int64(n)
		if err == nil {
			return n, nil
		}
		if j.ended(err); j.err != nil || n > 0 {
			return n, j.err
		}
	}
}

// over returns the error of a Read after the end.
func (j *Joined) over() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return http.ErrBodyReadAfterClose
	}
	return j.err
}

// ended records that the current part has ended with err.
func (j *Joined) ended(err error) {
	switch {
	case err == errNegative:
		// The number of bytes read is unknown.
		j.finish(err)
	case j.at == j.end, j.end < 0 && err == io.EOF:
		// The reader has all bytes, so an error after them doesn't matter.
		j.finish(io.EOF)
	case j.end >= 0 && j.at > j.end:
		// The body is longer than announced, so its offset in the
		// representation is unknown.
		j.finish(err)
	case err == io.EOF:
		j.broken = io.ErrUnexpectedEOF
	default:
		j.broken = err
	}
}

// finish ends j with err.
func (j *Joined) finish(err error) {
	j.err = err
	// Only this goroutine changes j.cancel.
	if j.cancel != nil {
		j.cancel()
	}
}

// proceed switches to the next part, or returns an error if there is none.
func (j *Joined) proceed() error {
	for j.broken != nil {
		skip, err := j.next()
		if err != nil {
			return err
		}
		j.broken = discard(j.body, skip)
	}
	return nil
}

// next makes the next part current, and returns the number of bytes to discard
// from it.
func (j *Joined) next() (skip int64, err error) {
	ctx, old := j.begin()
	if old == nil {
		return 0, http.ErrBodyReadAfterClose
	}
	// If any of this panics, or Continue reads j itself, j has ended.
	j.err = j.broken
	defer func() {
		if j.err != nil {
			j.cancel()
		}
	}()
	dismiss(old)
	part, err := j.source.Continue(ctx, j.at, j.broken)
	if j.err = err; err != nil {
		return 0, j.over()
	}
	j.mu.Lock()
	closed := j.closed
	if !closed {
		j.body, j.until = part.Body, part.Until
	}
	j.mu.Unlock()
	if closed {
		dismiss(part.Body)
		return 0, http.ErrBodyReadAfterClose
	}
	return part.Skip, nil
}

// begin returns a context for the next part, and the body of the previous one,
// which Close no longer closes. It returns nil if j is closed.
func (j *Joined) begin() (ctx context.Context, old io.ReadCloser) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, nil
	}
	if j.cancel != nil {
		j.cancel()
	}
	ctx, j.cancel = context.WithCancel(j.ctx)
	old, j.body = j.body, http.NoBody
	return ctx, old
}

// discard reads n bytes of r, and drops them.
func discard(r io.Reader, n int64) error {
	_, err := io.CopyN(io.Discard, some{r}, n)
	return unexpected(err)
}

// unexpected returns err, the error of a body that is too short.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Close closes the body and ends a continuation that is in progress.
func (j *Joined) Close() error {
	j.mu.Lock()
	body, cancel := j.body, j.cancel
	j.closed = true
	j.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	return body.Close()
}

// Within reports whether j is b or is inside b.
func (j *Joined) Within(b io.ReadCloser) bool {
	return layer(b, func(b io.ReadCloser) bool { return b == j }) == j
}
