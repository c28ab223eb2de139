// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

// turncoat is a host whose connections speak HTTP/2 first and HTTP/1 later, as
// behind a load balancer with backends that differ.
func turncoat(t *testing.T, slow time.Duration) (w *freshWorld, turn func()) {
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
	return w, func() { turned.Store(true); w.server.Listener.Freeze() }
}

// A spare has one connection. If that speaks HTTP/1, it serves what it can: one request
// always, and of many more than the base alone would.
//
//retrip:promise P11
func TestSpare_SpeaksHTTP1(t *testing.T) {
	for _, n := range []int{1, 2, 20} {
		for _, slow := range []time.Duration{0, 300 * time.Millisecond} {
			play.Bubble(t, fmt.Sprintf("%d requests/dial %v", n, slow), func(t *testing.T) {
				w, turn := turncoat(t, slow)
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
