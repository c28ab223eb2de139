// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// A server that refuses uploads leaves none open, also if golang.org/x/net, as net/http,
// has taken a copy of the body for a send that never began.
//
//retrip:promise P2
func TestRefusedUploads_AreClosed(t *testing.T) {
	for name, answer := range map[string]func(w *play.H2Writer, conn int, stream uint32){
		"REFUSED_STREAM": func(w *play.H2Writer, _ int, stream uint32) { w.Reset(stream, uint32(http2.ErrCodeRefusedStream)) },
		"GOAWAY":         func(w *play.H2Writer, _ int, _ uint32) { w.GoAway(0, 0) },
		"closed":         func(w *play.H2Writer, _ int, _ uint32) { w.Close() },
		"GOAWAY in turn": func(w *play.H2Writer, conn int, stream uint32) {
			if conn%2 == 1 {
				w.GoAway(0, 0)
				return
			}
			w.OK(stream)
		},
	} {
		play.Bubble(t, name, func(t *testing.T) {
			_, server := play.H2Server(t, answer)
			//lint:ignore SA1019 programs still use it
			base := &http2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, network, addr string, _ *tls.Config) (net.Conn, error) {
				return server.Dial(ctx, network, addr)
			}}
			t.Cleanup((&http.Client{Transport: base}).CloseIdleConnections)
			transport := &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: 300 * time.Millisecond, Budget: retrip.Off}}
			for range 20 {
				body := play.NewSend(strings.Repeat("x", 6000))
				req := play.MustRequest(t, http.MethodPut, "http://example.com/", body)
				req.ContentLength = 6000
				_ = testenv.Try(transport, req)
				synctest.Wait()
				assert.EqualValues(t, 1, body.Closed.Load())
			}
		})
	}
}

// If golang.org/x/net has configured HTTP/2, it has a pool and settings that a
// copy of the base would lack. Then the base makes every attempt.
func TestFresh_ForeignHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memhttp.NewServer(t, memhttp.HTTP2, http.NotFoundHandler())
		base := server.Transport()
		base.Protocols = nil
		//lint:ignore SA1019 programs still do it
		_, err := http2.ConfigureTransports(base)
		require.NoError(t, err)
		attempts := 0
		transport := &retrip.Transport{
			Base:   base,
			Policy: retrip.Policy{AttemptTimeout: time.Second, Backoff: retrip.Backoff{Base: retrip.Off}, Budget: retrip.Off},
			Trace:  &retrip.Trace{Attempt: func(retrip.Event) { attempts++ }},
		}
		resp, _ := play.Do(t, transport, play.MustRequest(t, http.MethodGet, server.URL, nil))
		require.Equal(t, 2, resp.ProtoMajor)
		server.Listener.Freeze()
		require.Error(t, testenv.Try(transport, play.MustRequest(t, http.MethodGet, server.URL, nil)))
		assert.Equal(t, 1+4, attempts)
		assert.Equal(t, 1, server.Listener.Dials())
	})
}
