// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package body hands the bodies of responses on to those who read them: bytes
// that were read ahead, bodies that must make progress, and bodies that another
// response continues.
package body

import (
	"errors"
	"io"
	"sync/atomic"
)

// Prefixed is a body of which some bytes have been read ahead. It gives them
// first, then the error that ended the reading ahead, if there was one, or the
// rest.
type Prefixed struct {
	io.ReadCloser        // the rest
	ahead         []byte // not yet given
	err           error
	closed        atomic.Bool
}

// firstBuffer is how much is read ahead at first. More is asked for as bytes
// arrive: a length that a server announces is no reason to take memory.
const firstBuffer = 4 << 10

// Ahead reads up to n bytes of body ahead, fewer only if body ends before, and
// returns a body that begins with them. length is what is known of the length of
// body, negative if nothing is.
func Ahead(body io.ReadCloser, n, length int64) *Prefixed {
	b, ok := body.(*Prefixed)
	if !ok {
		b = &Prefixed{ReadCloser: body}
	}
	if b.err != nil || int64(len(b.ahead)) >= n {
		return b
	}
	size := int64(firstBuffer)
	if length >= 0 {
		// One byte more, to see the end.
		size = min(size, length+1)
	}
	if int64(cap(b.ahead)) < min(size, n) {
		b.ahead = append(make([]byte, 0, min(size, n)), b.ahead...)
	}
	for int64(len(b.ahead)) < n && b.err == nil {
		if len(b.ahead) == cap(b.ahead) {
			b.ahead = append(b.ahead, 0)[:len(b.ahead)]
		}
		free := b.ahead[len(b.ahead):cap(b.ahead)]
		free = free[:min(int64(len(free)), n-int64(len(b.ahead)))]
		m, err := readSome(b.ReadCloser, free)
		b.ahead = b.ahead[:len(b.ahead)+m]
		b.err = err
	}
	return b
}

// errNegative is what a Reader deserves that says it has read less than
// nothing, or more than there was room for.
var errNegative = errors.New("retrip: the body's Read returned a wrong count")

// patience is after how many Reads in a row that give neither bytes nor an
// error a body is given up.
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

// Bytes returns what has been read ahead and not yet given. It must not be
// changed, and holds until the next Read.
func (b *Prefixed) Bytes() []byte { return b.ahead }

// Err returns the error that ended the reading ahead, [io.EOF] at the end of the
// body; nil if there is more.
func (b *Prefixed) Err() error { return b.err }

// PrefixedOf returns the Prefixed that b is, or that it releases; nil if there is
// none.
func PrefixedOf(b io.ReadCloser) *Prefixed {
	if r, ok := b.(*Releasing); ok {
		b = r.ReadCloser
	}
	p, _ := b.(*Prefixed)
	return p
}

// SetErr replaces the error that ended the reading ahead.
func (b *Prefixed) SetErr(err error) { b.err = err }

// Read gives what was read ahead, then the rest.
func (b *Prefixed) Read(p []byte) (int, error) {
	switch {
	case b.closed.Load():
		// What the body below says to that.
		return b.ReadCloser.Read(p)
	case len(b.ahead) > 0:
		n := copy(p, b.ahead)
		b.ahead = b.ahead[n:]
		if len(b.ahead) == 0 {
			b.ahead = nil
			if b.err == io.EOF {
				return n, io.EOF
			}
		}
		return n, nil
	case b.err != nil:
		return 0, b.err
	default:
		return b.ReadCloser.Read(p)
	}
}

// Close closes the body.
func (b *Prefixed) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}
