// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/retrip/retrip"
)

// serve runs h on connections in memory, for a bubble. The base that it returns reaches
// h under every host name, by http.
func serve(t *testing.T, h http.Handler) *http.Transport {
	l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: h}
	go server.Serve(l)
	base := &http.Transport{DialContext: l.dial}
	t.Cleanup(func() {
		base.CloseIdleConnections()
		server.Close()
		time.Sleep(time.Second) // net/http ends a broken connection half a second later
	})
	return base
}

type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// The server answers before it has read a large body, hangs, and then works.
func TestWaitsExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent, attempts := strings.Repeat("x", 1<<20), atomic.Int64{}
		base := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch attempts.Add(1) {
			case 1:
				w.WriteHeader(http.StatusServiceUnavailable)
			case 2:
				io.Copy(io.Discard, r.Body) // before that, net/http doesn't notice that the client has gone
				<-r.Context().Done()
			default:
				io.Copy(w, r.Body)
			}
		}))
		client := &http.Client{Transport: &retrip.Transport{Base: base, Policy: retrip.Policy{
			Backoff: retrip.Backoff{Base: time.Second, Jitter: retrip.NoJitter}, AttemptTimeout: 5 * time.Second,
		}}}
		req, _ := http.NewRequest(http.MethodPut, "http://files.internal/x", strings.NewReader(sent))
		start := time.Now()
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got, _ := io.ReadAll(resp.Body); string(got) != sent {
			t.Errorf("got %d bytes", len(got))
		}
		if took := time.Since(start); attempts.Load() != 3 || took != 1*time.Second+5*time.Second+2*time.Second {
			t.Errorf("%d attempts in %s", attempts.Load(), took)
		}
	})
}

// fake is a base that two attempts may use at once, as a hedge does: it guards its count,
// leaves the request alone, and ends with the request's context.
type fake struct {
	mu       sync.Mutex
	attempts int
	stalls   func(n int) time.Duration // how long attempt n takes
}

func (f *fake) RoundTrip(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.attempts++
	takes := f.stalls(f.attempts)
	f.mu.Unlock()
	select {
	case <-time.After(takes):
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

// A hedge begins once 20 answers have shown what is late, at two requests a second or more.
// The times of the fake differ: among equal ones, each would be late.
func TestALateAnswerGetsAHedge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := &fake{stalls: func(n int) time.Duration {
			if n == 25 {
				return 10 * time.Second
			}
			return time.Duration(n%20+1) * time.Millisecond
		}}
		client := &http.Client{Transport: &retrip.Transport{Base: base, Policy: retrip.Policy{Hedge: 0.05, AttemptTimeout: 15 * time.Second}}}
		for range 25 {
			start := time.Now()
			resp, err := client.Get("http://search.internal/")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if took := time.Since(start); took > 100*time.Millisecond {
				t.Errorf("a request took %s", took)
			}
		}
		if base.attempts != 26 {
			t.Errorf("%d attempts for 25 requests", base.attempts)
		}
	})
}
