// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/alarm"
)

func watch(b io.ReadCloser, limit time.Duration, cut Cutter) *Watched {
	return Watch(b, limit, errStalled, cut, &stalls{})
}

// stalls counts stalls.
type stalls struct{ n atomic.Int32 }

func (s *stalls) Stalled() { s.n.Add(1) }

func TestWatched_Stalls(t *testing.T) {
	for _, limit := range []time.Duration{time.Nanosecond, 10 * time.Millisecond, 400 * time.Millisecond, time.Second, 1300 * time.Millisecond, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			for i := range 40 {
				b := newPiece(bytes.NewReader(make([]byte, 5*i)))
				b.hangs = true
				w := watch(b, limit, b)
				for range i {
					time.Sleep(37 * limit / 100)
					_, err := io.ReadFull(w, make([]byte, 5))
					require.NoError(t, err)
				}
				began := time.Now()
				n, err := w.Read(make([]byte, 5))
				assert.Zero(t, n)
				assert.Equal(t, errStalled, err)
				took := time.Since(began)
				assert.True(t, took >= limit && took <= limit+500*time.Millisecond, "%v: %v", limit, took)
				_, err = w.Read(make([]byte, 5))
				assert.Equal(t, errStalled, err)
				require.NoError(t, w.Close())
				synctest.Wait()
				assert.EqualValues(t, 1, w.stalls.(*stalls).n.Load())
			}
		})
	}
}

// slow returns a byte after each of the waits.
type slow struct {
	*piece
	waits []time.Duration
}

func (b *slow) Read(p []byte) (int, error) {
	if len(b.waits) == 0 {
		return 0, io.EOF
	}
	select {
	case <-time.After(b.waits[0]):
	case <-b.cut:
		return 0, context.Canceled
	}
	b.waits = b.waits[1:]
	return copy(p, "x"), nil
}

// A body that makes progress, however slowly, never stalls. Neither does a body
// whose reader is slow.
func TestWatched_NoStall(t *testing.T) {
	const limit = 2 * time.Second
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			b := &slow{piece: newPiece(nil)}
			for range 100 {
				b.waits = append(b.waits, time.Duration(random.Int64N(int64(limit-1))))
			}
			w := watch(b, limit, b)
			for range b.waits {
				if random.IntN(3) == 0 {
					time.Sleep(time.Duration(random.Int64N(int64(10 * limit))))
				}
				n, err := w.Read(make([]byte, 1))
				require.NoError(t, err)
				require.Equal(t, 1, n)
			}
			_, err := w.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			assert.Nil(t, w.alarm, "left behind")
		})
	}
}

// A Read that returns no bytes is not progress.
func TestWatched_EmptyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPiece(nil)
		w := watch(emptyReads{b}, time.Second, b)
		began := time.Now()
		var err error
		for err == nil {
			_, err = w.Read(make([]byte, 1))
		}
		assert.Equal(t, errStalled, err)
		assert.LessOrEqual(t, time.Since(began), 3*time.Second)
	})
}

type emptyReads struct{ *piece }

func (b emptyReads) Read([]byte) (int, error) {
	select {
	case <-time.After(10 * time.Millisecond):
		return 0, nil
	case <-b.cut:
		return 0, context.Canceled
	}
}

// A body that ends just as it is cut has ended. After an error, the next Read is
// watched as usual; after Close, none is. An alarm that rings too late doesn't
// matter.
func TestWatched_Ends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, n := newPiece(nil), 0
		w := watch(struct {
			io.Reader
			io.Closer
		}{readFunc(func([]byte) (int, error) {
			switch n++; n {
			case 1:
				return 0, errReset
			case 2:
				<-b.cut
				return 0, io.EOF
			}
			time.Sleep(time.Minute)
			return 0, errReset
		}), b}, time.Second, b)
		_, err := w.Read(make([]byte, 1))
		assert.Equal(t, errReset, err)
		w.Ring(&alarm.Alarm{})
		assert.Zero(t, w.stalls.(*stalls).n.Load())
		_, err = w.Read(make([]byte, 1))
		assert.Equal(t, io.EOF, err)
		_, err = w.Read(make([]byte, 1))
		assert.Equal(t, errStalled, err)
		assert.EqualValues(t, 1, w.stalls.(*stalls).n.Load())

		w = watch(w.ReadCloser, time.Second, b)
		require.NoError(t, w.Close())
		_, err = w.Read(make([]byte, 1))
		assert.Equal(t, errReset, err)
		assert.Zero(t, w.stalls.(*stalls).n.Load())
	})
}

// A Read that returns a wrong count ends the body: a reader that believed it would
// read beyond its buffer.
func TestWatched_WrongCount(t *testing.T) {
	for _, wrong := range []int{-1, 11, 1 << 20} {
		b := newPiece(nil)
		w := watch(wrongCount{b, wrong}, time.Second, b)
		n, err := w.Read(make([]byte, 10))
		assert.Zero(t, n)
		assert.Equal(t, errNegative, err)
		require.NoError(t, w.Close())

		var j Joined
		j.Join(t.Context(), &Watched{ReadCloser: wrongCount{b, wrong}, limit: time.Second}, nil, 0, 100)
		n, err = j.Read(make([]byte, 10))
		assert.Zero(t, n)
		assert.Equal(t, errNegative, err, "it isn't continued")
		require.NoError(t, j.Close())
	}
}

type wrongCount struct {
	*piece
	n int
}

func (b wrongCount) Read([]byte) (int, error) { return b.n, nil }

// After Close, a body that had stalled says that it is closed, as others do.
func TestWatched_ClosedAfterAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPiece(strings.NewReader(""))
		b.hangs = true
		w := watch(closable{b}, time.Second, b)
		_, err := w.Read(make([]byte, 1))
		require.Equal(t, errStalled, err)
		require.NoError(t, w.Close())
		_, err = w.Read(make([]byte, 1))
		assert.Equal(t, http.ErrBodyReadAfterClose, err)
	})
}

// closable fails after Close as the bodies of net/http do.
type closable struct{ *piece }

func (b closable) Read(p []byte) (int, error) {
	if b.closed.Load() > 0 {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.piece.Read(p)
}
