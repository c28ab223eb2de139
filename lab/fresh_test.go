// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/http"
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
