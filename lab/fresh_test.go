// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/retrip/retrip"
)

// icebox is a TCP proxy that can freeze its connections, as a firewall does
// that has forgotten them: both ends keep their connection, and no data gets
// through.
type icebox struct {
	conns
	ice atomic.Pointer[atomic.Bool] // for the connections that are made now
}

func newIcebox(t *testing.T, upstream string) *icebox {
	t.Helper()
	b := &icebox{}
	b.ice.Store(new(atomic.Bool))
	require.NoError(t, b.serve(func(client net.Conn) {
		server, ok := b.dial(upstream)
		if !ok {
			return
		}
		defer b.drop(server)
		ice := b.ice.Load()
		var back sync.WaitGroup
		back.Go(func() { forward(client, server, ice) })
		forward(server, client, ice)
		back.Wait()
	}))
	t.Cleanup(b.Close)
	return b
}

// freeze freezes all open connections.
func (b *icebox) freeze() {
	b.ice.Swap(new(atomic.Bool)).Store(true)
}

// forward copies what src sends, including its end, until ice is set.
func forward(dst, src net.Conn, ice *atomic.Bool) {
	buf := make([]byte, 16<<10)
	for {
		n, err := src.Read(buf)
		if ice.Load() {
			if err != nil {
				return
			}
			continue
		}
		if n > 0 {
			_, _ = dst.Write(buf[:n])
		}
		if err != nil {
			dst.Close()
			return
		}
	}
}

// A frozen connection costs one attempt, over HTTP/2 too, and a second freeze
// costs another.
//
//retrip:promise P11
func TestFresh_FrozenConnection(t *testing.T) {
	for _, p := range Protos {
		for _, tt := range []struct {
			name     string
			wrap     func(*http.Transport) http.RoundTripper
			attempts int
			conns    int64 // connections lost to a freeze
		}{
			{"base", func(base *http.Transport) http.RoundTripper { return base }, 2, 1},
			// The behaviour without the fix, since retrip can't see a wrapper's
			// base.
			{"wrapped", func(base *http.Transport) http.RoundTripper { return &signer{Base: base} }, 4, 0},
		} {
			t.Run(string(p)+" "+tt.name, func(t *testing.T) {
				t.Parallel()
				server := Serve(p, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "answer") }))
				t.Cleanup(server.Close)
				box := newIcebox(t, server.Listener.Addr().String())
				base := Base(p, server)
				attempts := 0
				transport := &retrip.Transport{
					Base: tt.wrap(base),
					Policy: retrip.Policy{
						AttemptTimeout: time.Second, Backoff: retrip.Backoff{Base: retrip.Off}, Budget: retrip.Off,
					},
					Trace: &retrip.Trace{Attempt: func(retrip.Event) { attempts++ }},
				}
				client := &http.Client{Transport: transport}
				t.Cleanup(base.CloseIdleConnections)
				t.Cleanup(client.CloseIdleConnections)
				get := func() error {
					resp, err := client.Get(p.Scheme() + "://" + box.Addr() + "/")
					if err != nil {
						return err
					}
					body, err := io.ReadAll(resp.Body)
					assert.Equal(t, "answer", string(body))
					resp.Body.Close()
					return err
				}
				require.NoError(t, get())
				require.EqualValues(t, 1, box.accepted.Load())
				for range 2 {
					box.freeze()
					attempts = 0
					conns := box.accepted.Load()
					began := time.Now()
					err := get()
					t.Logf("%v in %v, %d attempts, %d new connections", err, time.Since(began), attempts, box.accepted.Load()-conns)
					if p == HTTP1 {
						// net/http closes a connection whose request has timed
						// out, and this pool had only one.
						assert.NoError(t, err)
						continue
					}
					assert.Equal(t, tt.conns > 0, err == nil)
					assert.Equal(t, tt.attempts, attempts)
					assert.Equal(t, tt.conns, box.accepted.Load()-conns)
					if tt.conns > 0 {
						attempts = 0
						assert.NoError(t, get())
						assert.Equal(t, 1, attempts, "the next request begins with the new connection")
					}
				}
			})
		}
	}
}

// If golang.org/x/net has configured HTTP/2, it has a pool and settings that a
// copy of the base would lack. Then the base makes every attempt.
func TestFresh_ForeignHTTP2(t *testing.T) {
	server := Serve(HTTP2, http.NotFoundHandler())
	t.Cleanup(server.Close)
	box := newIcebox(t, server.Listener.Addr().String())
	base := Base(HTTP2, server)
	base.Protocols, base.TLSClientConfig.NextProtos = nil, nil
	//lint:ignore SA1019 programs still do it
	_, err := http2.ConfigureTransports(base)
	require.NoError(t, err)
	attempts := 0
	transport := &retrip.Transport{
		Base:   base,
		Policy: retrip.Policy{AttemptTimeout: 200 * time.Millisecond, Backoff: retrip.Backoff{Base: retrip.Off}, Budget: retrip.Off},
		Trace:  &retrip.Trace{Attempt: func(retrip.Event) { attempts++ }},
	}
	client := &http.Client{Transport: transport}
	t.Cleanup(client.CloseIdleConnections)
	resp, err := client.Get("https://" + box.Addr())
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, 2, resp.ProtoMajor)
	require.Equal(t, 1, attempts)
	box.freeze()
	_, err = client.Get("https://" + box.Addr())
	require.Error(t, err)
	assert.Equal(t, 1+4, attempts)
	assert.EqualValues(t, 1, box.accepted.Load())
}
