// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/play"
)

// CloseIdleConnections reaches the connections that were in use at an earlier call, even of a
// spare that has been replaced meanwhile. It cuts no body that still arrives, and later requests
// go on avoiding a connection that has frozen.
//
//retrip:promise P11 P13
func TestFresh_CloseIdleConnections(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		eachBubble(t, fmt.Sprintf("replaced %v", replaced), bothHTTP2, func(w *freshWorld) {
			release := make(chan struct{})
			w.handle = func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/hang" {
					ends(r)
				}
				if r.URL.Path == "/long" {
					_, _ = io.WriteString(rw, "first ")
					play.Flush(rw)
					<-release
					_, _ = io.WriteString(rw, "rest")
				}
			}
			w.warm()
			w.server.Listener.Freeze()
			client := &http.Client{Transport: w.transport}
			resp, err := client.Do(w.request("GET", "/long"))
			require.NoError(w.t, err)
			if replaced {
				require.Error(w.t, w.send(w.transport, w.request("GET", "/hang")))
			}
			client.CloseIdleConnections()
			w.succeeds(1)
			time.Sleep(10 * time.Minute)
			runtime.GC()
			assert.Equal(w.t, 1, w.server.Listener.Open())
			close(release)
			assert.Equal(w.t, "first rest", play.Finish(w.t, resp))
			synctest.Wait()
			assert.Equal(w.t, 1, w.server.Listener.Open())
			client.CloseIdleConnections()
			time.Sleep(time.Second) // TLS closes with a delay
			assert.Zero(w.t, w.server.Listener.Open())
			w.succeeds(1)
		})
	}
}

// listened is a context that counts who waits for its end.
type listened struct {
	context.Context
	done    chan struct{}
	waiting atomic.Int64
}

func (c *listened) Done() <-chan struct{} { return c.done }

func (c *listened) AfterFunc(func()) (stop func() bool) {
	c.waiting.Add(1)
	return func() bool { c.waiting.Add(-1); return true }
}

// A request leaves nothing in a context that the caller goes on using, with a
// timeout of retrip's or of the base's.
//
//retrip:promise P13
func TestFresh_ContextsEndWithTheBody(t *testing.T) {
	for _, bare := range []bool{false, true} {
		eachBubble(t, fmt.Sprint("bare ", bare), play.Protos, func(w *freshWorld) {
			if bare {
				w.base.ResponseHeaderTimeout = w.transport.Policy.AttemptTimeout
				w.transport.Policy.AttemptTimeout, w.transport.Trace = 0, nil
			}
			w.warm()
			ctx := &listened{Context: w.t.Context(), done: make(chan struct{})}
			for range 8 {
				w.server.Listener.Freeze()
				require.NoError(w.t, w.send(w.transport, w.request("GET", "").WithContext(ctx)))
			}
			synctest.Wait()
			assert.Zero(w.t, ctx.waiting.Load())
		})
	}
}
