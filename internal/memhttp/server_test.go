// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package memhttp

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// eachProto runs f in a bubble, once per protocol.
func eachProto(t *testing.T, f func(t *testing.T, proto Proto)) {
	t.Helper()
	for _, proto := range []Proto{HTTP1, HTTPS, HTTP2, H2C} {
		t.Run(proto.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { f(t, proto) })
		})
	}
}

func (p Proto) major() int {
	if p == HTTP2 || p == H2C {
		return 2
	}
	return 1
}

func TestServer_Echo(t *testing.T) {
	t.Parallel()
	eachProto(t, func(t *testing.T, proto Proto) {
		s := NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Hour)
			assert.Equal(t, proto.major(), r.ProtoMajor)
			assert.Equal(t, proto.tls(), r.TLS != nil)
			_, err := io.Copy(w, r.Body)
			assert.NoError(t, err)
		}))
		c := &http.Client{Transport: s.Transport()}
		start := time.Now()
		for _, url := range []string{s.URL, strings.Replace(s.URL, "127.0.0.1", "api.example.com", 1)} {
			resp, err := c.Post(url, "text/plain", strings.NewReader("hello"))
			require.NoError(t, err)
			assert.Equal(t, proto.major(), resp.ProtoMajor)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, "hello", string(body))
		}
		assert.Equal(t, 2*time.Hour, time.Since(start))
		assert.Equal(t, 2, s.Listener.Dials())
		assert.Equal(t, 2, s.Listener.Open())
	})
}

func TestRequestConn_Reset(t *testing.T) {
	t.Parallel()
	assert.Nil(t, RequestConn(httptest.NewRequest(http.MethodGet, "/", nil)), "of another server")
	eachProto(t, func(t *testing.T, proto Proto) {
		s := NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/half" {
				_, _ = io.WriteString(w, "half")
				assert.NoError(t, http.NewResponseController(w).Flush())
				synctest.Wait() // the writer of an HTTP/2 connection is another goroutine
			}
			RequestConn(r).Reset()
			panic(http.ErrAbortHandler)
		}))
		c := &http.Client{Transport: s.Transport()}
		_, err := c.Get(s.URL)
		if proto == HTTP1 || proto == HTTPS {
			assert.ErrorIs(t, err, syscall.ECONNRESET)
		} else {
			// The writer of an HTTP/2 connection may hear of the reset first.
			assert.Condition(t, func() bool { return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.ErrUnexpectedEOF) }, "%v", err)
		}

		resp, err := c.Get(s.URL + "/half")
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		assert.ErrorIs(t, err, syscall.ECONNRESET)
		assert.Equal(t, "half", string(body))
		require.NoError(t, resp.Body.Close())
	})
}

// failing stands in for the test that a Server belongs to.
type failing struct {
	testing.TB
	cleanup func()
	failed  bool
}

func (f *failing) Helper()               {}
func (f *failing) Cleanup(fn func())     { f.cleanup = fn }
func (f *failing) Errorf(string, ...any) { f.failed = true }

func TestServer_ReportsABodyLeftOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &failing{TB: t}
		s := NewServer(f, HTTP1, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, 2*bufferSize))
		}))
		resp, err := (&http.Client{Transport: s.Transport()}).Get(s.URL)
		require.NoError(t, err)
		f.cleanup()
		assert.True(t, f.failed)
		require.NoError(t, resp.Body.Close())
	})
}
