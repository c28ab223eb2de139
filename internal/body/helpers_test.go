// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	errReset   = errors.New("connection reset")
	errStalled = errors.New("stalled")
	errRefused = errors.New("refused")
)

// piece is a body that breaks: with an error, or when Cut ends a Read that
// waits.
type piece struct {
	r      io.Reader
	err    error // at the end of r; io.EOF if nil
	hangs  bool  // at the end of r, until Cut
	once   sync.Once
	cut    chan struct{}
	closed atomic.Int32 // number of calls of Close
}

func newPiece(r io.Reader) *piece { return &piece{r: r, cut: make(chan struct{})} }

func pieceOf(text string) *piece { return newPiece(bytes.NewReader([]byte(text))) }

// hanging returns a body that hangs after n bytes.
func hanging(n int) *piece {
	b := newPiece(bytes.NewReader(make([]byte, n)))
	b.hangs = true
	return b
}

func (b *piece) Read(p []byte) (int, error) {
	if b.closed.Load() > 0 {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.r.Read(p)
	if err == io.EOF {
		switch {
		case b.hangs:
			<-b.cut
			err = context.Canceled
		case b.err != nil:
			err = b.err
		}
		if n > 0 && b.hangs {
			err = nil
		}
	}
	return n, err
}

func (b *piece) Close() error {
	b.closed.Add(1)
	b.Cut()
	return nil
}

func (b *piece) Cut() { b.once.Do(func() { close(b.cut) }) }

// wait returns after d, or with an error once b is cut.
func (b *piece) wait(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-b.cut:
		return context.Canceled
	}
}

// reads is a body with a Read of its own.
type reads struct {
	*piece
	read func(p []byte) (int, error)
}

func (b reads) Read(p []byte) (int, error) { return b.read(p) }

// readOne reads a byte.
func readOne(r io.Reader) (int, error) { return r.Read(make([]byte, 1)) }

func randomBytes(random *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(random.Uint32())
	}
	return p
}

func watch(b io.ReadCloser, limit time.Duration, cut Cutter) *Watched {
	return Watch(b, limit, errStalled, cut, &stalls{})
}

// stalls counts stalls.
type stalls struct{ n atomic.Int32 }

func (s *stalls) Stalled() { s.n.Add(1) }

// sourceFunc turns a function into a Source.
type sourceFunc func(ctx context.Context, at int64, err error) (Part, error)

func (f sourceFunc) Continue(ctx context.Context, at int64, err error) (Part, error) {
	return f(ctx, at, err)
}

func join(t *testing.T, b io.ReadCloser, source Source, at, end int64) *Joined {
	j := &Joined{}
	j.Join(t.Context(), b, source, at, end)
	return j
}
