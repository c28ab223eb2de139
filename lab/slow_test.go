// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// A late answer fails no request if connecting takes longer than an attempt.
//
//retrip:promise P11
func TestFresh_SlowToConnect(t *testing.T) {
	for _, p := range Protos {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			var late atomic.Int64
			server := Serve(p, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if late.Add(-1) == 0 {
					<-r.Context().Done()
				}
			}))
			t.Cleanup(server.Close)
			base := Base(p, server)
			base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				select {
				case <-time.After(1200 * time.Millisecond):
					return new(net.Dialer).DialContext(ctx, network, addr)
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			transport := &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: 800 * time.Millisecond, Budget: retrip.Off}}
			client := &http.Client{Transport: transport}
			t.Cleanup(client.CloseIdleConnections)
			resp, err := (&http.Client{Transport: base}).Get(server.URL)
			require.NoError(t, err)
			resp.Body.Close()
			for range 2 {
				late.Store(1)
				resp, err := client.Get(server.URL)
				require.NoError(t, err)
				resp.Body.Close()
			}
		})
	}
}
