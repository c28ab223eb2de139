// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// If a copy of the base would behave differently, or the base is of unknown
// type, the base makes every attempt.
//
//retrip:promise P11
func TestFresh_OnlyTheBase(t *testing.T) {
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
		eachFresh(t, name, []memhttp.Proto{tt.proto}, func(w *freshWorld) {
			tt.set(w)
			w.succeeds(1)
			dials := w.server.Listener.Dials()
			w.server.Listener.Freeze()
			attempts, err := w.get(w.transport)
			require.Error(w.t, err)
			assert.Equal(w.t, 4, attempts)
			assert.Equal(w.t, dials, w.server.Listener.Dials())
		})
	}
}

// A timeout before there was a connection says nothing about the existing
// connections.
func TestFresh_NoConnectionNoDoubt(t *testing.T) {
	eachFresh(t, "", play.Protos, func(w *freshWorld) {
		var dials *atomic.Int64
		dials = w.beforeDial(func(context.Context) error {
			if dials.Load() == 1 {
				time.Sleep(1500 * time.Millisecond)
			}
			return nil
		})
		w.succeeds(2)
		time.Sleep(time.Second)
		_, err := w.get(w.base)
		require.NoError(w.t, err)
		assert.EqualValues(w.t, 2, dials.Load(), "both belong to the base")
	})
}

// The spare uses the TLS sessions of the base.
func TestFresh_KeepsSessions(t *testing.T) {
	eachFresh(t, "", []memhttp.Proto{memhttp.HTTP2}, func(w *freshWorld) {
		resumed := false
		w.handle = func(_ http.ResponseWriter, r *http.Request) { resumed = r.TLS.DidResume }
		w.base.TLSClientConfig.ClientSessionCache = tls.NewLRUClientSessionCache(0)
		w.warm()
		require.False(w.t, resumed)
		w.server.Listener.Freeze()
		w.succeeds(2)
		assert.True(w.t, resumed)
	})
}

// A pool may hold more dead connections than a request has attempts. The third
// attempt of a PUT or DELETE uses a new connection, because net/http doesn't
// resend these methods.
//
//retrip:promise P11
func TestFresh_StalePool(t *testing.T) {
	for _, method := range []string{"PUT", "DELETE", "POST"} {
		for name, body := range map[string]func() io.Reader{
			"no body": func() io.Reader { return nil }, "string": func() io.Reader { return strings.NewReader("payload") },
			"stream": func() io.Reader { return play.Stream([]byte("payload")) },
		} {
			for _, timeout := range []time.Duration{0, time.Hour} {
				play.Bubble(t, fmt.Sprintf("%s/%s/timeout %v", method, name, timeout), func(t *testing.T) {
					s, base, stale := play.StalePool(t, memhttp.HTTP1, 25)
					dials := s.Listener.Dials()
					stale.Store(25)
					attempts := 0
					tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = timeout }), Trace: &retrip.Trace{Attempt: func(retrip.Event) {
						if attempts++; attempts == 3 {
							stale.Store(0) // only the connections of the pool are dead
						}
					}}}
					defer tr.CloseIdleConnections()
					err := testenv.Try(tr, play.MustRequest(t, method, s.URL, body()))
					if method == "POST" {
						assert.Error(t, err)
						assert.Equal(t, 1, attempts)
						return
					}
					require.NoError(t, err)
					assert.Equal(t, 3, attempts)
					assert.Equal(t, 1, s.Listener.Dials()-dials, "one new connection")
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
			w := &freshWorld{t: t, server: s, base: base}
			w.slowDials(tt.dial)
			stale.Store(2)
			var began time.Time
			tr := &retrip.Transport{
				Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout, p.Deadline, p.MaxAttempts = tt.timeout, tt.deadline, 3 }),
				Trace: &retrip.Trace{Attempt: func(retrip.Event) { began = time.Now() }},
			}
			play.Do(t, tr, play.MustRequest(t, http.MethodPut, s.URL, strings.NewReader("payload")))
			assert.Equal(t, tt.waits, time.Since(began))
			tr.CloseIdleConnections()
			time.Sleep(2 * time.Hour) // the dial ends
		})
	}
}
