// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// upload is a body that records its Close.
type upload struct {
	io.Reader
	closed atomic.Bool
}

func (u *upload) Close() error { u.closed.Store(true); return nil }

// A server that refuses uploads leaves no file open, also if net/http has taken a
// copy of the body for a send that never began.
//
//retrip:promise P2
func TestRefusedUploads_AreClosed(t *testing.T) {
	const size = 6000
	name := filepath.Join(t.TempDir(), "upload")
	require.NoError(t, os.WriteFile(name, make([]byte, size), 0o600))
	for server, request := range map[string]func(*frameConn, uint32, int64) bool{
		"REFUSED_STREAM": refuse,
		"GOAWAY":         goAway,
		"GOAWAY once": func(f *frameConn, stream uint32, number int64) bool {
			if number%2 == 1 {
				return goAway(f, stream, number)
			}
			return f.respond(stream, "200") == nil
		},
		"closed": func(*frameConn, uint32, int64) bool { return false },
	} {
		for kind, base := range map[string]func(t *testing.T) http.RoundTripper{
			"net/http": func(t *testing.T) http.RoundTripper { return h2cBase(t) },
			"x/net": func(t *testing.T) http.RoundTripper {
				//lint:ignore SA1019 programs still use it
				return &http2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, network, addr string, _ *tls.Config) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, network, addr)
				}}
			},
		} {
			t.Run(server+"/"+kind, func(t *testing.T) {
				t.Parallel()
				url := newFrameServer(t, request).URL
				transport := &retrip.Transport{Base: base(t), Policy: retrip.Policy{AttemptTimeout: 300 * time.Millisecond, Budget: retrip.Off}}
				var wg sync.WaitGroup
				var open atomic.Int32
				for i := range 20 {
					wg.Go(func() {
						stream := &upload{Reader: strings.NewReader(strings.Repeat("x", size))}
						var body io.ReadCloser = stream
						isClosed := stream.closed.Load
						if i%2 == 0 {
							file, err := os.Open(name)
							if !assert.NoError(t, err) {
								return
							}
							body = file
							isClosed = func() bool { _, err := file.Stat(); return err != nil }
						}
						req := play.MustRequest(t, http.MethodPut, url, body)
						req.ContentLength = size
						_ = testenv.Try(transport, req)
						if !assert.Eventually(t, isClosed, 10*time.Second, 5*time.Millisecond) {
							open.Add(1)
						}
					})
				}
				wg.Wait()
				assert.Zero(t, open.Load(), "bodies of 20 are still open")
			})
		}
	}
}
