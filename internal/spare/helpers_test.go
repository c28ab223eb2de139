// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"context"
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
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

func TestMain(m *testing.M) { testenv.RareGC(m) }

var bothHTTP2 = []memhttp.Proto{memhttp.HTTP2, memhttp.H2C}

// freshWorld is a server whose connections can freeze, and a Transport over a
// base of its own.
type freshWorld struct {
	t         *testing.T
	proto     memhttp.Proto
	server    *memhttp.Server
	handle    http.HandlerFunc // nil: answers at once
	conns     sync.Map         // those that have carried requests
	base      *http.Transport
	transport *retrip.Transport
	attempts  atomic.Int64
	unsent    atomic.Int64 // of these, those that got no connection, and so were retried
	freezes   atomic.Int64 // that many connections freeze as soon as requests have got them
}

// eachBubble runs f in a bubble for each protocol. The subtests have the name too.
func eachBubble(t *testing.T, name string, protos []memhttp.Proto, f func(w *freshWorld)) {
	t.Helper()
	for _, proto := range protos {
		play.Bubble(t, strings.TrimSpace(name+" "+proto.String()), func(t *testing.T) { f(newFreshWorld(t, proto)) })
	}
}

// newFreshWorld returns a world whose Transport allows each attempt one second, and waits
// 100 ms before the first retry.
func newFreshWorld(t *testing.T, proto memhttp.Proto) *freshWorld {
	w := &freshWorld{t: t, proto: proto}
	w.server = memhttp.NewServer(t, proto, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.conns.Store(memhttp.RequestConn(r), true)
		if w.handle != nil {
			w.handle(rw, r)
		}
	}))
	w.base = w.server.Transport()
	w.base.MaxIdleConnsPerHost = 16
	w.transport = &retrip.Transport{
		Base: w.base,
		Policy: retrip.Policy{
			AttemptTimeout: time.Second,
			Backoff:        retrip.Backoff{Base: 100 * time.Millisecond, Jitter: retrip.NoJitter},
			Budget:         retrip.Off, // otherwise there would be no retry after two timeouts in a row
		},
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

// request returns a request to the server.
func (w *freshWorld) request(method, path string) *http.Request {
	return play.MustRequest(w.t, method, w.server.URL+path, nil).WithContext(httptrace.WithClientTrace(w.t.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) {
			if w.freezes.Add(-1) >= 0 {
				w.server.Listener.Freeze()
			}
		},
	}))
}

// send makes a request and reads its response.
func (w *freshWorld) send(rt http.RoundTripper, req *http.Request) error {
	w.t.Helper()
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
	err = w.send(rt, w.request(http.MethodGet, ""))
	return int(w.attempts.Load() - before), err
}

// mustGet makes a request, in any goroutine, that gets a response.
func (w *freshWorld) mustGet() {
	w.t.Helper()
	_, err := w.get(w.transport)
	assert.NoError(w.t, err)
}

// succeeds makes a request, which takes that many attempts.
func (w *freshWorld) succeeds(attempts int) {
	w.t.Helper()
	n, err := w.get(w.transport)
	require.NoError(w.t, err)
	assert.Equal(w.t, attempts, n)
}

// parallel makes n requests at once and returns the number of failures.
func (w *freshWorld) parallel(rt http.RoundTripper, n int) (failed int) {
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
	return int(errs.Load())
}

// warm leaves a connection in the pool of the base.
func (w *freshWorld) warm() {
	w.t.Helper()
	_, err := w.get(w.base)
	require.NoError(w.t, err)
	synctest.Wait()
	require.Equal(w.t, 1, w.server.Listener.Open())
}

// beforeDial has f run before each further dial of the base, which fails if f does. It
// returns the number of these dials.
func (w *freshWorld) beforeDial(f func(ctx context.Context) error) *atomic.Int64 {
	var dials atomic.Int64
	dial := w.base.DialContext
	w.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		if err := f(ctx); err != nil {
			return nil, err
		}
		return dial(ctx, network, addr)
	}
	return &dials
}

// slowDials has each further dial of the base take d, whatever its context says.
func (w *freshWorld) slowDials(d time.Duration) *atomic.Int64 {
	return w.beforeDial(func(context.Context) error {
		time.Sleep(d)
		return nil
	})
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

// lateFirst has the first attempt of each request to /late time out.
func (w *freshWorld) lateFirst() {
	w.transport.Policy.RetryHeader = "Retry"
	w.handle = func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/late" && r.Header.Get("Retry") == "" {
			ends(r)
		}
	}
}
