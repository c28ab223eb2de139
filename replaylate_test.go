// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func put(t *testing.T, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequest(http.MethodPut, "http://example.com/", body)
	require.NoError(t, err)
	return req
}

// What an attempt that is over still reads is an error, never nothing: its
// write loop must end, not spin.
func TestReplay_LateReaders(t *testing.T) {
	stream := func() io.Reader { return io.MultiReader(strings.NewReader("some text")) }
	for name, body := range map[string]io.Reader{
		"stream":  stream(),
		"section": io.NewSectionReader(strings.NewReader("some text"), 0, 9),
	} {
		r := openReplay(put(t, body), 100)
		late := r.reader()
		_, err := io.ReadFull(late, make([]byte, 4))
		require.NoError(t, err, name)
		next := r.reader()
		n, err := late.Read(make([]byte, 4))
		assert.Zero(t, n, name)
		assert.ErrorIs(t, err, errSuperseded, name)
		text, err := io.ReadAll(next)
		require.NoError(t, err, name)
		assert.Equal(t, "some text", string(text), name)
		require.NoError(t, next.Close())
		n, err = next.Read(make([]byte, 4))
		assert.Zero(t, n, name)
		assert.ErrorIs(t, err, errSuperseded, name)
	}
}

// A reader that waits for its turn is woken when it is closed.
func TestReplay_CloseWakesWaitingReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pr, pw := io.Pipe()
		r := openReplay(put(t, pr), 100)
		old := r.reader()
		go old.Read(make([]byte, 1)) // has the turn, and nothing comes
		synctest.Wait()
		next := r.reader()
		read := make(chan error)
		go func() {
			_, err := next.Read(make([]byte, 1))
			read <- err
		}()
		synctest.Wait()
		require.NoError(t, next.Close())
		assert.ErrorIs(t, <-read, errSuperseded)
		pw.Close()
	})
}

// Once no attempt follows, what was kept goes as soon as the last one has read
// it.
func TestReplay_KeepsNothingForNobody(t *testing.T) {
	r := openReplay(put(t, io.MultiReader(strings.NewReader("some text"), strings.NewReader("more"))), 100)
	b := r.reader()
	_, err := io.ReadFull(b, make([]byte, 9))
	require.NoError(t, err)
	require.Len(t, r.kept, 9)
	r.seal(false)
	_, err = io.ReadFull(b, make([]byte, 4))
	require.NoError(t, err)
	assert.Empty(t, r.kept)
}

// The usual case: the body has been read to its end, and is closed before the
// response is there, or after.
func TestReplay_KeepsNothingForTheResponse(t *testing.T) {
	for _, closedFirst := range []bool{true, false} {
		r := openReplay(put(t, io.MultiReader(strings.NewReader("some text"))), 100)
		b := r.reader()
		_, err := io.ReadAll(b)
		require.NoError(t, err)
		require.Len(t, r.kept, 9)
		if closedFirst {
			require.NoError(t, b.Close())
			require.Len(t, r.kept, 9, "for another attempt")
		}
		r.seal(false)
		if !closedFirst {
			require.Len(t, r.kept, 9, "for net/http")
			require.NoError(t, b.Close())
		}
		assert.Nil(t, r.kept, closedFirst)
		_, err = r.getBody()
		assert.ErrorIs(t, err, errNotKept)
	}
}
