// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

func put(t *testing.T, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequest(http.MethodPut, "http://example.com/", body)
	require.NoError(t, err)
	return req
}

// stream returns a body that can be read only once.
func stream(content string) io.Reader { return io.MultiReader(strings.NewReader(content)) }

// take reads n bytes.
func take(t *testing.T, r io.Reader, n int) string {
	t.Helper()
	got := make([]byte, n)
	_, err := io.ReadFull(r, got)
	require.NoError(t, err)
	return string(got)
}

// yieldsNothing fails t unless a Read of r returns no bytes and the error want.
func yieldsNothing(t *testing.T, r io.Reader, want error) {
	t.Helper()
	n, err := r.Read(make([]byte, 5))
	assert.Zero(t, n)
	assert.Equal(t, want, err)
}

// copyOf returns a reader from GetBody.
func copyOf(t *testing.T, r *Body) io.ReadCloser {
	t.Helper()
	b, err := r.GetBody()
	require.NoError(t, err)
	return b
}

// A section that was read to its end, or beyond, has nothing left, whatever
// follows it in the file.
//
//retrip:promise P7
func TestReplay_SectionAtItsEnd(t *testing.T) {
	for _, pos := range []int64{4, 5} {
		section := io.NewSectionReader(strings.NewReader("some text"), 0, 4)
		_, err := section.Seek(pos, io.SeekStart)
		require.NoError(t, err)
		yieldsNothing(t, Open(put(t, section), 100).Reader(), io.EOF)
	}
}

// The usual case: the base reads the body to its end, and closes it before or
// after the response arrives.
//
//retrip:promise P13
func TestReplay_KeepsNothingForTheResponse(t *testing.T) {
	for _, closedFirst := range []bool{true, false} {
		r := Open(put(t, stream("some text")), 100)
		b := r.Reader()
		take(t, b, 9)
		yieldsNothing(t, b, io.EOF)
		steps := []func(){func() { require.NoError(t, b.Close()) }, func() { r.Seal(Answered) }}
		if !closedFirst {
			slices.Reverse(steps)
		}
		for _, step := range steps {
			require.Equal(t, 9, r.kept.len, "for another attempt, or for net/http")
			step()
		}
		assert.Zero(t, r.kept, closedFirst)
		_, err := r.GetBody()
		assert.ErrorIs(t, err, errNotKept)
	}
}

// slowAt is read when it is told to.
type slowAt chan struct{}

func (s slowAt) ReadAt(p []byte, _ int64) (int, error) {
	if len(p) > 5 {
		<-s
	}
	return len(p), nil
}

// A read that an attempt's end overtakes moves nothing, and yields nothing.
//
//retrip:promise P7
func TestReplay_OvertakenRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := make(slowAt)
		s := io.NewSectionReader(slow, 0, 100)
		r := Open(put(t, s), 0)
		old := r.Reader()
		go func() {
			n, err := old.Read(make([]byte, 10))
			assert.Zero(t, n)
			assert.Equal(t, errSuperseded, err)
		}()
		synctest.Wait()
		next := r.Reader()
		take(t, next, 3)
		r.Seal(Answered)
		close(slow)
		synctest.Wait()
		take(t, next, 4)
		at, err := s.Seek(0, io.SeekCurrent)
		require.NoError(t, err)
		assert.EqualValues(t, 7, at)
	})
}

// After a panic, the number of bytes read is unknown.
func TestReplay_PanickingBodyIsNotReplayed(t *testing.T) {
	r := Open(put(t, testenv.Reader(func([]byte) (int, error) { panic("no") })), 100)
	b := r.Reader()
	assert.Panics(t, func() { _, _ = b.Read(make([]byte, 1)) })
	assert.False(t, r.Hold())
	r.Release(false)
	yieldsNothing(t, b, errPanicked)
	assert.True(t, r.AtFault())
}

// counted is a body that counts its Closes.
type counted struct {
	io.Reader
	closed atomic.Int32
}

func (b *counted) Close() error { b.closed.Add(1); return nil }

// openCounted opens content of the announced length, as a section or as a stream. The
// caller's body is closed through the body that it also returns.
func openCounted(t *testing.T, content []byte, length int, section bool) (*Body, *counted) {
	body := &counted{Reader: bytes.NewReader(content)}
	req := put(t, body)
	req.ContentLength = int64(length)
	if section {
		req.Body = io.NopCloser(io.NewSectionReader(bytes.NewReader(content), 0, int64(length)))
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
	// On virtual time, because a Close that takes long isn't waited for.
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(testenv.Size(3_000, 200_000)) {
			draws := rand.New(rand.NewPCG(seed, 3))
			content := make([]byte, draws.IntN(40))
			for i := range content {
				content[i] = byte(draws.Uint32())
			}
			r, body := openCounted(t, content, len(content), draws.IntN(2) == 0)
			if !r.Always() {
				continue // there is no GetBody
			}
			live, dead := []*readerModel{{ReadCloser: r.Reader()}}, []*readerModel(nil)
			how := End(draws.IntN(3))
			sealed, failed := false, how == Failed
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
					b := copyOf(t, r)
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
							m.again = m.again && how == Answered && (m.begun || !m.copied && i == len(live)-1)
							passed = passed || m.again && !m.ended
						}
						require.Equal(t, passed, r.Seal(how), "seed %d", seed)
					}
				}
				for _, m := range dead {
					n, err := m.Read(make([]byte, 5))
					require.Zero(t, n, "seed %d", seed)
					require.Equal(t, errSuperseded, err, "seed %d", seed)
				}
				if body.closed.Load() > 0 {
					require.True(t, r.ended != nil || sealed && !unfinished(live, sealed, failed), "seed %d", seed)
					if sealed {
						break
					}
				}
			}
			if !sealed {
				r.Seal(how)
			}
			for _, m := range live {
				if m.begun || !m.copied || !failed && m == live[len(live)-1] {
					require.NoError(t, m.Close(), "seed %d", seed)
				}
			}
			assert.EqualValues(t, 1, body.closed.Load(), "seed %d", seed)
		}
	})
}

// If a body turns out to be longer than announced, and too long to be kept, a
// copy never continues where another reader has left off.
//
//retrip:promise P7
func TestReplay_CopyOfALongerBody(t *testing.T) {
	for _, first := range []int{0, 1} {
		r, _ := openCounted(t, make([]byte, 100), 10, false)
		readers := []io.ReadCloser{r.Reader(), copyOf(t, r)}
		take(t, readers[first], 60)
		yieldsNothing(t, readers[1-first], errNotKept)
		_, err := r.GetBody()
		assert.ErrorIs(t, err, errNotKept)
	}
}
