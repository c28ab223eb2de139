// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// stalledBody yields its text and then waits until it is closed.
type stalledBody struct {
	io.Reader
	closed chan struct{}
	once   sync.Once
}

func (b *stalledBody) Read(p []byte) (int, error) {
	if n, err := b.Reader.Read(p); err == nil {
		return n, nil
	}
	<-b.closed
	return 0, io.ErrClosedPipe
}

func (b *stalledBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// An answer that comes while the base waits for a byte beyond what is kept: the
// byte may come and be lost, so that there is no retry.
func TestReplay_AnswerDuringAReadBeyondTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		base := hookedBase(func(req *http.Request) (*http.Response, error) {
			attempts++
			go func() {
				_, _ = io.Copy(io.Discard, req.Body)
				req.Body.Close()
			}()
			synctest.Wait()
			return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody, Request: req}, nil
		})
		var reason retrip.Reason
		transport := &retrip.Transport{
			Base: base, Policy: retrip.Policy{MaxReplayBody: 4},
			Trace: &retrip.Trace{GiveUp: func(e retrip.Event) { reason = e.Reason }},
		}
		body := &stalledBody{Reader: strings.NewReader("text"), closed: make(chan struct{})}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://example.com/", body)
		require.NoError(t, err)
		resp, err := transport.RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, 1, attempts)
		assert.Equal(t, retrip.ReasonBodyNotReplayable, reason)
		body.Close()
		synctest.Wait()
	})
}

// A base that asks for the body again by GetBody gets all of it from the new
// reader, and nothing any more from the old one.
func TestReplay_GetBodyEndsTheReaderBeforeIt(t *testing.T) {
	base := hookedBase(func(req *http.Request) (*http.Response, error) {
		old := req.Body
		_, err := io.ReadFull(old, make([]byte, 2))
		require.NoError(t, err)
		again, err := req.GetBody()
		require.NoError(t, err)
		n, err := old.Read(make([]byte, 1))
		assert.Zero(t, n)
		assert.Error(t, err)
		got, err := io.ReadAll(again)
		require.NoError(t, err)
		assert.Equal(t, "text", string(got))
		old.Close()
		again.Close()
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}, nil
	})
	transport := &retrip.Transport{Base: base}
	for _, body := range []io.Reader{io.MultiReader(strings.NewReader("text")), io.NewSectionReader(strings.NewReader("text"), 0, 4)} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://example.com/", body)
		require.NoError(t, err)
		req.ContentLength = 4
		resp, err := transport.RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
	}
}

// The caller's body is closed when the last attempt closes what it was given,
// which may be after RoundTrip has returned; not when an earlier attempt does.
func TestReplay_ClosedWithTheLastReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var readers []io.ReadCloser
		base := hookedBase(func(req *http.Request) (*http.Response, error) {
			readers = append(readers, req.Body)
			status := http.StatusServiceUnavailable
			if len(readers) == 2 {
				status = http.StatusOK
			}
			return &http.Response{StatusCode: status, Body: http.NoBody, Request: req}, nil
		})
		var closed atomic.Int64
		body := closeFunc{strings.NewReader("text"), func() { closed.Add(1) }}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://example.com/", body)
		require.NoError(t, err)
		resp, err := (&retrip.Transport{Base: base}).RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
		require.Len(t, readers, 2)
		readers[0].Close()
		assert.Zero(t, closed.Load())
		for range 3 {
			readers[1].Close()
			assert.Equal(t, int64(1), closed.Load())
		}
	})
}

// A base that panics has no use for its reader any more, closed or not.
func TestReplay_ClosedAfterAPanicOfTheBase(t *testing.T) {
	var reader io.ReadCloser
	base := hookedBase(func(req *http.Request) (*http.Response, error) {
		reader = req.Body
		panic("base")
	})
	closed := 0
	body := closeFunc{strings.NewReader("text"), func() { closed++ }}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://example.com/", body)
	require.NoError(t, err)
	assert.PanicsWithValue(t, "base", func() { _, _ = (&retrip.Transport{Base: base}).RoundTrip(req) })
	assert.Equal(t, 1, closed)
	n, err := reader.Read(make([]byte, 1))
	assert.Zero(t, n)
	assert.Error(t, err)
}

type closeFunc struct {
	io.Reader
	f func()
}

func (c closeFunc) Close() error {
	c.f()
	return nil
}
