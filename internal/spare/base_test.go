// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
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
)

// If a copy of the base would behave differently, or the base is of unknown
// type, the base makes every attempt.
//
//retrip:promise P11
func TestFresh_OnlyTheBase(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		proto memhttp.Proto
		set   func(w *freshWorld)
	}{
		"a wrapper": {memhttp.HTTP2, func(w *freshWorld) {
			w.transport.Base = struct{ http.RoundTripper }{w.base}
		}},
		"http registered": {memhttp.H2C, func(w *freshWorld) {
			w.base.RegisterProtocol("http", w.server.Transport())
		}},
		"https registered": {memhttp.HTTP2, func(w *freshWorld) {
			other := w.server.Transport()
			w.base.Protocols, w.base.TLSNextProto = nil, map[string]func(string, *tls.Conn) http.RoundTripper{}
			w.base.RegisterProtocol("https", other)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newFreshWorld(t, tt.proto, func(http.ResponseWriter, *http.Request) {})
				tt.set(w)
				attempts, err := w.get(w.transport)
				require.NoError(t, err)
				require.Equal(t, 1, attempts)
				dials := w.server.Listener.Dials()
				w.server.Listener.Freeze()
				attempts, err = w.get(w.transport)
				require.Error(t, err)
				assert.Equal(t, 4, attempts)
				assert.Equal(t, dials, w.server.Listener.Dials())
			})
		})
	}
}

// A RoundTripper registered for another scheme doesn't prevent spares for
// https.
func TestFresh_OtherSchemeRegistered(t *testing.T) {
	t.Parallel()
	eachFresh(t, allProtos, func(w *freshWorld) {
		w.base.RegisterProtocol("file", http.NewFileTransport(http.Dir(".")))
		w.warm()
		w.server.Listener.Freeze()
		attempts, err := w.get(w.transport)
		require.NoError(w.t, err)
		assert.Equal(w.t, 2, attempts)
	})
}

// Without kept connections, no connection is suspect.
func TestFresh_DisableKeepAlives(t *testing.T) {
	t.Parallel()
	eachFresh(t, allProtos, func(w *freshWorld) {
		w.base.DisableKeepAlives = true
		var once sync.Once
		ctx := httptrace.WithClientTrace(w.t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
			once.Do(w.server.Listener.Freeze)
		}})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.server.URL, nil)
		require.NoError(w.t, err)
		resp, err := w.transport.RoundTrip(req)
		require.NoError(w.t, err)
		require.NoError(w.t, resp.Body.Close())
		assert.EqualValues(w.t, 2, w.attempts.Load())
		assert.Equal(w.t, 2, w.server.Listener.Dials())
	})
}

// Over HTTP/2, a spare may exceed the limit of connections by one.
//
//retrip:promise P11
func TestFresh_MaxConnsPerHost(t *testing.T) {
	t.Parallel()
	eachFresh(t, bothHTTP2, func(w *freshWorld) {
		w.base.MaxConnsPerHost = 1
		w.warm()
		w.server.Listener.Freeze()
		attempts, err := w.get(w.transport)
		require.NoError(w.t, err)
		assert.Equal(w.t, 2, attempts)
		assert.Equal(w.t, 2, w.server.Listener.Open())
	})
}

// A timeout before there was a connection says nothing about the existing
// connections.
func TestFresh_NoConnectionNoDoubt(t *testing.T) {
	t.Parallel()
	eachFresh(t, allProtos, func(w *freshWorld) {
		dial := w.base.DialContext
		var dials atomic.Int64
		w.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dials.Add(1) == 1 {
				time.Sleep(1500 * time.Millisecond)
			}
			return dial(ctx, network, addr)
		}
		attempts, err := w.get(w.transport)
		require.NoError(w.t, err)
		assert.Equal(w.t, 2, attempts)
		time.Sleep(time.Second)
		attempts, err = w.get(w.base)
		require.NoError(w.t, err)
		assert.Zero(w.t, attempts)
		assert.EqualValues(w.t, 2, dials.Load(), "both belong to the base")
	})
}

// The spare uses the proxy and the TLS sessions of the base.
func TestFresh_KeepsProxyAndSessions(t *testing.T) {
	t.Parallel()
	t.Run("proxy", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var proxied atomic.Int64
			w := newFreshWorld(t, memhttp.HTTP1, func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Host == "origin.example.com" {
					proxied.Add(1)
				}
			})
			proxy, err := url.Parse(w.server.URL)
			require.NoError(t, err)
			w.base.Proxy = http.ProxyURL(proxy)
			client := &http.Client{Transport: w.transport}
			for range 2 {
				resp, err := client.Get("http://origin.example.com/")
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				synctest.Wait()
				w.server.Listener.Freeze()
			}
			assert.EqualValues(t, 3, w.attempts.Load())
			assert.EqualValues(t, 2, proxied.Load())
		})
	})
	for _, proto := range []memhttp.Proto{memhttp.HTTPS, memhttp.HTTP2} {
		t.Run("sessions "+proto.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				resumed := false
				w := newFreshWorld(t, proto, func(_ http.ResponseWriter, r *http.Request) { resumed = r.TLS.DidResume })
				w.base.TLSClientConfig.ClientSessionCache = tls.NewLRUClientSessionCache(0)
				w.warm()
				require.False(t, resumed)
				w.server.Listener.Freeze()
				attempts, err := w.get(w.transport)
				require.NoError(t, err)
				assert.Equal(t, 2, attempts)
				assert.True(t, resumed)
			})
		})
	}
}

// A pool may hold more dead connections than a request has attempts. The third
// attempt of a PUT or DELETE uses a new connection, because net/http doesn't
// resend these methods.
//
//retrip:promise P11
func TestFresh_StalePool(t *testing.T) {
	for _, method := range []string{"PUT", "DELETE", "POST"} {
		for _, body := range []func() io.Reader{func() io.Reader { return nil }, func() io.Reader { return strings.NewReader("payload") }, func() io.Reader { return play.Stream([]byte("payload")) }} {
			for _, timeout := range []time.Duration{0, time.Hour} {
				play.Bubble(t, fmt.Sprintf("%s/%T/timeout %v", method, body(), timeout), func(t *testing.T) {
					s, base, stale := play.StalePool(t, memhttp.HTTP1, 25)
					dials := s.Listener.Dials()
					stale.Store(25)
					tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = timeout })}
					attempts := 0
					ctx := retrip.WithTrace(t.Context(), &retrip.Trace{Attempt: func(retrip.Event) {
						if attempts++; attempts == 3 {
							// Only the connections of the pool are dead.
							stale.Store(0)
						}
					}})
					resp, err := tr.RoundTrip(play.MustRequest(t, method, s.URL, body()).WithContext(ctx))
					if method == "POST" {
						assert.Error(t, err)
						assert.Equal(t, 1, attempts)
						return
					}
					require.NoError(t, err)
					play.Finish(t, resp)
					assert.Equal(t, 3, attempts)
					assert.Equal(t, 1, s.Listener.Dials()-dials, "one new connection")
					tr.CloseIdleConnections()
				})
			}
		}
	}
}

// A retry after two lost connections waits no longer for a new one than a retry
// after a timeout, so that the base can still answer within the attempt.
//
//retrip:promise P11
func TestFresh_StalePoolSlowDial(t *testing.T) {
	for _, tt := range []struct{ dial, timeout, deadline, waits time.Duration }{
		{time.Hour, 0, 0, time.Second},
		{time.Hour, time.Hour, time.Hour, time.Second},
		{time.Hour, 6 * time.Second, 0, time.Second},
		{time.Hour, 900 * time.Millisecond, 0, 300 * time.Millisecond},
		{600 * time.Millisecond, 300 * time.Millisecond, 0, 100 * time.Millisecond},
		{600 * time.Millisecond, 1200 * time.Millisecond, 0, 400 * time.Millisecond},
		{600 * time.Millisecond, 0, 0, 600 * time.Millisecond},
		{time.Hour, 0, 2600 * time.Millisecond, 200 * time.Millisecond},
		{time.Hour, time.Second, 2600 * time.Millisecond, 200 * time.Millisecond},
	} {
		play.Bubble(t, fmt.Sprint(tt), func(t *testing.T) {
			s, base, stale := play.StalePool(t, memhttp.HTTP1, 25)
			dial := base.DialContext
			base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				time.Sleep(tt.dial)
				return dial(ctx, network, addr)
			}
			stale.Store(2)
			tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout, p.Deadline, p.MaxAttempts = tt.timeout, tt.deadline, 3 })}
			var began time.Time
			ctx := retrip.WithTrace(t.Context(), &retrip.Trace{Attempt: func(retrip.Event) { began = time.Now() }})
			resp, err := tr.RoundTrip(play.MustRequest(t, http.MethodPut, s.URL, strings.NewReader("payload")).WithContext(ctx))
			require.NoError(t, err)
			play.Finish(t, resp)
			assert.Equal(t, tt.waits, time.Since(began))
			tr.CloseIdleConnections()
			time.Sleep(2 * time.Hour) // the dial ends
		})
	}
}
