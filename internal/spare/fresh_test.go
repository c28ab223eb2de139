// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
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
	"github.com/retrip/retrip/internal/testenv"
)

func TestMain(m *testing.M) { testenv.RareGC(m) }

// hasty allows each attempt one second, and waits 100 ms before the first
// retry.
var hasty = retrip.Policy{
	AttemptTimeout: time.Second,
	Backoff:        retrip.Backoff{Base: 100 * time.Millisecond, Jitter: retrip.NoJitter},
}

var (
	allProtos = []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2, memhttp.H2C}
	bothHTTP2 = []memhttp.Proto{memhttp.HTTP2, memhttp.H2C}
)

// freshWorld is a server whose connections can freeze, and a Transport over a
// base of its own.
type freshWorld struct {
	t         *testing.T
	server    *memhttp.Server
	handle    http.HandlerFunc // nil: answers at once
	base      *http.Transport
	transport *retrip.Transport
	attempts  atomic.Int64
	unsent    atomic.Int64 // of these, those that got no connection, and so were retried
}

// eachFresh runs f in a bubble for each protocol.
func eachFresh(t *testing.T, protos []memhttp.Proto, f func(w *freshWorld)) {
	t.Helper()
	for _, proto := range protos {
		t.Run(proto.String(), func(t *testing.T) { bubble(t, proto, f) })
	}
}

func bubble(t *testing.T, proto memhttp.Proto, f func(w *freshWorld)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { f(newFreshWorld(t, proto)) })
}

func newFreshWorld(t *testing.T, proto memhttp.Proto) *freshWorld {
	w := &freshWorld{t: t}
	w.server = memhttp.NewServer(t, proto, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.handle != nil {
			w.handle(rw, r)
		}
	}))
	w.base = w.server.Transport()
	w.base.MaxIdleConnsPerHost = 16
	policy := hasty
	policy.Budget = retrip.Off // otherwise there would be no retry after two timeouts in a row
	w.transport = &retrip.Transport{
		Base: w.base, Policy: policy,
		Trace: &retrip.Trace{
			Attempt: func(retrip.Event) { w.attempts.Add(1) },
			Retry: func(e retrip.Event) {
				if e.Err != nil && strings.Contains(e.Err.Error(), "awaiting a connection") {
					w.unsent.Add(1)
				}
			},
		},
	}
	return w
}

// send makes a request and reads its response.
func (w *freshWorld) send(ctx context.Context, rt http.RoundTripper, method, path string) error {
	req, err := http.NewRequestWithContext(ctx, method, w.server.URL+path, nil)
	require.NoError(w.t, err)
	resp, err := rt.RoundTrip(req)
	if err == nil {
		assert.Same(w.t, req, resp.Request)
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	return err
}

// get makes a request and returns the number of attempts.
func (w *freshWorld) get(rt http.RoundTripper) (attempts int, err error) {
	w.t.Helper()
	before := w.attempts.Load()
	err = w.send(w.t.Context(), rt, http.MethodGet, "")
	return int(w.attempts.Load() - before), err
}

// succeeds makes a request, which takes that many attempts.
func (w *freshWorld) succeeds(attempts int) {
	w.t.Helper()
	n, err := w.get(w.transport)
	require.NoError(w.t, err)
	assert.Equal(w.t, attempts, n)
}

// parallel makes n requests at once and returns the number of failures.
func (w *freshWorld) parallel(rt http.RoundTripper, n int) (failed int64) {
	var wg sync.WaitGroup
	var errs atomic.Int64
	for range n {
		wg.Go(func() {
			if _, err := w.get(rt); err != nil {
				errs.Add(1)
			}
		})
	}
	wg.Wait()
	return errs.Load()
}

// warm leaves a connection in the pool of the base.
func (w *freshWorld) warm() {
	w.t.Helper()
	_, err := w.get(w.base)
	require.NoError(w.t, err)
	synctest.Wait()
	require.Equal(w.t, 1, w.server.Listener.Open())
}

// beforeDial has f run before each dial of the base, which fails if f does.
func (w *freshWorld) beforeDial(f func(ctx context.Context) error) {
	dial := w.base.DialContext
	w.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if err := f(ctx); err != nil {
			return nil, err
		}
		return dial(ctx, network, addr)
	}
}

// await waits for d, or for the end of ctx.
func await(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// ends waits until r's client has gone.
func ends(r *http.Request) { <-r.Context().Done() }

// frozenAtOnce is a context in which the first n connections freeze as a request gets them.
func (w *freshWorld) frozenAtOnce(n int64) context.Context {
	var conns atomic.Int64
	return httptrace.WithClientTrace(w.t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		if conns.Add(1) <= n {
			w.server.Listener.Freeze()
		}
	}})
}

// Earlier responses from a spare don't prove that it still works. One that is replaced keeps
// no connection open.
//
//retrip:promise P11
func TestFresh_FrozenAgain(t *testing.T) {
	t.Parallel()
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachFresh(t, allProtos, func(w *freshWorld) {
				set(w)
				w.warm()
				for n := range 3 {
					w.server.Listener.Freeze()
					began := time.Now()
					_, err := w.get(w.transport)
					require.NoError(w.t, err)
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
		})
	}
}

// Connections that freeze under the first requests that use them.
//
//retrip:promise P11
func TestFresh_FrozenAtOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		for _, unkept := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d connections/not kept %v", n, unkept), func(t *testing.T) {
				t.Parallel()
				eachFresh(t, allProtos, func(w *freshWorld) {
					w.base.DisableKeepAlives = unkept
					require.NoError(w.t, w.send(w.frozenAtOnce(int64(n)), w.transport, "GET", ""))
					assert.EqualValues(w.t, n+1, w.attempts.Load())
					assert.Equal(w.t, n+1, w.server.Listener.Dials())
				})
			})
		}
	}
}

// All connections of a pool died at once. A request doesn't try them one by one: after
// two, it gets a new one.
//
//retrip:promise P11
func TestFresh_WholePoolFrozen(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name               string
		most               int // MaxConnsPerHost
		attempts, newConns int
	}{
		{"no limit", 0, 3, 1},
		// The caller's limit applies, so net/http goes through its pool.
		{"limit", 8, 4, 0},
	} {
		for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS} {
			t.Run(tt.name+" "+proto.String(), func(t *testing.T) {
				bubble(t, proto, func(w *freshWorld) {
					w.handle = func(http.ResponseWriter, *http.Request) { time.Sleep(time.Millisecond) }
					w.base.MaxConnsPerHost = tt.most
					require.Zero(w.t, w.parallel(w.base, 8))
					synctest.Wait()
					require.Equal(w.t, 8, w.server.Listener.Open())
					w.server.Listener.Freeze()
					attempts, err := w.get(w.transport)
					assert.Equal(w.t, tt.newConns > 0, err == nil)
					assert.Equal(w.t, tt.attempts, attempts)
					assert.Equal(w.t, 8+tt.newConns, w.server.Listener.Dials())
				})
			})
		}
	}
}

// Once the base is known to be frozen, later requests begin with the spare, whatever their
// method, until the base delivers a response.
//
//retrip:promise P11
func TestFresh_LaterRequests(t *testing.T) {
	t.Parallel()
	eachFresh(t, bothHTTP2, func(w *freshWorld) {
		conns := map[any]int{}
		w.handle = func(_ http.ResponseWriter, r *http.Request) { conns[memhttp.RequestConn(r)]++ }
		w.warm()
		for n := range 3 {
			w.server.Listener.Freeze()
			w.succeeds(2)
			began := time.Now()
			for i := range 20 {
				require.NoError(w.t, w.send(w.t.Context(), w.transport, []string{"GET", "POST"}[i%2], ""))
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
	t.Parallel()
	eachFresh(t, bothHTTP2, func(w *freshWorld) {
		w.warm()
		w.server.Listener.Freeze()
		for n := range 10 {
			err := w.send(w.t.Context(), w.transport, http.MethodPost, "")
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
	t.Parallel()
	eachFresh(t, bothHTTP2, func(w *freshWorld) {
		w.warm()
		w.server.Listener.Freeze()
		var wg sync.WaitGroup
		get := func() {
			wg.Go(func() {
				_, err := w.get(w.transport)
				assert.NoError(w.t, err)
			})
		}
		get()
		time.Sleep(time.Second)
		began := time.Now()
		get()
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
	t.Parallel()
	eachFresh(t, allProtos, func(w *freshWorld) {
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
