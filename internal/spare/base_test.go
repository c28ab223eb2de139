// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

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
