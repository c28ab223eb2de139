// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFresh_CloseIdleConnections(t *testing.T) {
	t.Parallel()
	eachFresh(t, allProtos, func(w *freshWorld) {
		w.warm()
		w.server.Listener.Freeze()
		_, err := w.get(w.transport)
		require.NoError(w.t, err)
		synctest.Wait()
		require.NotZero(w.t, w.server.Listener.Open())
		(&http.Client{Transport: w.transport}).CloseIdleConnections()
		time.Sleep(time.Second) // TLS closes a frozen connection with a delay
		assert.Zero(w.t, w.server.Listener.Open())

		attempts, err := w.get(w.transport)
		require.NoError(w.t, err)
		assert.Equal(w.t, 1, attempts)
	})
}

// An unused spare keeps no connection open, whatever the base does with its
// own.
func TestFresh_IdleSpareEnds(t *testing.T) {
	t.Parallel()
	for name, idle := range map[string]time.Duration{"base keeps them": 0, "base keeps them longer": time.Hour, "base keeps them less": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachFresh(t, allProtos, func(w *freshWorld) {
				w.base.IdleConnTimeout = idle
				w.warm()
				w.server.Listener.Freeze()
				_, err := w.get(w.transport)
				require.NoError(w.t, err)
				w.base.CloseIdleConnections()
				synctest.Wait()
				require.Equal(w.t, 1, w.server.Listener.Open())
				assert.Empty(w.t, w.transport.HostStates(), "the host is healthy")
				most := 30 * time.Second
				if idle > 0 {
					most = min(most, idle)
				}
				time.Sleep(most - time.Millisecond)
				assert.Equal(w.t, 1, w.server.Listener.Open())
				time.Sleep(2 * time.Millisecond)
				assert.Zero(w.t, w.server.Listener.Open())
			})
		})
	}
}

// A body that still arrives from a spare survives the replacement of the spare
// and the closing of idle connections.
func TestFresh_BodyOfAnOldSpare(t *testing.T) {
	t.Parallel()
	for _, proto := range allProtos {
		t.Run(proto.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFreshWorld(t, proto, func(rw http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/hang" {
						<-r.Context().Done()
					}
					if r.URL.Path == "/long" {
						for range 60 {
							_, _ = io.WriteString(rw, strings.Repeat("x", 100))
							_ = http.NewResponseController(rw).Flush()
							time.Sleep(time.Second)
						}
					}
				})
				w.warm()
				w.server.Listener.Freeze()
				resp, err := (&http.Client{Transport: w.transport}).Get(w.server.URL + "/long")
				require.NoError(t, err)
				long := w.server.Listener.Dials()
				done := make(chan int)
				go func() {
					body, err := io.ReadAll(resp.Body)
					assert.NoError(t, err)
					assert.NoError(t, resp.Body.Close())
					done <- len(body)
				}()
				time.Sleep(5 * time.Second)
				_, err = (&http.Client{Transport: w.transport}).Get(w.server.URL + "/hang")
				require.Error(t, err)
				assert.Greater(t, w.server.Listener.Dials(), long)
				w.transport.CloseIdleConnections()
				assert.Equal(t, 6000, <-done)
				time.Sleep(31 * time.Second)
				assert.Zero(t, w.server.Listener.Open())
			})
		})
	}
}
