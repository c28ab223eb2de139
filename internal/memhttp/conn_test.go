// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package memhttp

import (
	"net"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func assertOpError(t *testing.T, err error, op string, want error) {
	t.Helper()
	var opErr *net.OpError
	require.ErrorAs(t, err, &opErr)
	assert.Equal(t, op, opErr.Op)
	assert.ErrorIs(t, err, want)
}

func TestListener_Freeze(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := Listen()
		dial := func() (client, server net.Conn) {
			client, err := l.Dial(t.Context(), "tcp", "example.com:80")
			require.NoError(t, err)
			server, err = l.Accept()
			require.NoError(t, err)
			return client, server
		}
		frozen, its := dial()
		l.Freeze()
		later, server := dial()
		_, err := server.Write([]byte("x"))
		require.NoError(t, err)
		_, err = later.Read(make([]byte, 1))
		require.NoError(t, err)

		_, err = frozen.Write([]byte("lost"))
		require.NoError(t, err)
		began := time.Now()
		time.AfterFunc(time.Minute, func() { _ = l.Close() })
		_, err = its.Read(make([]byte, 1))
		assertOpError(t, err, "read", syscall.ECONNRESET)
		assert.Equal(t, time.Minute, time.Since(began))
		_, err = frozen.Read(make([]byte, 1))
		assertOpError(t, err, "read", net.ErrClosed)
		for _, c := range []net.Conn{its, later, server} {
			require.NoError(t, c.Close())
		}
		assert.Zero(t, l.Open())
	})
}

func TestListener_Refuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := Listen()
		l.Refuse(true)
		_, err := l.Dial(t.Context(), "tcp", "example.com:80")
		assertOpError(t, err, "dial", syscall.ECONNREFUSED)
		assert.Zero(t, l.Dials())

		l.Refuse(false)
		queued, err := l.Dial(t.Context(), "tcp", "example.com:80")
		require.NoError(t, err)
		require.NoError(t, l.Close())
		assert.Equal(t, []int{1, 1}, []int{l.Dials(), l.Open()})
		require.NoError(t, queued.Close())
		assert.Equal(t, []int{1, 0}, []int{l.Dials(), l.Open()})
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
