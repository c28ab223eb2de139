// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"io"
	"sync/atomic"
)

// AtFault reports whether a request body is at fault after n bytes were read
// from it, the last ones with err. The declared length is unknown if it is not
// positive.
func AtFault(length, n int64, err error) bool {
	switch {
	case err != nil && err != io.EOF:
		return true
	case length <= 0:
		return false
	default:
		return n > length || err == io.EOF && n < length
	}
}

// Ending is a request body that knows whether it has been read to its end.
type Ending struct {
	io.ReadCloser
	length int64 // unknown if not positive
	n      int64
	begun  atomic.Bool
	ended  atomic.Bool
	before *Ending // an earlier body of the same request; nil if there is none
}

// WatchEnd returns b as a body that knows whether it, and the body before it if
// there is one, have been read to their end. If length is positive, the end
// comes after that many bytes.
func WatchEnd(b io.ReadCloser, length int64, before *Ending) *Ending {
	return &Ending{ReadCloser: b, length: length, before: before}
}

// Ended reports whether nobody reads b, or a body before it, any more. A copy
// that nobody had begun to read when a later one was made has been dropped.
func (b *Ending) Ended() bool {
	latest := b
	for ; b != nil; b = b.before {
		dropped := b != latest && b.before != nil && !b.begun.Load()
		if !b.ended.Load() && !dropped {
			return false
		}
	}
	return true
}

func (b *Ending) Read(p []byte) (int, error) {
	b.begun.Store(true)
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	if err != nil || b.length > 0 && b.n >= b.length {
		b.ended.Store(true)
	}
	return n, err
}

func (b *Ending) Close() error {
	b.ended.Store(true)
	return b.ReadCloser.Close()
}
