// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"io"
	"net/http"
	"os"
	"strings"
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

// Closing a reader wakes it if it waits for its turn.
//
//retrip:promise P13
func TestReplay_CloseWakesWaitingReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pr, pw := io.Pipe()
		r := Open(put(t, pr), 100)
		old := r.Reader()
		late := make(chan struct{})
		go func() { // holds the turn, and no data arrives
			defer close(late)
			n, err := old.Read(make([]byte, 1))
			assert.Zero(t, n)
			assert.ErrorIs(t, err, errSuperseded)
		}()
		synctest.Wait()
		next := r.Reader()
		read := make(chan error)
		go func() {
			n, err := next.Read(make([]byte, 1))
			assert.Zero(t, n)
			read <- err
		}()
		synctest.Wait()
		require.NoError(t, next.Close())
		assert.ErrorIs(t, <-read, errSuperseded)
		_, err := pw.Write([]byte("x"))
		require.NoError(t, err)
		<-late
	})
}

// No attempt reads the caller's body beyond its end.
//
//retrip:promise P7
func TestReplay_EndIsReadOnce(t *testing.T) {
	for _, end := range []error{io.EOF, io.ErrClosedPipe} {
		reads := 0
		r := Open(put(t, testenv.Reader(func(p []byte) (int, error) {
			reads++
			return copy(p, "text"), end
		})), 100)
		for range 2 {
			b := r.Reader()
			n, err := b.Read(nil)
			assert.Zero(t, n)
			require.NoError(t, err, "nothing was requested")
			got := make([]byte, 4)
			_, err = io.ReadFull(b, got)
			require.NoError(t, err)
			assert.Equal(t, "text", string(got))
			for range 2 {
				n, err := b.Read(got)
				assert.Zero(t, n)
				assert.Equal(t, end, err)
			}
		}
		assert.Equal(t, 1, reads)
	}
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
		text, err := io.ReadAll(Open(put(t, section), 100).Reader())
		require.NoError(t, err)
		assert.Empty(t, text)
	}
}

// A device that can be read by offset, but returns different data each time, is
// kept like any stream.
//
//retrip:promise P7
func TestReplay_Device(t *testing.T) {
	f, err := os.Open("/dev/urandom")
	if err != nil {
		t.Skip("no such device here")
	}
	defer f.Close()
	r := Open(put(t, f), 100)
	var first, second [16]byte
	_, err = io.ReadFull(r.Reader(), first[:])
	require.NoError(t, err)
	_, err = io.ReadFull(r.Reader(), second[:])
	require.NoError(t, err)
	assert.Equal(t, first, second)
}

// Once no attempt follows, the kept bytes are released as soon as the last
// attempt has read them.
//
//retrip:promise P13
func TestReplay_KeepsNothingForNobody(t *testing.T) {
	r := Open(put(t, io.MultiReader(strings.NewReader("some text"), strings.NewReader("more"))), 100)
	b := r.Reader()
	_, err := io.ReadFull(b, make([]byte, 9))
	require.NoError(t, err)
	require.Equal(t, 9, r.kept.len)
	r.Seal(false, false)
	_, err = io.ReadFull(b, make([]byte, 4))
	require.NoError(t, err)
	assert.Zero(t, r.kept)
}

// The usual case: the base reads the body to its end, and closes it before or
// after the response arrives.
//
//retrip:promise P13
func TestReplay_KeepsNothingForTheResponse(t *testing.T) {
	for _, closedFirst := range []bool{true, false} {
		r := Open(put(t, io.MultiReader(strings.NewReader("some text"))), 100)
		b := r.Reader()
		_, err := io.ReadAll(b)
		require.NoError(t, err)
		require.Equal(t, 9, r.kept.len)
		if closedFirst {
			require.NoError(t, b.Close())
			require.Equal(t, 9, r.kept.len, "for another attempt")
		}
		r.Seal(false, false)
		if !closedFirst {
			require.Equal(t, 9, r.kept.len, "for net/http")
			require.NoError(t, b.Close())
		}
		assert.Zero(t, r.kept, closedFirst)
		_, err = r.GetBody()
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
			assert.ErrorIs(t, err, errSuperseded)
		}()
		synctest.Wait()
		next := r.Reader()
		_, err := io.ReadFull(next, make([]byte, 3))
		require.NoError(t, err)
		r.Seal(false, false)
		close(slow)
		synctest.Wait()
		_, err = io.ReadFull(next, make([]byte, 4))
		require.NoError(t, err)
		at, err := s.Seek(0, io.SeekCurrent)
		require.NoError(t, err)
		assert.EqualValues(t, 7, at)
	})
}
