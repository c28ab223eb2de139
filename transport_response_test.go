// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// A GetBody that yields nothing must not have the retry read on in the body
// that the first attempt has used up.
func TestTransport_GetBodyYieldsNothing(t *testing.T) {
	bubbled(t, "", func(t *testing.T) {
		base := plays(replies(503), replies(200))
		req := request(t, http.MethodPut, strings.NewReader("text"))
		req.GetBody = func() (io.ReadCloser, error) { return nil, nil }
		resp, err := (&retrip.Transport{Base: base}).RoundTrip(req)
		require.NoError(t, err)
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, 1, base.attempts())
		finish(t, resp)
	})
}

// endless is a context that has a deadline and never ends.
type endless struct{ context.Context }

func (endless) Done() <-chan struct{} { return nil }
func (endless) Err() error            { return nil }

// The age of the Transport is not the duration of an attempt.
func TestTransport_DeadlineWithoutEnd(t *testing.T) {
	bubbled(t, "", func(t *testing.T) {
		base := plays(replies(200), replies(503), replies(200))
		transport := &retrip.Transport{Base: base}
		resp, err := transport.RoundTrip(request(t, http.MethodGet, nil))
		require.NoError(t, err)
		finish(t, resp)
		time.Sleep(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		resp, err = transport.RoundTrip(request(t, http.MethodGet, nil).WithContext(endless{ctx}))
		require.NoError(t, err)
		assert.Equal(t, 200, resp.StatusCode)
		finish(t, resp)
	})
}

// A response is one, whatever the base has left out of it.
func TestTransport_NoStatus(t *testing.T) {
	for name, policy := range map[string]retrip.Policy{"plain": {}, "derived": {AttemptTimeout: time.Second}} {
		bubbled(t, name, func(t *testing.T) {
			base := plays(replies(0))
			resp, err := (&retrip.Transport{Base: base, Policy: policy}).RoundTrip(request(t, http.MethodGet, nil))
			require.NoError(t, err)
			assert.Equal(t, 1, base.attempts())
			finish(t, resp)
		})
	}
}

// unclosable panics when it is closed.
type unclosable struct{ io.Reader }

func (unclosable) Close() error { panic("unclosable") }

// Whatever a body does when it is closed, its host isn't pinned for good, and
// the panic is met where RoundTrip was called.
func TestTransport_PanicInClose(t *testing.T) {
	for name, test := range map[string]struct {
		request, response io.Reader
	}{
		"request":           {request: strings.NewReader("text")},
		"response":          {response: strings.NewReader("text")},
		"stalled, response": {response: readerFunc(func([]byte) (int, error) { time.Sleep(time.Second); return 0, io.EOF })},
	} {
		bubbled(t, name, func(t *testing.T) {
			transport := &retrip.Transport{Policy: retrip.Policy{Breaker: retrip.Breaker{Ratio: 0.9}}}
			transport.Base = plays(func(*http.Request) (*http.Response, error) {
				resp := &http.Response{StatusCode: 503, Header: http.Header{}, ContentLength: -1, Body: http.NoBody}
				if test.response != nil {
					resp.Body = unclosable{test.response}
				}
				return resp, nil
			})
			transport.Trace = &retrip.Trace{Retry: func(retrip.Event) {
				if test.request != nil {
					panic("hook")
				}
			}}
			req := request(t, http.MethodPut, nil)
			if test.request != nil {
				req.Body = unclosable{test.request}
			}
			assert.Panics(t, func() { _, _ = transport.RoundTrip(req) })
			synctest.Wait()
			states := transport.HostStates()
			require.Len(t, states, 1)
			assert.Equal(t, states[0].Size, states[0].Tokens)
			time.Sleep(time.Hour + time.Minute)
			assert.Empty(t, transport.HostStates(), "healed and not pinned")
		})
	}
}

// halfClosed is the body of an upgraded connection.
type halfClosed struct {
	io.ReadWriteCloser
	closed bool
}

func (b *halfClosed) CloseWrite() error { b.closed = true; return nil }

// A proxy ends one direction of an upgraded connection by itself.
func TestTransport_UpgradeCloseWrite(t *testing.T) {
	for name, able := range map[string]bool{"able": true, "unable": false} {
		bubbled(t, name, func(t *testing.T) {
			var rwc struct {
				io.Reader
				io.Writer
				io.Closer
			}
			full := &halfClosed{ReadWriteCloser: rwc}
			transport := &retrip.Transport{Policy: retrip.Policy{AttemptTimeout: time.Second}}
			transport.Base = plays(func(*http.Request) (*http.Response, error) {
				resp := &http.Response{StatusCode: 101, Body: full}
				if !able {
					resp.Body = rwc
				}
				return resp, nil
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			resp, err := transport.RoundTrip(request(t, http.MethodGet, nil).WithContext(ctx))
			require.NoError(t, err)
			body, ok := resp.Body.(interface{ CloseWrite() error })
			require.True(t, ok)
			err = body.CloseWrite()
			assert.Equal(t, able, full.closed)
			if !able {
				assert.ErrorIs(t, err, http.ErrNotSupported)
			}
		})
	}
}

// Over HTTP/2 a server may end its response before it has read the request: what
// is still being sent is not cut.
func TestTransport_ResponseEndsBeforeTheRequest(t *testing.T) {
	for _, tt := range []struct {
		name           string
		major          int
		body           string // of the request
		empty          bool   // response
		atEnd, onClose bool   // whether the attempt's context has ended
	}{
		{"HTTP/2 upload", 2, "upload", false, false, true},
		{"HTTP/2 upload, no response body", 2, "upload", true, false, true},
		{"HTTP/2 without a body", 2, "", false, true, true},
		{"HTTP/2 without any body", 2, "", true, true, true},
		{"HTTP/1.1 upload", 1, "upload", false, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var attempt context.Context
			base := rtFunc(func(r *http.Request) (*http.Response, error) {
				attempt = r.Context()
				body := io.NopCloser(strings.NewReader("done"))
				if tt.empty {
					body = http.NoBody
				}
				return &http.Response{StatusCode: 200, ProtoMajor: tt.major, Body: body, Request: r}, nil
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://example.com/", strings.NewReader(tt.body))
			require.NoError(t, err)
			resp, err := (&retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: time.Minute}}).RoundTrip(req)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			assert.Equal(t, tt.atEnd, attempt.Err() != nil, "at the end of the response")
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, tt.onClose, attempt.Err() != nil, "when it is closed")
		})
	}
}
