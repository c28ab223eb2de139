// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

// Through an HTTP proxy, and with CONNECT through one.
//
//retrip:promise P4
func TestDifferential_Proxy(t *testing.T) {
	for _, target := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2} {
		play.Bubble(t, target.String(), func(t *testing.T) {
			run := func(wrap func(http.RoundTripper) http.RoundTripper, fail bool) (string, error) {
				origin := memhttp.NewServer(t, target, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					fmt.Fprint(w, r.Method, " ", r.URL.Path, " ", r.Proto)
				}))
				proxy := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if fail {
						http.Error(w, "not today", http.StatusForbidden)
						return
					}
					if r.Method != http.MethodConnect {
						fmt.Fprint(w, r.Method, " ", r.RequestURI)
						return
					}
					out, err := origin.Listener.Dial(r.Context(), "tcp", r.Host)
					if !assert.NoError(t, err) {
						return
					}
					w.WriteHeader(200)
					in, rw, err := http.NewResponseController(w).Hijack()
					if !assert.NoError(t, err) {
						return
					}
					go func() { _, _ = io.Copy(out, rw); out.Close() }()
					_, _ = io.Copy(in, out)
					in.Close()
				}))
				base := origin.Transport()
				base.DialContext = proxy.Listener.Dial
				base.Proxy = func(*http.Request) (*url.URL, error) { return &url.URL{Scheme: "http", Host: "proxy.example.com"}, nil }
				defer base.CloseIdleConnections()
				scheme := "http"
				if target != memhttp.HTTP1 {
					scheme = "https"
				}
				resp, err := (&http.Client{Transport: wrap(base)}).Get(scheme + "://example.com/through")
				if err != nil {
					return errTypes(err), err
				}
				return play.Finish(t, resp), nil
			}
			bare := func(base http.RoundTripper) http.RoundTripper { return base }
			ours := func(base http.RoundTripper) http.RoundTripper {
				return &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: time.Minute, MaxAttempts: 1}}
			}
			for _, fail := range []bool{false, true} {
				want, wantErr := run(bare, fail)
				got, gotErr := run(ours, fail)
				assert.Equal(t, want, got)
				assert.Equal(t, fmt.Sprint(wantErr), fmt.Sprint(gotErr))
			}
		})
	}
}

// CONNECT as a request of its own: a tunnel over the response's body.
//
//retrip:promise P4
func TestDifferential_Connect(t *testing.T) {
	play.Bubble(t, "", func(t *testing.T) {
		l := memhttp.Listen()
		defer l.Close()
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			buf := make([]byte, 4096)
			_, _ = c.Read(buf)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			_, _ = io.Copy(c, c)
		}()
		base := &http.Transport{DialContext: l.Dial}
		defer base.CloseIdleConnections()
		pr, pw := io.Pipe()
		req := &http.Request{Method: "CONNECT", URL: &url.URL{Scheme: "http", Host: "proxy.example.com"}, Host: "example.com:443", Header: http.Header{}, Body: pr}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		resp, err := (&retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: time.Second}}).RoundTrip(req.WithContext(ctx))
		require.NoError(t, err)
		assert.Equal(t, 200, resp.StatusCode)
		time.Sleep(time.Minute)
		synctest.Wait()
		_, err = io.WriteString(pw, "through the tunnel")
		require.NoError(t, err)
		got := make([]byte, len("through the tunnel"))
		_, err = io.ReadFull(resp.Body, got)
		require.NoError(t, err)
		assert.Equal(t, "through the tunnel", string(got))
		require.NoError(t, resp.Body.Close())
		_ = pw.Close()
	})
}
