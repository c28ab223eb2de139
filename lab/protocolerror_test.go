// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/retrip/retrip"
)

// A peer's PROTOCOL_ERROR proves nothing about a request. Bare net/http still
// repeats a POST after it, without limit, if the caller's request has GetBody.
// retrip can't prevent that, but bounds it (P6, P18).
//
//retrip:promise P6 P18
func TestProtocolError_NetHTTPRepeatsAPOST(t *testing.T) {
	server := func(t *testing.T) *frameServer {
		return newFrameServer(t, func(f *frameConn, stream uint32, _ int64) bool {
			return f.WriteRSTStream(stream, http2.ErrCodeProtocol) == nil
		})
	}
	post := func(t *testing.T, limit time.Duration, url string, body io.Reader) *http.Request {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		t.Cleanup(cancel)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
		require.NoError(t, err)
		return req
	}
	t.Run("bare net/http, GetBody", func(t *testing.T) {
		const enough = 50
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := newFrameServer(t, func(f *frameConn, stream uint32, number int64) bool {
			if number > enough {
				cancel()
			}
			return f.WriteRSTStream(stream, http2.ErrCodeProtocol) == nil
		})
		_, err := h2cBase(t).RoundTrip(post(t, 20*time.Second, s.URL, strings.NewReader("body")).WithContext(ctx))
		require.Error(t, err)
		assert.Greater(t, s.requests.Load(), int64(enough))
	})
	t.Run("bare net/http, stream", func(t *testing.T) {
		s := server(t)
		_, err := h2cBase(t).RoundTrip(post(t, 20*time.Second, s.URL, stream("body")))
		require.Error(t, err)
		assert.Equal(t, int64(1), s.requests.Load())
	})
	t.Run("a timeout, GetBody", func(t *testing.T) {
		s := server(t)
		transport := &retrip.Transport{Base: h2cBase(t), Policy: retrip.Policy{AttemptTimeout: time.Minute, Backoff: retrip.Backoff{Base: retrip.Off}}}
		req := post(t, 20*time.Second, s.URL, strings.NewReader("body"))
		_, err := transport.RoundTrip(req)
		require.Error(t, err)
		require.NoError(t, req.Context().Err(), "it must end by the bound")
		assert.LessOrEqual(t, s.requests.Load(), int64(10+1), "one attempt: nothing proves that another is safe")
	})
}
