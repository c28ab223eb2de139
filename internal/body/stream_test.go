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
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	closed int
}

func newPiece(r io.Reader) *piece { return &piece{r: r, cut: make(chan struct{})} }

func (b *piece) Read(p []byte) (int, error) {
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
	b.closed++
	b.Cut()
	return nil
}

func (b *piece) Cut() { b.once.Do(func() { close(b.cut) }) }

// sourceFunc turns a function into a Source.
type sourceFunc func(ctx context.Context, at int64, err error) (Part, error)

func (f sourceFunc) Continue(ctx context.Context, at int64, err error) (Part, error) {
	return f(ctx, at, err)
}
func (sourceFunc) Dispose(b io.ReadCloser) { b.Close() }

// TestStream_Model reads a representation through parts of every shape, broken
// in every kind of place, and compares the bytes with those of the
// representation.
func TestStream_Model(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 1))
		whole := make([]byte, random.IntN(2000))
		for i := range whole {
			whole[i] = byte(random.Uint32())
		}
		end := int64(len(whole))
		var pieces []*piece
		cut := func(data []byte) *piece {
			n := random.IntN(len(data) + 1)
			var r io.Reader = bytes.NewReader(data[:n])
			switch random.IntN(4) {
			case 0:
				r = iotest.OneByteReader(r)
			case 1:
				r = iotest.DataErrReader(r)
			case 2:
				r = iotest.HalfReader(r)
			}
			b := newPiece(r)
			if random.IntN(2) == 0 {
				b.err = errReset
			}
			pieces = append(pieces, b)
			return b
		}
		refuses, asked := random.IntN(3) == 0, 0
		source := sourceFunc(func(_ context.Context, at int64, err error) (Part, error) {
			asked++
			assert.True(t, at < end, "asked for nothing")
			assert.True(t, err == io.ErrUnexpectedEOF || err == errReset, "%v", err)
			if refuses && asked > 3 {
				return Part{}, errors.Join(err, errRefused)
			}
			skip := int64(random.IntN(int(at) + 1))
			until := at + 1 + random.Int64N(end-at)
			b := cut(whole[at-skip : until])
			return Part{Body: b, Cut: b, Skip: skip, Until: until}, nil
		})
		s := &Stream{}
		first := cut(whole)
		s.Init(Part{Body: first, Cut: first})
		s.Resumable(t.Context(), source, 0, end)
		var got bytes.Buffer
		var err error
		buffer := make([]byte, 1+random.IntN(600))
		for err == nil {
			var n int
			n, err = s.Read(buffer[:1+random.IntN(len(buffer))])
			got.Write(buffer[:n])
		}
		again, err2 := s.Read(buffer)
		require.Zero(t, again)
		require.Equal(t, err, err2)
		require.NoError(t, s.Close())
		if err == io.EOF {
			require.True(t, bytes.Equal(whole, got.Bytes()), "seed %d", seed)
		} else {
			require.ErrorIs(t, err, errRefused)
			require.True(t, bytes.HasPrefix(whole, got.Bytes()), "seed %d", seed)
		}
		for _, b := range pieces {
			require.Equal(t, 1, b.closed, "seed %d", seed)
		}
	}
}

// If a server breaks every body, the source ends the loop.
func TestStream_SourceEnds(t *testing.T) {
	asked := 0
	b := newPiece(bytes.NewReader(nil))
	s := &Stream{}
	s.Init(Part{Body: b})
	s.Resumable(t.Context(), sourceFunc(func(_ context.Context, at int64, err error) (Part, error) {
		if asked++; asked == 10 {
			return Part{}, err
		}
		return Part{Body: newPiece(bytes.NewReader(nil)), Until: 5}, nil
	}), 0, 5)
	_, err := io.ReadAll(s)
	assert.Equal(t, io.ErrUnexpectedEOF, err)
	assert.Equal(t, 10, asked)
}

// The reader never gets bytes beyond the end of a part.
func TestStream_PartTooLong(t *testing.T) {
	first := newPiece(bytes.NewReader([]byte("abc")))
	s := &Stream{}
	s.Init(Part{Body: first})
	s.Resumable(t.Context(), sourceFunc(func(_ context.Context, at int64, _ error) (Part, error) {
		return Part{Body: newPiece(bytes.NewReader([]byte("--def?"))), Skip: 2, Until: 6}, nil
	}), 0, 6)
	got, err := io.ReadAll(s)
	require.NoError(t, err)
	assert.Equal(t, "abcdef", string(got))
}

// An error after the last byte doesn't matter.
func TestStream_ErrorBehindTheEnd(t *testing.T) {
	first := newPiece(bytes.NewReader([]byte("abc")))
	first.err = errReset
	s := &Stream{}
	s.Init(Part{Body: first})
	s.Resumable(t.Context(), nil, 0, 3)
	s.source = sourceFunc(func(context.Context, int64, error) (Part, error) {
		t.Error("asked")
		return Part{}, errRefused
	})
	got, err := io.ReadAll(s)
	require.NoError(t, err)
	assert.Equal(t, "abc", string(got))
}

func TestStream_CloseWhileContinuing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := newPiece(bytes.NewReader([]byte("abc")))
		s := &Stream{}
		s.Init(Part{Body: first})
		s.Resumable(t.Context(), sourceFunc(func(ctx context.Context, _ int64, err error) (Part, error) {
			<-ctx.Done()
			return Part{}, errors.Join(err, ctx.Err())
		}), 0, 6)
		go func() {
			time.Sleep(time.Second)
			assert.NoError(t, s.Close())
		}()
		began := time.Now()
		got, err := io.ReadAll(s)
		assert.Equal(t, "abc", string(got))
		assert.Equal(t, http.ErrBodyReadAfterClose, err)
		assert.Equal(t, time.Second, time.Since(began))
		_, err = s.Read(make([]byte, 1))
		assert.Equal(t, http.ErrBodyReadAfterClose, err)
		assert.Equal(t, 1, first.closed)
	})
}

// If the reader closes the stream while the next part arrives, that part is
// disposed of.
func TestStream_CloseAsPartComes(t *testing.T) {
	s := &Stream{}
	s.Init(Part{Body: newPiece(bytes.NewReader(nil))})
	next := newPiece(bytes.NewReader([]byte("abc")))
	s.Resumable(t.Context(), sourceFunc(func(context.Context, int64, error) (Part, error) {
		assert.NoError(t, s.Close())
		return Part{Body: next, Until: 3}, nil
	}), 0, 3)
	_, err := io.ReadAll(s)
	assert.Equal(t, http.ErrBodyReadAfterClose, err)
	assert.Equal(t, 1, next.closed)
}

// A Read that panics leaves no goroutine behind.
func TestStream_Panics(t *testing.T) {
	s := &Stream{}
	s.Init(Part{Body: newPiece(bytes.NewReader(nil))})
	s.Resumable(t.Context(), sourceFunc(func(context.Context, int64, error) (Part, error) { panic("x") }), 0, 3)
	assert.Panics(t, func() { _, _ = s.Read(make([]byte, 1)) })
	_, err := s.Read(make([]byte, 1))
	assert.Equal(t, io.ErrUnexpectedEOF, err)
	assert.NoError(t, s.Close())
}

func TestStream_Stalls(t *testing.T) {
	for _, limit := range []time.Duration{time.Nanosecond, 10 * time.Millisecond, 400 * time.Millisecond, time.Second, 1300 * time.Millisecond, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			for i := range 40 {
				b := newPiece(bytes.NewReader(make([]byte, 5*i)))
				b.hangs = true
				s := &Stream{}
				s.Init(Part{Body: b, Cut: b})
				s.MustProgress(limit, errStalled)
				for range i {
					time.Sleep(37 * limit / 100)
					_, err := io.ReadFull(s, make([]byte, 5))
					require.NoError(t, err)
				}
				began := time.Now()
				n, err := s.Read(make([]byte, 5))
				assert.Zero(t, n)
				assert.Equal(t, errStalled, err)
				took := time.Since(began)
				assert.True(t, took >= limit && took <= limit+500*time.Millisecond, "%v: %v", limit, took)
				_, err = s.Read(make([]byte, 5))
				assert.Equal(t, errStalled, err)
				require.NoError(t, s.Close())
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
func TestStream_NoStall(t *testing.T) {
	const limit = 2 * time.Second
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			b := &slow{piece: newPiece(nil)}
			for range 100 {
				b.waits = append(b.waits, time.Duration(random.Int64N(int64(limit-1))))
			}
			s := &Stream{}
			s.Init(Part{Body: b, Cut: b})
			s.MustProgress(limit, errStalled)
			for range b.waits {
				if random.IntN(3) == 0 {
					time.Sleep(time.Duration(random.Int64N(int64(10 * limit))))
				}
				n, err := s.Read(make([]byte, 1))
				require.NoError(t, err)
				require.Equal(t, 1, n)
			}
			_, err := s.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			assert.Nil(t, s.watch.alarm, "left behind")
		})
	}
}

// A Read that returns no bytes is not progress.
func TestStream_EmptyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPiece(nil)
		s := &Stream{}
		s.Init(Part{Body: emptyReads{b}, Cut: b})
		s.MustProgress(time.Second, errStalled)
		began := time.Now()
		var err error
		for err == nil {
			_, err = s.Read(make([]byte, 1))
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

// A stalled body is continued, and the next part is watched too.
func TestStream_StallContinued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPiece(bytes.NewReader([]byte("ab")))
		b.hangs = true
		s := &Stream{}
		s.Init(Part{Body: b, Cut: b})
		s.MustProgress(time.Second, errStalled)
		s.Resumable(t.Context(), sourceFunc(func(_ context.Context, at int64, err error) (Part, error) {
			assert.Equal(t, errStalled, err)
			b := newPiece(bytes.NewReader([]byte("abcdef")[at : at+2]))
			b.hangs = true
			return Part{Body: b, Cut: b, Until: 6}, nil
		}), 0, 6)
		began := time.Now()
		got, err := io.ReadAll(s)
		require.NoError(t, err)
		assert.Equal(t, "abcdef", string(got))
		assert.LessOrEqual(t, time.Since(began), 3*time.Second)
		require.NoError(t, s.Close())
	})
}

// Close may come at any moment; the race detector checks.
func TestStream_CloseAnywhere(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 3))
		b := newPiece(bytes.NewReader(make([]byte, 100)))
		b.hangs = true
		s := &Stream{}
		s.Init(Part{Body: b, Cut: b})
		s.MustProgress(time.Millisecond, errStalled)
		s.Resumable(t.Context(), sourceFunc(func(ctx context.Context, at int64, err error) (Part, error) {
			b := newPiece(bytes.NewReader(make([]byte, 10)))
			b.hangs = true
			return Part{Body: b, Cut: b, Until: 1 << 40}, ctx.Err()
		}), 0, 1<<40)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err := io.Copy(io.Discard, s)
			assert.Error(t, err)
		}()
		time.AfterFunc(time.Duration(random.IntN(5000))*time.Microsecond, func() { s.Close() })
		<-done
	}
}

// If a part ends while its overlap is skipped, the source gets that error. A
// body that returns no bytes at all is given up.
func TestStream_SkipBreaks(t *testing.T) {
	for name, c := range map[string]struct {
		r    io.Reader
		err  error
		want error
	}{
		"reset":    {r: bytes.NewReader([]byte("ab")), err: errReset, want: errReset},
		"end":      {r: bytes.NewReader([]byte("ab")), want: io.ErrUnexpectedEOF},
		"nothing":  {r: readFunc(func([]byte) (int, error) { return 0, nil }), want: io.ErrNoProgress},
		"negative": {r: readFunc(func([]byte) (int, error) { return -1, nil }), want: errNegative},
		"too much": {r: readFunc(func(p []byte) (int, error) { return len(p) + 1, nil }), want: errNegative},
	} {
		var met []error
		s := &Stream{}
		s.Init(Part{Body: newPiece(bytes.NewReader([]byte("abc")))})
		s.Resumable(t.Context(), sourceFunc(func(_ context.Context, at int64, err error) (Part, error) {
			if met = append(met, err); len(met) > 1 {
				return Part{}, err
			}
			b := newPiece(c.r)
			b.err = c.err
			return Part{Body: b, Skip: 3, Until: 6}, nil
		}), 0, 6)
		got, err := io.ReadAll(s)
		assert.Equal(t, "abc", string(got), name)
		assert.Equal(t, c.want, err, name)
		assert.Equal(t, []error{io.ErrUnexpectedEOF, c.want}, met, name)
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// A body may end before there is a source, while something reads it ahead.
func TestStream_EndsBeforeItsSource(t *testing.T) {
	for _, broken := range []error{errReset, nil} {
		first := newPiece(bytes.NewReader([]byte("abc")))
		first.err = broken
		s := &Stream{}
		s.Init(Part{Body: first})
		ahead := Ahead(s, 100, 6)
		assert.Equal(t, "abc", string(ahead.Bytes()))
		s.Resumable(t.Context(), sourceFunc(func(_ context.Context, at int64, err error) (Part, error) {
			assert.EqualValues(t, 3, at)
			return Part{Body: newPiece(bytes.NewReader([]byte("def"))), Until: 6}, nil
		}), 0, 6)
		ahead.SetErr(nil)
		got, err := io.ReadAll(ahead)
		require.NoError(t, err)
		assert.Equal(t, "abcdef", string(got))
	}
}
