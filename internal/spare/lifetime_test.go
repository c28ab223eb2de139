// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
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

// CloseIdleConnections reaches the connections that were in use at an earlier call, even of a
// spare that has been replaced meanwhile.
//
//retrip:promise P13
func TestFresh_CloseIdleConnectionsAgain(t *testing.T) {
	t.Parallel()
	for _, replaced := range []bool{false, true} {
		for _, proto := range bothHTTP2 {
			t.Run(fmt.Sprintf("%v replaced %v", proto, replaced), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					release := make(chan struct{})
					w := newFreshWorld(t, proto, func(rw http.ResponseWriter, r *http.Request) {
						if r.URL.Path == "/hang" {
							<-r.Context().Done()
						}
						if r.URL.Path == "/long" {
							_ = http.NewResponseController(rw).Flush()
							<-release
						}
					})
					w.warm()
					w.server.Listener.Freeze()
					resp, err := (&http.Client{Transport: w.transport}).Get(w.server.URL + "/long")
					require.NoError(t, err)
					if replaced {
						_, err = (&http.Client{Transport: w.transport}).Get(w.server.URL + "/hang")
						require.Error(t, err)
					}
					w.transport.CloseIdleConnections()
					time.Sleep(10 * time.Minute)
					runtime.GC()
					assert.NotZero(t, w.server.Listener.Open())
					close(release)
					_, err = io.Copy(io.Discard, resp.Body)
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
					synctest.Wait()
					assert.NotZero(t, w.server.Listener.Open())
					w.transport.CloseIdleConnections()
					time.Sleep(time.Second) // TLS closes with a delay
					assert.Zero(t, w.server.Listener.Open())
				})
			})
		}
	}
}

// An unused spare keeps no connection open, whatever the base does with its
// own.
func TestFresh_IdleSpareEnds(t *testing.T) {
	t.Parallel()
	for name, idle := range map[string]time.Duration{"base keeps them": 0, "base keeps them longer": time.Hour, "base keeps them less": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachFresh(t, bothHTTP2, func(w *freshWorld) {
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

// net/http keeps the contexts of requests that waited for another request's
// connection, for as long as it keeps the pool. They go with the spare.
//
//retrip:promise P13
func TestFresh_ContextsGoWithTheSpare(t *testing.T) {
	t.Parallel()
	var held atomic.Int64
	var transport *retrip.Transport
	synctest.Test(t, func(t *testing.T) {
		w := newFreshWorld(t, memhttp.HTTP2, func(http.ResponseWriter, *http.Request) {})
		transport = w.transport
		w.warm()
		w.server.Listener.Freeze()
		var requests sync.WaitGroup
		for range 16 {
			requests.Go(func() {
				mark := new([64]byte)
				held.Add(1)
				runtime.AddCleanup(mark, func(n *atomic.Int64) { n.Add(-1) }, &held)
				req, err := http.NewRequestWithContext(context.WithValue(t.Context(), w, mark), http.MethodGet, w.server.URL, nil)
				if assert.NoError(t, err) {
					resp, err := w.transport.RoundTrip(req)
					if assert.NoError(t, err) {
						assert.NoError(t, resp.Body.Close())
					}
				}
			})
		}
		requests.Wait()
		time.Sleep(30 * time.Second)
	})
	for range 100 {
		if runtime.GC(); held.Load() == 0 {
			break
		}
		runtime.Gosched()
	}
	assert.Zero(t, held.Load(), "requests whose context is still referenced")
	runtime.KeepAlive(transport)
}

// A body that still arrives from a spare survives the replacement of the spare
// and the closing of idle connections.
//
//retrip:promise P11
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

// Over HTTP/1 a spare has several connections, and one that delivers responses
// says nothing about the others. A retry never gets one that is older than the
// attempt that timed out.
//
//retrip:promise P11
func TestFresh_OneConnectionDoesNotSpeakForAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		attempts := map[string]int{}
		answered := map[any]time.Time{} // by connection
		idle := map[string]time.Duration{}
		w := newFreshWorld(t, memhttp.HTTP1, func(_ http.ResponseWriter, r *http.Request) {
			conn := memhttp.RequestConn(r)
			mu.Lock()
			attempts[r.URL.Path]++
			first := attempts[r.URL.Path] == 1
			if at, ok := answered[conn]; ok && !first {
				idle[r.URL.Path] = time.Since(at)
			}
			mu.Unlock()
			if first {
				<-r.Context().Done()
				return
			}
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			answered[conn] = time.Now()
			mu.Unlock()
		})
		var requests sync.WaitGroup
		get := func(path string) {
			requests.Go(func() {
				resp, err := (&http.Client{Transport: w.transport}).Get(w.server.URL + path)
				if assert.NoError(t, err) {
					assert.NoError(t, resp.Body.Close())
				}
			})
		}
		// Two retries at once take two connections; from then on, one is enough.
		get("/a")
		get("/b")
		for i := range 40 {
			time.Sleep(300 * time.Millisecond)
			get("/" + strconv.Itoa(i))
		}
		time.Sleep(300 * time.Millisecond)
		get("/x")
		get("/y")
		requests.Wait()
		for path, d := range idle {
			assert.LessOrEqual(t, d, 1100*time.Millisecond, "%s: timeout and backoff", path)
		}
		assert.Len(t, attempts, 44)
		w.transport.CloseIdleConnections()
	})
}

// A spare that is replaced keeps no idle connection open.
func TestFresh_ReplacedSpareEnds(t *testing.T) {
	t.Parallel()
	eachFresh(t, bothHTTP2, func(w *freshWorld) {
		w.warm()
		for range 3 {
			w.server.Listener.Freeze()
			_, err := w.get(w.transport)
			require.NoError(w.t, err)
		}
		time.Sleep(10 * time.Second) // TLS closes a frozen connection with a delay
		assert.Equal(w.t, 4, w.server.Listener.Dials())
		assert.Equal(w.t, 2, w.server.Listener.Open(), "those of the base and of the last spare")
	})
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
	t.Parallel()
	for _, bare := range []bool{false, true} {
		eachFresh(t, allProtos, func(w *freshWorld) {
			if bare {
				w.base.ResponseHeaderTimeout = w.transport.Policy.AttemptTimeout
				w.transport.Policy.AttemptTimeout, w.transport.Trace = 0, nil
			}
			w.warm()
			ctx := &listened{Context: w.t.Context(), done: make(chan struct{})}
			for range 8 {
				w.server.Listener.Freeze()
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.server.URL, nil)
				require.NoError(w.t, err)
				resp, err := w.transport.RoundTrip(req)
				require.NoError(w.t, err)
				_, _ = io.Copy(io.Discard, resp.Body)
				require.NoError(w.t, resp.Body.Close())
			}
			synctest.Wait()
			assert.Zero(w.t, ctx.waiting.Load())
		})
	}
}
