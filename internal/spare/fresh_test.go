// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"fmt"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

// Earlier responses from a spare don't prove that it still works. One that is replaced keeps
// no connection open.
//
//retrip:promise P11
func TestFresh_FrozenAgain(t *testing.T) {
	for name, set := range map[string]func(w *freshWorld){
		"AttemptTimeout": func(*freshWorld) {},
		"ResponseHeaderTimeout of a plain attempt": func(w *freshWorld) {
			w.transport.Trace, w.transport.Policy.AttemptTimeout = nil, 0
			w.base.ResponseHeaderTimeout = time.Second
		},
		"another scheme is registered": func(w *freshWorld) {
			w.base.RegisterProtocol("file", http.NewFileTransport(http.Dir(".")))
		},
		// The spare may exceed it by one over HTTP/2.
		"MaxConnsPerHost": func(w *freshWorld) { w.base.MaxConnsPerHost = 1 },
	} {
		eachFresh(t, name, play.Protos, func(w *freshWorld) {
			set(w)
			w.warm()
			for n := range 3 {
				w.server.Listener.Freeze()
				began := time.Now()
				w.mustGet()
				assert.Equal(w.t, 1100*time.Millisecond, time.Since(began), "two attempts")
				assert.Equal(w.t, n+2, w.server.Listener.Dials())
				if w.base.Protocols.HTTP1() {
					// net/http has closed the frozen connection.
					_, err := w.get(w.base)
					require.NoError(w.t, err)
				}
			}
			time.Sleep(10 * time.Second) // TLS closes a frozen connection with a delay
			if !w.base.Protocols.HTTP1() {
				assert.Equal(w.t, 2, w.server.Listener.Open(), "those of the base and of the last spare")
			}
		})
	}
}

// Connections that freeze under the first requests that use them.
//
//retrip:promise P11
func TestFresh_FrozenAtOnce(t *testing.T) {
	for _, n := range []int{1, 3} {
		for _, unkept := range []bool{false, true} {
			eachFresh(t, fmt.Sprintf("%d connections/not kept %v", n, unkept), play.Protos, func(w *freshWorld) {
				w.base.DisableKeepAlives = unkept
				var conns atomic.Int64
				ctx := httptrace.WithClientTrace(w.t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
					if conns.Add(1) <= int64(n) {
						w.server.Listener.Freeze()
					}
				}})
				require.NoError(w.t, w.send(w.transport, w.request("GET", "").WithContext(ctx)))
				assert.EqualValues(w.t, n+1, w.attempts.Load())
				assert.Equal(w.t, n+1, w.server.Listener.Dials())
			})
		}
	}
}

// All connections of a pool died at once. A request doesn't try them one by one: after
// two, it gets a new one, unless the caller limits connections.
//
//retrip:promise P11
func TestFresh_WholePoolFrozen(t *testing.T) {
	for _, limit := range []int{0, 8} {
		eachFresh(t, fmt.Sprint("limit ", limit), []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS}, func(w *freshWorld) {
			w.handle = func(http.ResponseWriter, *http.Request) { time.Sleep(time.Millisecond) }
			w.base.MaxConnsPerHost = limit
			require.Zero(w.t, w.parallel(w.base, 8))
			synctest.Wait()
			require.Equal(w.t, 8, w.server.Listener.Open())
			w.server.Listener.Freeze()
			attempts, err := w.get(w.transport)
			if limit == 0 {
				assert.NoError(w.t, err)
				assert.Equal(w.t, 3, attempts)
				assert.Equal(w.t, 9, w.server.Listener.Dials())
			} else {
				assert.Error(w.t, err)
				assert.Equal(w.t, 4, attempts)
				assert.Equal(w.t, 8, w.server.Listener.Dials())
			}
		})
	}
}

// Once the base is known to be frozen, later requests begin with the spare, whatever their
// method, until the base delivers a response.
//
//retrip:promise P11
func TestFresh_LaterRequests(t *testing.T) {
	eachFresh(t, "", bothHTTP2, func(w *freshWorld) {
		conns := map[any]int{}
		w.handle = func(_ http.ResponseWriter, r *http.Request) { conns[memhttp.RequestConn(r)]++ }
		w.warm()
		for n := range 3 {
			w.server.Listener.Freeze()
			w.succeeds(2)
			began := time.Now()
			for i := range 20 {
				require.NoError(w.t, w.send(w.transport, w.request([]string{"GET", "POST"}[i%2], "")))
				time.Sleep(20 * time.Second)
			}
			assert.Equal(w.t, 400*time.Second, time.Since(began), "none waits")
			assert.Equal(w.t, 2+n, len(conns))
		}
		// The base has closed its connection, and a request gets to it.
		w.base.CloseIdleConnections()
		time.Sleep(time.Second)
		_, err := w.get(w.base)
		require.NoError(w.t, err)
		time.Sleep(time.Minute)
		w.succeeds(1)
		assert.Equal(w.t, 5, len(conns), "the connection of the base")
	})
}

// A POST isn't retried, but two that time out in a row are enough for the third. If the
// spare freezes then, one is.
//
//retrip:promise P11
func TestFresh_LaterRequestsWithoutRetry(t *testing.T) {
	eachFresh(t, "", bothHTTP2, func(w *freshWorld) {
		w.warm()
		w.server.Listener.Freeze()
		for n := range 10 {
			err := w.send(w.transport, w.request(http.MethodPost, ""))
			assert.Equal(w.t, n < 2 || n == 5, err != nil)
			if n == 4 {
				w.server.Listener.Freeze()
			}
		}
	})
}

// The connections of base and spare die at once while both carry requests. A
// response of the spare at the beginning of the attempt doesn't prove that the
// spare still works.
func TestFresh_SpareFrozenMeanwhile(t *testing.T) {
	eachFresh(t, "", bothHTTP2, func(w *freshWorld) {
		w.warm()
		w.server.Listener.Freeze()
		var wg sync.WaitGroup
		wg.Go(w.mustGet)
		time.Sleep(time.Second)
		began := time.Now()
		wg.Go(w.mustGet)
		time.Sleep(200 * time.Millisecond) // the first retry gets its response
		w.server.Listener.Freeze()
		wg.Wait()
		assert.Equal(w.t, 1100*time.Millisecond, time.Since(began))
		assert.EqualValues(w.t, 4, w.attempts.Load())
		assert.Equal(w.t, 3, w.server.Listener.Dials())
	})
}

// A retry after a response from the spare uses the spare again: the pool of the
// base is still suspect.
func TestFresh_StaysAfterAFailure(t *testing.T) {
	eachFresh(t, "", play.Protos, func(w *freshWorld) {
		answers := 0
		w.handle = func(rw http.ResponseWriter, r *http.Request) {
			switch answers++; answers {
			case 2:
				rw.WriteHeader(http.StatusServiceUnavailable)
			case 3:
				memhttp.RequestConn(r).Reset()
				panic(http.ErrAbortHandler)
			}
		}
		w.warm()
		w.server.Listener.Freeze()
		began := time.Now()
		if w.base.Protocols.HTTP1() {
			w.succeeds(3) // net/http resends after the reset, within the attempt
			assert.Equal(w.t, 1300*time.Millisecond, time.Since(began))
		} else {
			w.succeeds(4)
			assert.Equal(w.t, 1700*time.Millisecond, time.Since(began))
		}
		assert.Equal(w.t, 3, w.server.Listener.Dials())
	})
}
