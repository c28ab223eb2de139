// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package memhttp

import (
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bubble runs f with the two ends of a connection in a bubble.
func bubble(t *testing.T, f func(t *testing.T, client, server *Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := Listen()
		c, err := l.Dial(t.Context(), "tcp", "example.com:80")
		require.NoError(t, err)
		s, err := l.Accept()
		require.NoError(t, err)
		t.Cleanup(func() {
			_ = c.Close()
			_ = s.Close()
			_ = l.Close()
			assert.Zero(t, l.Open())
		})
		f(t, c.(*Conn), s.(*Conn))
	})
}

func assertOpError(t *testing.T, err error, op string, want error) {
	t.Helper()
	var opErr *net.OpError
	require.ErrorAs(t, err, &opErr)
	assert.Equal(t, op, opErr.Op)
	assert.ErrorIs(t, err, want)
}

// A frozen connection tells neither end anything about the other.
func TestConn_Freeze(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, client, server *Conn) {
		_, err := server.Write([]byte("under way"))
		require.NoError(t, err)
		client.Freeze()
		require.NoError(t, client.SetDeadline(time.Now().Add(time.Minute)))
		_, err = client.Read(make([]byte, 1))
		assertOpError(t, err, "read", os.ErrDeadlineExceeded)
		require.NoError(t, client.SetDeadline(time.Now().Add(time.Minute)))
		n, err := client.Write(make([]byte, bufferSize+1))
		assertOpError(t, err, "write", os.ErrDeadlineExceeded)
		assert.Equal(t, bufferSize, n)
		require.NoError(t, client.SetDeadline(time.Time{}))

		server.Reset()
		done := make(chan error)
		go func() {
			_, err := client.Read(make([]byte, 1))
			done <- err
		}()
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("the reader learnt of the reset: %v", err)
		default:
		}
		require.NoError(t, client.Close())
		assert.ErrorIs(t, <-done, net.ErrClosed)
		_, err = client.Write([]byte("x"))
		assertOpError(t, err, "write", net.ErrClosed)
	})
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
