// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package memhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
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

	client, server end      // of the newest connection
	lines          []string // what the caller sees
	names          *strings.Replacer
}

// end is what both worlds have of a connection.
type end interface {
	net.Conn
	CloseWrite() error
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

// play plays a scene. An & joins steps that run at the same time; what the first of
// them tells comes last.
func (w *world) play(scene string) []string {
	for step := range strings.SplitSeq(scene, "; ") {
		first, others, both := strings.Cut(step, " & ")
		if !both {
			w.do(step)
			continue
		}
		its, done := *w, make(chan struct{})
		its.lines = nil
		go func() { defer close(done); its.do(first) }()
		runtime.Gosched()
		for step := range strings.SplitSeq(others, " & ") {
			w.do(step)
		}
		<-done
		w.lines = append(w.lines, its.lines...)
	}
	return w.lines
}

// do does a step: that of the client (c) or the server (s), or of the listener.
func (w *world) do(step string) {
	what, arg, _ := strings.Cut(step, " ")
	switch what {
	case "c":
		w.at(w.client, arg)
	case "s":
		w.at(w.server, arg)
	case "dial":
		ctx, cancel := w.Context(), context.CancelFunc(func() {})
		switch arg {
		case "canceled":
			ctx, cancel = context.WithCancel(ctx)
			cancel()
		case "late":
			ctx, cancel = context.WithDeadline(ctx, time.Unix(1, 0))
		case "once": // the context ends after the dial
			ctx, cancel = context.WithCancel(ctx)
		}
		c, err := w.dial(ctx)
		cancel()
		if w.tell(step, c == nil, err); err == nil {
			w.Cleanup(func() { c.Close() })
			w.client = c.(end)
			w.names = strings.NewReplacer(c.LocalAddr().String(), "client", w.listener.Addr().String(), "server")
		}
	case "accept":
		s, err := w.listener.Accept()
		if w.tell(step, s == nil, err); err == nil {
			w.Cleanup(func() { s.Close() })
			w.server = s.(end)
		}
	case "stop":
		w.tell(step, w.listener.Close())
	case "addresses":
		here, there, server := w.client.LocalAddr(), w.client.RemoteAddr(), w.listener.Addr()
		w.tell("types", reflect.TypeOf(here), reflect.TypeOf(there), reflect.TypeOf(server), here.Network(), server.Network())
		w.tell("the same", here.String() == w.server.RemoteAddr().String(), there.String() == w.server.LocalAddr().String(), there.String() == server.String())
		w.tell("host", here.(*net.TCPAddr).IP, here.(*net.TCPAddr).Zone)
	default:
		w.Fatalf("no step %q", step)
	}
}

// flood is more than both ends of a connection buffer.
var flood = make([]byte, 64<<20)

// at does what one end of a connection does.
func (w *world) at(c end, step string) {
	what, arg, _ := strings.Cut(step, " ")
	switch what {
	case "read":
		size, err := strconv.Atoi(arg)
		require.NoError(w, err)
		p := make([]byte, size)
		n, err := c.Read(p)
		w.tell(what, n, string(p[:n]), err)
	case "readAll": // however the bytes arrive
		got, err := io.ReadAll(c)
		w.tell(what, len(got), string(got[:min(20, len(got))]), err)
	case "write":
		n, err := c.Write([]byte(arg))
		w.tell(what, n, err)
	case "writeUntilError": // until the news of the peer's end has arrived
		n, err := c.Write([]byte("x"))
		for ; err == nil; n, err = c.Write([]byte("x")) {
			runtime.Gosched()
		}
		w.tell(what, n, err)
	case "flood":
		n, err := c.Write(flood)
		w.tell(what, n < len(flood), err)
	case "writeMuch":
		n, err := c.Write(flood[:1<<20])
		w.tell(what, n, err, c.Close())
	case "close":
		w.tell(what, c.Close())
	case "closeWrite":
		w.tell(what, c.CloseWrite())
	case "reset":
		w.reset(c)
	case "deadline":
		w.tell(what, c.SetDeadline(deadlines[arg]()))
	case "readDeadline":
		w.tell(what, c.SetReadDeadline(deadlines[arg]()))
	case "writeDeadline":
		w.tell(what, c.SetWriteDeadline(deadlines[arg]()))
	default:
		w.Fatalf("no step %q", step)
	}
}

var deadlines = map[string]func() time.Time{
	"past":  func() time.Time { return time.Unix(1, 0) },
	"soon":  func() time.Time { return time.Now().Add(time.Millisecond) },
	"later": func() time.Time { return time.Now().Add(time.Hour) },
	"none":  func() time.Time { return time.Time{} },
}

// afterOwnEnd is everything that can be done to a connection that this end has closed.
const afterOwnEnd = "c read 1; c read 0; c write x; c write; c close; c closeWrite; c deadline past; c readDeadline none; c writeDeadline none"

// scenes begin with both ends of a new connection.
var scenes = map[string]string{
	"addresses":                            "addresses; c close; s close; addresses",
	"a stream has no borders":              "c write one; c write two; s read 2; s read 1; s read 3",
	"close":                                "c write last words; c close; s readAll; s read 1",
	"close with something unread":          "c write request; s write answer; s read 1; s close; c readAll; c read 1; c write x",
	"write to a closed peer":               "s close; c read 1; c write into the void; c writeUntilError; c write x; c read 1",
	"much to a closed peer":                "s close; c flood; c read 1",
	"the peer closes after a last message": "s write 408; s close; c write request; c writeUntilError; c readAll",
	"own close":                            "c close; " + afterOwnEnd,
	"own reset":                            "c reset; " + afterOwnEnd,
	"reset, read first":                    "s reset; c read 1; c read 1; c write x; c closeWrite; c deadline past; c close",
	"reset, write first":                   "s reset; c writeUntilError; c write x; c read 1",
	"reset after some data":                "s write half an ans; c read 4; s reset; c readAll; c read 1",
	"reset of a half closed connection":    "c closeWrite; s read 1; s reset; c read 1; c read 1",
	"half close":                           "c write question; c closeWrite; s readAll; s read 1; c write x; s write answer; s close; c readAll",
	"half close twice":                     "c closeWrite; c closeWrite; c write",
	"half close by both":                   "c closeWrite; s read 1; s closeWrite; c read 1; c write x; c close",
	"nothing":                              "c read 0; c write; s write text; c read 0; c read 4; s close; c read 1; c read 0",
	"nothing after a deadline":             "c deadline past; c read 0; c write",
	"nothing after a reset":                "s reset; c read 1; c read 0; c write",
	"a deadline that has passed":           "s write text; c deadline past; c read 4; c write x; c read 4; c deadline none; c read 4; c write x",
	"a read deadline":                      "c readDeadline soon; c read 1; c write x; s write text; c read 1; c readDeadline later; c read 4",
	"a write deadline":                     "c writeDeadline soon; c flood; c write x; s write text; c read 4",
	"a deadline and the end":               "s close; c read 1; c readDeadline past; c read 1; c readDeadline none; c read 1",
	"a deadline and a reset":               "c readDeadline past; s reset; c read 1; c readDeadline none; c read 1",
	"a deadline during a read":             "c read 1 & c readDeadline past",
	"a deadline during a write":            "c flood & c writeDeadline past",
	"own close during a read":              "c read 1 & c close",
	"own close during a write":             "c flood & c close",
	"own half close during a read":         "c read 4 & c closeWrite & s read 1 & s write text",
	"the peer's close during a read":       "c read 1 & s close",
	"the peer's reset during a read":       "c read 1 & s reset",
	"the peer's close during a write":      "c flood & s read 1 & s close; c write x; c read 1",
	"the peer's reset during a write":      "c flood & s read 1 & s reset; c write x; c read 1",
	"the peer's half close during a write": "c writeMuch & s closeWrite & s readAll",

	"dial, refused":                       "stop; dial",
	"dial, canceled":                      "dial canceled",
	"dial, too late":                      "dial late",
	"dial, canceled and refused":          "stop; dial canceled",
	"the end of a dial's context":         "dial once; accept; s write text; c read 4",
	"the queue":                           "dial; c write one; dial; c write two; accept; s read 3; accept; s read 3",
	"the queue when the listener closes":  "dial; stop; c read 1",
	"an end before the accept":            "dial; c write text; c close; accept; s readAll",
	"the listener's end":                  "stop; stop; accept",
	"the listener's end during an accept": "accept & stop",
	"connections outlive the listener":    "stop; s write text; c read 4",
}

// A connection in memory does what one of package net does. What a test sees here
// and not on a real network would be a bug that no test finds.
func TestConn_AsPackageNet(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("other systems have other errors")
	}
	for name, scene := range scenes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			see := func(w *world) string {
				defer w.listener.Close()
				return strings.Join(w.play("dial; accept; "+scene), "\n")
			}
			assert.Equal(t, see(worldOfNet(t)), see(worldInMemory(t)))
		})
	}
}
