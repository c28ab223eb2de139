// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package memhttp lets real net/http servers and clients talk in memory, so
// that a test of them can run in a [testing/synctest] bubble: there a goroutine
// that waits for a loopback socket keeps the virtual clock from moving, one that
// waits for a [Conn] doesn't.
//
// [NewServer] is all that most tests need. A [Listener] alone also serves an
// [net/http/httptest.Server]:
//
//	l := memhttp.Listen()
//	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
//	s.Start()
//	s.Client().Transport.(*http.Transport).DialContext = l.Dial
package memhttp

import (
	"context"
	"maps"
	"net"
	"net/http/httptrace"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
)

// ports gives every Listener an address of its own, so that several servers can
// be told apart by their URLs.
var ports atomic.Uint32

// Listener is an in-memory net.Listener; [Listener.Dial] opens connections to
// it. Make one with [Listen]; the zero Listener is not usable. A Listener is safe
// for concurrent use.
type Listener struct {
	addr *net.TCPAddr

	mu      sync.Mutex
	cond    sync.Cond // broadcast when queue or closed changes
	queue   []*Conn   // dialled, not yet accepted
	closed  bool
	refuse  bool
	dials   int
	clients map[*Conn]bool // dialled and not yet closed by the dialler
}

// Listen returns a Listener with a made-up address on 127.0.0.1 that no other
// Listener of this process has.
func Listen() *Listener {
	port := 10000 + int(ports.Add(1)%50000)
	l := &Listener{addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}, clients: map[*Conn]bool{}}
	l.cond.L = &l.mu
	return l
}

// Dial opens a connection to l, whatever the network and address, so that a
// request to any host reaches it: it is meant as [net/http.Transport.DialContext].
// It never waits. After Close, and while Refuse(true) holds, it fails as a dial
// to a port where nobody listens does: with a *net.OpError whose Op is "dial",
// around ECONNREFUSED.
func (l *Listener) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: l.addr, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.refuse {
		return fail(os.NewSyscallError("connect", syscall.ECONNREFUSED))
	}
	clientAddr := &net.TCPAddr{IP: l.addr.IP, Port: 10000 + l.dials%50000}
	var client, server *Conn
	client, server = newConns(clientAddr, l.addr, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.clients, client)
	})
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.ConnectDone != nil {
		// As package net does.
		defer trace.ConnectDone(network, addr, nil)
	}
	l.dials++
	l.clients[client] = true
	l.queue = append(l.queue, server)
	l.cond.Broadcast()
	return client, nil
}

// Accept waits for the next connection and returns the server's end of it, a
// *[Conn].
func (l *Listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) == 0 && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
	}
	c := l.queue[0]
	l.queue = l.queue[1:]
	return c, nil
}

// Close ends the listening: Accept fails with net.ErrClosed and Dial is refused.
// Connections not yet accepted are reset, accepted ones go on. Frozen ones are
// reset, too: nobody who waits for them could end otherwise.
func (l *Listener) Close() error {
	l.mu.Lock()
	queue := l.queue
	l.queue = nil
	l.closed = true
	l.cond.Broadcast()
	l.mu.Unlock()
	for _, c := range queue {
		c.Reset()
	}
	for _, c := range l.open() {
		c.resetFrozen()
	}
	return nil
}

// Addr returns l's made-up TCP address.
func (l *Listener) Addr() net.Addr { return l.addr }

// Refuse says whether Dial refuses new connections from now on. Those that
// exist go on.
func (l *Listener) Refuse(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = on
}

// Freeze freezes every connection that is open now; see [Conn.Freeze]. Those that
// are dialled later work.
func (l *Listener) Freeze() {
	for _, c := range l.open() {
		c.Freeze()
	}
}

// open returns the ends of the connections that the dialler has not closed yet.
func (l *Listener) open() []*Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.clients))
}

// Dials returns how many connections were opened; refused ones don't count.
func (l *Listener) Dials() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dials
}

// Open returns how many of the connections opened the dialler has not closed
// yet, idle ones included.
func (l *Listener) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.clients)
}
