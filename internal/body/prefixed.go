// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"errors"
	"io"
	"sync/atomic"
)

// Prefixed is a body of which some bytes have been read ahead. Its Read returns
// those bytes first. Then it returns the error that ended the reading ahead, if
// there was one, or the rest of the body.
type Prefixed struct {
	io.ReadCloser        // the rest
	ahead         []byte // bytes read ahead that Read has not returned yet
	err           error
	closed        atomic.Bool
}

// firstBuffer is how much is read ahead at first. The buffer grows as bytes
// arrive: an announced length must not allocate memory.
const firstBuffer = 4 << 10

// Ahead reads up to n bytes of body ahead, or fewer if body ends earlier. It
// returns a body that begins with them. length is the length of body, or
// negative if it is unknown.
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
		// One more byte reveals the end.
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

// Bytes returns the bytes read ahead that Read has not returned yet. They must
// not be changed, and are valid until the next Read.
func (b *Prefixed) Bytes() []byte { return b.ahead }

// Err returns the error that ended the reading ahead, or [io.EOF] at the end of
// the body. It returns nil if there is more to read.
func (b *Prefixed) Err() error { return b.err }

// SetErr replaces the error that ended the reading ahead.
func (b *Prefixed) SetErr(err error) { b.err = err }

// Read returns the bytes read ahead, then the rest of the body.
func (b *Prefixed) Read(p []byte) (int, error) {
	switch {
	case b.closed.Load():
		// The body below decides what a Read after Close returns.
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
