// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

// turncoat is a host whose connections speak HTTP/2 first and HTTP/1 later, as
// behind a load balancer with backends that differ.
func turncoat(t *testing.T, ownTLS bool, slow time.Duration) (w *freshWorld, turn func(), open func() int) {
	w, old := newFreshWorld(t, memhttp.HTTP2), newFreshWorld(t, memhttp.HTTPS)
	w.handle = func(http.ResponseWriter, *http.Request) { time.Sleep(300 * time.Millisecond) }
	old.handle = w.handle
	var turned atomic.Bool
	dial := w.base.DialContext
	w.base.Protocols.SetHTTP1(true)
	w.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		time.Sleep(slow)
		if turned.Load() {
			return old.base.DialContext(ctx, network, addr)
		}
		return dial(ctx, network, addr)
	}
	if ownTLS {
		// The program's own dialer makes TLS connections.
		config := w.base.TLSClientConfig.Clone()
		config.NextProtos, config.ServerName = []string{"h2", "http/1.1"}, "example.com"
		plain := w.base.DialContext
		w.base.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := plain(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return tls.Client(c, config), nil
		}
	}
	turn = func() { turned.Store(true); w.server.Listener.Freeze() }
	open = func() int { return w.server.Listener.Open() + old.server.Listener.Open() }
	return w, turn, open
}

// A spare has one connection. If that speaks HTTP/1, it serves what it can: one request
// always, and of many more than the base alone would.
//
//retrip:promise P11
func TestSpare_SpeaksHTTP1(t *testing.T) {
	for _, own := range []bool{false, true} {
		for _, n := range []int{1, 2, 20} {
			for _, slow := range []time.Duration{0, 300 * time.Millisecond} {
				play.Bubble(t, fmt.Sprintf("%d requests/own TLS %v/dial %v", n, own, slow), func(t *testing.T) {
					w, turn, _ := turncoat(t, own, slow)
					w.warm()
					turn()
					failed := w.parallel(w.transport, n)
					assert.Less(t, failed, n)
					if n <= 2 {
						assert.Zero(t, failed)
					}
					w.transport.CloseIdleConnections()
					w.base.CloseIdleConnections()
					time.Sleep(time.Minute)
				})
			}
		}
	}
}

// If the base limits connections, the spare stays with its one connection, which
// serves what it can: an HTTP/1 request that is cut off takes it along.
//
//retrip:promise P11
func TestSpare_SpeaksHTTP1WithinTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, turn, open := turncoat(t, false, 0)
		w.base.MaxConnsPerHost = 5
		most := 0
		dial := w.base.DialContext
		w.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			defer func() { most = max(most, open()) }()
			return dial(ctx, network, addr)
		}
		w.warm()
		turn()
		assert.Less(t, w.parallel(w.transport, 20), 17, "the one connection serves what it can")
		// The frozen connection, the spare's, and one that is being replaced: net/http
		// dials the next before it closes the last.
		assert.LessOrEqual(t, most, 3)
		w.transport.CloseIdleConnections()
		time.Sleep(time.Minute)
	})
}
