// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package memhttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptrace"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// world is a kind of network, with one server.
type world struct {
	*testing.T
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)
	reset    func(net.Conn)

	lines []string // what the caller sees
	names *strings.Replacer
}

// end is what both worlds have of a connection.
type end interface {
	net.Conn
	CloseWrite() error
}

func (w *world) tell(what string, results ...any) {
	var line strings.Builder
	line.WriteString(what + ":")
	for _, r := range results {
		if err, ok := r.(error); ok {
			line.WriteString(" " + w.describe(err))
		} else {
			line.WriteString(fmt.Sprintf(" %v", r))
		}
	}
	w.lines = append(w.lines, line.String())
}

// describe returns all that a program can learn of err.
func (w *world) describe(err error) string {
	is := []string{fmt.Sprintf("%T %q", err, w.names.Replace(err.Error()))}
	for _, target := range []error{
		io.EOF, net.ErrClosed, os.ErrDeadlineExceeded, context.Canceled, context.DeadlineExceeded,
		syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNREFUSED, syscall.ENOTCONN,
	} {
		if errors.Is(err, target) {
			is = append(is, fmt.Sprintf("is %q", target))
		}
	}
	if e, ok := errors.AsType[net.Error](err); ok {
		is = append(is, fmt.Sprintf("Timeout %v", e.Timeout()))
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		is = append(is, w.names.Replace(fmt.Sprintf("Op %s, Net %s, Source %v, Addr %v", e.Op, e.Net, e.Source, e.Addr)))
	}
	if e, ok := errors.AsType[*os.SyscallError](err); ok {
		is = append(is, "Syscall "+e.Syscall)
	}
	return strings.Join(is, ", ")
}

// connect returns both ends of a new connection.
func (w *world) connect() (client, server end) {
	w.Helper()
	c, err := w.dial(w.Context())
	require.NoError(w, err)
	s, err := w.listener.Accept()
	require.NoError(w, err)
	w.Cleanup(func() { _, _ = c.Close(), s.Close() })
	w.names = strings.NewReplacer(c.LocalAddr().String(), "client", s.LocalAddr().String(), "server")
	return c.(end), s.(end)
}

func (w *world) read(c net.Conn, size int) {
	p := make([]byte, size)
	n, err := c.Read(p)
	w.tell("read", n, string(p[:n]), err)
}

// readAll reads to the end, however the bytes arrive.
func (w *world) readAll(c net.Conn) {
	got, err := io.ReadAll(c)
	w.tell("read all", string(got), err)
}

func (w *world) write(c net.Conn, text string) {
	n, err := c.Write([]byte(text))
	w.tell("write", n, err)
}

// writeUntilError writes until the news of the peer's end has arrived.
func (w *world) writeUntilError(c net.Conn) {
	for {
		if n, err := c.Write([]byte("x")); err != nil {
			w.tell("write at last", n, err)
			return
		}
		runtime.Gosched()
	}
}

// flood is more than both ends of a connection buffer.
var flood = make([]byte, 64<<20)

// flood writes until an error ends the write.
func (w *world) flood(c net.Conn) (n int) {
	n, err := c.Write(flood)
	w.tell("flood", n < len(flood), err)
	return n
}

// while runs f while the other function is under way, or will be. What f tells
// comes last.
func (w *world) while(f func(*world), other func()) {
	done, its := make(chan struct{}), &world{T: w.T, listener: w.listener, reset: w.reset, names: w.names}
	go func() { defer close(done); f(its) }()
	runtime.Gosched()
	other()
	<-done
	w.lines = append(w.lines, its.lines...)
}

func worldOfNet(t *testing.T) *world {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return &world{
		T: t, listener: l,
		dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		},
		reset: func(c net.Conn) {
			require.NoError(t, c.(*net.TCPConn).SetLinger(0))
			require.NoError(t, c.Close())
		},
	}
}

func worldInMemory(t *testing.T) *world {
	l := Listen()
	return &world{
		T: t, listener: l,
		dial: func(ctx context.Context) (net.Conn, error) {
			return l.Dial(ctx, "tcp", l.Addr().String())
		},
		reset: func(c net.Conn) { c.(*Conn).Reset() },
	}
}

// scenes begin with both ends of a new connection.
var scenes = map[string]func(w *world, c, s end){
	"addresses": func(w *world, c, s end) {
		for range 2 {
			w.tell("types", reflect.TypeOf(c.LocalAddr()), reflect.TypeOf(s.RemoteAddr()), c.LocalAddr().Network())
			w.tell("the same", c.LocalAddr().String() == s.RemoteAddr().String(), s.LocalAddr().String() == c.RemoteAddr().String(), s.LocalAddr().String() == w.listener.Addr().String())
			host, _, err := net.SplitHostPort(c.LocalAddr().String())
			w.tell("host", host, err, c.LocalAddr().(*net.TCPAddr).Zone)
			_, _ = c.Close(), s.Close()
		}
	},
	"a stream has no borders": func(w *world, c, s end) {
		w.write(c, "one")
		w.write(c, "two")
		w.read(s, 2)
		p := make([]byte, 4)
		n, err := io.ReadFull(s, p)
		w.tell("read full", n, string(p), err)
	},
	"close": func(w *world, c, s end) {
		w.write(c, "last words")
		w.tell("close", c.Close())
		w.readAll(s)
		w.read(s, 1)
	},
	"close with something unread": func(w *world, c, s end) {
		w.write(c, "request")
		w.write(s, "answer")
		w.read(s, 1)
		w.tell("close", s.Close())
		w.readAll(c)
		w.read(c, 1)
		w.write(c, "x")
	},
	"write to a closed peer": func(w *world, c, s end) {
		w.tell("close", s.Close())
		w.read(c, 1)
		w.write(c, "into the void")
		w.writeUntilError(c)
		w.write(c, "x")
		w.read(c, 1)
	},
	"much to a closed peer": func(w *world, c, s end) {
		w.tell("close", s.Close())
		w.tell("some", w.flood(c) > 0)
		w.read(c, 1)
	},
	"the peer closes after a last message": func(w *world, c, s end) {
		w.write(s, "408")
		w.tell("close", s.Close())
		w.write(c, "request")
		w.writeUntilError(c)
		w.readAll(c)
	},
	"own close": func(w *world, c, _ end) {
		w.tell("close", c.Close())
		w.afterOwnEnd(c)
	},
	"own reset": func(w *world, c, _ end) {
		w.reset(c)
		w.afterOwnEnd(c)
	},
	"reset, read first": func(w *world, c, s end) {
		w.reset(s)
		w.read(c, 1)
		w.read(c, 1)
		w.write(c, "x")
		w.tell("close write", c.CloseWrite())
		w.tell("deadline", c.SetDeadline(time.Now()))
		w.tell("close", c.Close())
	},
	"reset, write first": func(w *world, c, s end) {
		w.reset(s)
		w.writeUntilError(c)
		w.write(c, "x")
		w.read(c, 1)
	},
	"reset after some data": func(w *world, c, s end) {
		w.write(s, "half an ans")
		w.read(c, 4)
		w.reset(s)
		w.readAll(c)
		w.read(c, 1)
	},
	"reset of a half closed connection": func(w *world, c, s end) {
		w.tell("close write", c.CloseWrite())
		w.read(s, 1)
		w.reset(s)
		w.read(c, 1)
		w.read(c, 1)
	},
	"half close": func(w *world, c, s end) {
		w.write(c, "question")
		w.tell("close write", c.CloseWrite())
		w.readAll(s)
		w.read(s, 1)
		w.write(c, "x")
		w.write(s, "answer")
		w.tell("close", s.Close())
		w.readAll(c)
	},
	"half close twice": func(w *world, c, _ end) {
		w.tell("close write", c.CloseWrite())
		w.tell("close write", c.CloseWrite())
		w.write(c, "")
	},
	"half close by both": func(w *world, c, s end) {
		w.tell("close write", c.CloseWrite())
		w.read(s, 1)
		w.tell("close write", s.CloseWrite())
		w.read(c, 1)
		w.write(c, "x")
		w.tell("close", c.Close())
	},
	"nothing": func(w *world, c, s end) {
		w.read(c, 0)
		w.write(c, "")
		w.write(s, "text")
		w.read(c, 0)
		w.read(c, 4)
		w.tell("deadline", c.SetDeadline(time.Unix(1, 0)))
		w.read(c, 0)
		w.write(c, "")
		w.tell("deadline", c.SetDeadline(time.Time{}))
		w.tell("close", s.Close())
		w.read(c, 1)
		w.read(c, 0)
	},
	"nothing after a reset": func(w *world, c, s end) {
		w.reset(s)
		w.read(c, 1)
		w.read(c, 0)
		w.write(c, "")
	},
	"a deadline that has passed": func(w *world, c, s end) {
		w.write(s, "text")
		w.tell("deadline", c.SetDeadline(time.Unix(1, 0)))
		w.read(c, 4)
		w.write(c, "x")
		w.read(c, 4)
		w.tell("deadline", c.SetDeadline(time.Time{}))
		w.read(c, 4)
		w.write(c, "x")
	},
	"a read deadline": func(w *world, c, s end) {
		w.tell("deadline", c.SetReadDeadline(time.Now().Add(time.Millisecond)))
		w.read(c, 1)
		w.write(c, "x")
		w.write(s, "text")
		w.read(c, 1)
		w.tell("deadline", c.SetReadDeadline(time.Now().Add(time.Hour)))
		w.read(c, 4)
	},
	"a write deadline": func(w *world, c, s end) {
		w.tell("deadline", c.SetWriteDeadline(time.Now().Add(time.Millisecond)))
		w.flood(c)
		w.write(c, "x")
		w.write(s, "text")
		w.read(c, 4)
	},
	"a deadline and the end": func(w *world, c, s end) {
		w.tell("close", s.Close())
		w.read(c, 1)
		w.tell("deadline", c.SetReadDeadline(time.Unix(1, 0)))
		w.read(c, 1)
		w.tell("deadline", c.SetReadDeadline(time.Time{}))
		w.read(c, 1)
	},
	"a deadline and a reset": func(w *world, c, s end) {
		w.tell("deadline", c.SetReadDeadline(time.Unix(1, 0)))
		w.reset(s)
		w.read(c, 1)
		w.tell("deadline", c.SetReadDeadline(time.Time{}))
		w.read(c, 1)
	},
	"a deadline during a read": func(w *world, c, _ end) {
		w.while(func(w *world) { w.read(c, 1) }, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	},
	"a deadline during a write": func(w *world, c, _ end) {
		w.while(func(w *world) { w.flood(c) }, func() { _ = c.SetWriteDeadline(time.Unix(1, 0)) })
	},
	"own close during a read": func(w *world, c, _ end) {
		w.while(func(w *world) { w.read(c, 1) }, func() { c.Close() })
	},
	"own close during a write": func(w *world, c, _ end) {
		w.while(func(w *world) { w.flood(c) }, func() { c.Close() })
	},
	"own half close during a read": func(w *world, c, s end) {
		w.while(func(w *world) { w.read(c, 4) }, func() { _ = c.CloseWrite(); w.read(s, 1); w.write(s, "text") })
	},
	"the peer's close during a read": func(w *world, c, s end) {
		w.while(func(w *world) { w.read(c, 1) }, func() { s.Close() })
	},
	"the peer's reset during a read": func(w *world, c, s end) {
		w.while(func(w *world) { w.read(c, 1) }, func() { w.reset(s) })
	},
	"the peer's close during a write": func(w *world, c, s end) {
		w.while(func(w *world) { w.tell("some", w.flood(c) > 0) }, func() { w.read(s, 1); s.Close() })
		w.write(c, "x")
		w.read(c, 1)
	},
	"the peer's reset during a write": func(w *world, c, s end) {
		w.while(func(w *world) { w.tell("some", w.flood(c) > 0) }, func() { w.read(s, 1); w.reset(s) })
		w.write(c, "x")
		w.read(c, 1)
	},
	"the peer's half close during a write": func(w *world, c, s end) {
		w.while(func(w *world) { n, err := c.Write(flood[:1<<20]); w.tell("write", n, err); c.Close() }, func() {
			_ = s.CloseWrite()
			n, err := io.Copy(io.Discard, s)
			w.tell("copy", n, err)
		})
	},
	"two readers": func(w *world, c, s end) {
		var sum atomic.Int64
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() {
				n, err := io.Copy(io.Discard, c)
				sum.Add(n)
				assert.NoError(w, err)
			})
		}
		n, err := s.Write(make([]byte, 1<<20))
		w.tell("write", n, err)
		w.tell("close", s.Close())
		readers.Wait()
		w.tell("sum", sum.Load())
	},
	"two writers": func(w *world, c, s end) {
		const size = 1 << 20
		for _, b := range []byte("ab") {
			go func() {
				_, err := c.Write(bytes.Repeat([]byte{b}, size))
				assert.NoError(w, err)
			}()
		}
		for range 2 {
			p := make([]byte, size)
			_, err := io.ReadFull(s, p)
			w.tell("one at a time", bytes.Count(p, p[:1]) == size, err)
		}
	},
	"dial, refused": func(w *world, _, _ end) {
		w.tell("close", w.listener.Close())
		c, err := w.dial(w.Context())
		w.tell("dial", c == nil, err)
	},
	"dial, canceled": func(w *world, _, _ end) {
		ctx, cancel := context.WithCancelCause(w.Context())
		cancel(errors.New("a cause"))
		c, err := w.dial(ctx)
		w.tell("dial", c == nil, err)
	},
	"dial, too late": func(w *world, _, _ end) {
		ctx, cancel := context.WithDeadline(w.Context(), time.Unix(1, 0))
		defer cancel()
		c, err := w.dial(ctx)
		w.tell("dial", c == nil, err)
	},
	"dial, canceled and refused": func(w *world, _, _ end) {
		w.tell("close", w.listener.Close())
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		c, err := w.dial(ctx)
		w.tell("dial", c == nil, err)
	},
	"the end of a dial's context": func(w *world, _, _ end) {
		ctx, cancel := context.WithCancel(w.Context())
		c, err := w.dial(ctx)
		require.NoError(w, err)
		defer c.Close()
		cancel()
		s, err := w.listener.Accept()
		require.NoError(w, err)
		defer s.Close()
		w.write(s, "text")
		w.read(c, 4)
	},
	"the queue": func(w *world, _, _ end) {
		var dialed []net.Conn
		for _, text := range []string{"one", "two"} {
			c, err := w.dial(w.Context())
			require.NoError(w, err)
			defer c.Close()
			w.write(c, text)
			dialed = append(dialed, c)
		}
		for range dialed {
			s, err := w.listener.Accept()
			require.NoError(w, err)
			defer s.Close()
			w.read(s, 3)
		}
	},
	"the queue when the listener closes": func(w *world, _, _ end) {
		c, err := w.dial(w.Context())
		require.NoError(w, err)
		defer c.Close()
		w.tell("close", w.listener.Close())
		n, err := c.Read(make([]byte, 1))
		w.tell("read", n, errors.Is(err, syscall.ECONNRESET))
	},
	"an end before the accept": func(w *world, _, _ end) {
		c, err := w.dial(w.Context())
		require.NoError(w, err)
		w.write(c, "text")
		w.tell("close", c.Close())
		s, err := w.listener.Accept()
		require.NoError(w, err)
		defer s.Close()
		w.readAll(s)
	},
	"the listener's end": func(w *world, _, _ end) {
		w.tell("close", w.listener.Close())
		w.tell("close", w.listener.Close())
		c, err := w.listener.Accept()
		w.tell("accept", c == nil, err, w.listener.Addr().Network(), w.names.Replace(w.listener.Addr().String()))
	},
	"the listener's end during an accept": func(w *world, _, _ end) {
		w.while(func(w *world) { c, err := w.listener.Accept(); w.tell("accept", c == nil, err) }, func() { w.listener.Close() })
	},
	"connections outlive the listener": func(w *world, c, s end) {
		w.tell("close", w.listener.Close())
		w.write(s, "text")
		w.read(c, 4)
	},
}

// afterOwnEnd calls everything on a connection that this end has closed.
func (w *world) afterOwnEnd(c end) {
	w.read(c, 1)
	w.read(c, 0)
	w.write(c, "x")
	w.write(c, "")
	w.tell("close", c.Close())
	w.tell("close write", c.CloseWrite())
	w.tell("deadline", c.SetDeadline(time.Now()))
	w.tell("read deadline", c.SetReadDeadline(time.Time{}))
	w.tell("write deadline", c.SetWriteDeadline(time.Time{}))
}

// A connection in memory does what one of package net does. What a test sees here
// and not on a real network would be a bug that no test finds.
func TestConn_AsPackageNet(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("other systems have other errors")
	}
	for name, play := range scenes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			see := func(w *world) []string {
				defer w.listener.Close()
				c, s := w.connect()
				play(w, c, s)
				return w.lines
			}
			real, memory := see(worldOfNet(t)), see(worldInMemory(t))
			assert.Equal(t, strings.Join(real, "\n"), strings.Join(memory, "\n"))
		})
	}
}

// The differences that the documentation of Conn and Listener.Dial lists.
func TestConn_UnlikePackageNet(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		world *world
		real  bool
	}{{worldOfNet(t), true}, {worldInMemory(t), false}} {
		w := tt.world
		defer w.listener.Close()
		var hooks []string
		c, err := w.dial(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			ConnectStart: func(string, string) { hooks = append(hooks, "start") },
			ConnectDone:  func(string, string, error) { hooks = append(hooks, "done") },
		}))
		require.NoError(t, err)
		defer c.Close()
		if tt.real {
			assert.Equal(t, []string{"start", "done"}, hooks)
		} else {
			assert.Empty(t, hooks)
		}
		_, readerFrom := c.(io.ReaderFrom)
		_, writerTo := c.(io.WriterTo)
		_, raw := c.(syscall.Conn)
		assert.Equal(t, []bool{tt.real, tt.real, tt.real}, []bool{readerFrom, writerTo, raw})

		if !tt.real {
			n, err := c.Write(flood[:bufferSize])
			assert.NoError(t, err)
			assert.Equal(t, bufferSize, n)
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Millisecond)))
			n, err = c.Write(flood[:1])
			assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
			assert.Zero(t, n)
		}
	}
}
