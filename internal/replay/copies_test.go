// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"io"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// counted is a body that counts its Closes.
type counted struct {
	io.Reader
	closed atomic.Int32
}

func (b *counted) Close() error { b.closed.Add(1); return nil }

// openCounted opens content, as a section or as a stream. The caller's body is
// closed through the body that it also returns.
func openCounted(t *testing.T, content []byte, section bool) (*Body, *counted) {
	body := &counted{Reader: bytes.NewReader(content)}
	req := put(t, nil)
	req.Body, req.ContentLength = body, int64(len(content))
	if section {
		req.Body = io.NopCloser(io.NewSectionReader(bytes.NewReader(content), 0, int64(len(content))))
	}
	r := Open(req, 50)
	require.Equal(t, section, r.part != nil)
	req.Body = body
	return r, body
}

// readerModel is what a reader should be.
type readerModel struct {
	io.ReadCloser
	read                 int
	begun, closed, again bool
	ended, copied        bool
}

// unfinished reports whether the base still needs one of live. After its last
// use, it doesn't need those that it has dropped.
func unfinished(live []*readerModel, sealed, failed bool) bool {
	return slices.ContainsFunc(live, func(m *readerModel) bool {
		dropped := sealed && m.copied && !m.begun && (failed || m != live[len(live)-1])
		passed := m.closed && sealed && m.again && !m.ended
		return (!m.closed || passed) && !dropped && !(m.ended && len(live) > 1)
	})
}

// Bases read, copy and close bodies in any order, and attempts follow each
// other. Each reader of the attempt under way yields the whole body, each other
// one nothing, and the caller's body is closed once, when no attempt follows and
// nobody can need it any more.
//
//retrip:promise P2 P7
func TestReplay_CopiesModel(t *testing.T) {
	for seed := range uint64(testenv.Size(5_000, 200_000)) {
		draws := rand.New(rand.NewPCG(seed, 3))
		content := make([]byte, draws.IntN(40))
		for i := range content {
			content[i] = byte(draws.Uint32())
		}
		r, body := openCounted(t, content, draws.IntN(2) == 0)
		if !r.Always() {
			continue // there is no GetBody
		}
		live, dead := []*readerModel{{ReadCloser: r.Reader()}}, []*readerModel(nil)
		sealed, failed := false, draws.IntN(2) == 0
		for range 30 {
			switch m := live[draws.IntN(len(live))]; draws.IntN(8) {
			case 0, 1, 2:
				p := make([]byte, 1+draws.IntN(20))
				n, err := m.Read(p)
				m.begun = true
				if m.closed && !m.again {
					require.Zero(t, n, "seed %d", seed)
					require.Equal(t, errSuperseded, err, "seed %d", seed)
					break
				}
				require.Equal(t, content[m.read:m.read+n], p[:n], "seed %d", seed)
				m.read += n
				if err != nil {
					m.ended = true
					require.Equal(t, io.EOF, err, "seed %d", seed)
					require.Equal(t, len(content), m.read, "seed %d", seed)
				}
			case 3:
				if sealed {
					break
				}
				open := unfinished(live, false, false)
				b, err := r.GetBody()
				require.NoError(t, err, "seed %d", seed)
				if !open {
					dead, live = append(dead, live...), nil
				}
				live = append(live, &readerModel{ReadCloser: b, copied: true})
			case 4, 5:
				require.NoError(t, m.Close(), "seed %d", seed)
				m.again = !m.begun && !sealed
				m.closed = true
			case 6:
				if sealed || draws.IntN(2) == 0 {
					break
				}
				require.True(t, r.Hold(), "seed %d", seed)
				r.Release(true)
				dead, live = append(dead, live...), []*readerModel{{ReadCloser: r.Reader()}}
			case 7:
				if draws.IntN(4) == 0 && !sealed {
					sealed = true
					passed := false
					for i, m := range live {
						m.again = m.again && !failed && (m.begun || !m.copied && i == len(live)-1)
						passed = passed || m.again && !m.ended
					}
					require.Equal(t, passed, r.Seal(failed, false), "seed %d", seed)
				}
			}
			for _, m := range dead {
				n, err := m.Read(make([]byte, 5))
				require.Zero(t, n, "seed %d", seed)
				require.Equal(t, errSuperseded, err, "seed %d", seed)
			}
			over := sealed && !unfinished(live, sealed, failed)
			if body.closed.Load() > 0 {
				require.True(t, over, "seed %d", seed)
				break
			}
		}
		if !sealed {
			r.Seal(failed, false)
		}
		for _, m := range live {
			if m.begun || !m.copied || !failed && m == live[len(live)-1] {
				require.NoError(t, m.Close(), "seed %d", seed)
			}
		}
		assert.EqualValues(t, 1, body.closed.Load(), "seed %d", seed)
	}
}

// If a body turns out to be longer than announced, and too long to be kept, a
// copy never continues where another reader has left off.
//
//retrip:promise P7
func TestReplay_CopyOfALongerBody(t *testing.T) {
	for _, first := range []int{0, 1} {
		req := put(t, nil)
		req.Body, req.ContentLength = &counted{Reader: bytes.NewReader(make([]byte, 100))}, 10
		r := Open(req, 50)
		readers := []io.ReadCloser{r.Reader()}
		again, err := r.GetBody()
		require.NoError(t, err)
		readers = append(readers, again)
		n, err := io.ReadFull(readers[first], make([]byte, 60))
		require.NoError(t, err)
		require.Equal(t, 60, n)
		n, err = readers[1-first].Read(make([]byte, 10))
		assert.Zero(t, n)
		assert.ErrorIs(t, err, errNotKept)
		_, err = r.GetBody()
		assert.ErrorIs(t, err, errNotKept)
	}
}

// If a body ends early, its copies need no Close either.
func TestReplay_CopyOfAShorterBody(t *testing.T) {
	body := &counted{Reader: bytes.NewReader(make([]byte, 5))}
	req := put(t, nil)
	req.Body, req.ContentLength = body, 10
	r := Open(req, 50)
	main := r.Reader()
	for range 2 {
		again, err := r.GetBody()
		require.NoError(t, err)
		got, err := io.ReadAll(again)
		require.NoError(t, err)
		assert.Len(t, got, 5)
	}
	assert.True(t, r.AtFault())
	r.Seal(false, false)
	assert.Zero(t, body.closed.Load())
	require.NoError(t, main.Close())
	assert.EqualValues(t, 1, body.closed.Load())
}
