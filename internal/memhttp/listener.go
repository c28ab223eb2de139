// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package memhttp connects real net/http servers and clients in memory, so that
// their tests can run in a [testing/synctest] bubble. In a bubble, a goroutine
// that waits for a loopback socket keeps the virtual clock from advancing; a
// goroutine that waits for a [Conn] doesn't.
//
// Most tests need only [NewServer]. A [Listener] can also serve an
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
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/retrip/retrip/internal/errno"
)

// ports gives every Listener its own address, so that URLs distinguish servers.
var ports atomic.Uint32

// Listener is an in-memory net.Listener; [Listener.Dial] opens connections to
// it. Create one with [Listen]; the zero Listener is not usable. A Listener is
// safe for concurrent use.
type Listener struct {
	addr *net.TCPAddr

	mu      sync.Mutex
	cond    sync.Cond // broadcast when queue or closed changes
	queue   []*Conn   // dialled, not yet accepted
	closed  bool
	refuse  bool
	dials   int
	clients map[*Conn]bool // dialled and not yet closed by the client
}

// Listen returns a Listener with a fictitious address on 127.0.0.1 that is
// unique in this process.
func Listen() *Listener {
	port := 10000 + int(ports.Add(1)%50000)
	l := &Listener{addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}, clients: map[*Conn]bool{}}
	l.cond.L = &l.mu
	return l
}

// Dial opens a connection to l and ignores network and addr, so that a request
// to any host reaches l. Use it as [net/http.Transport.DialContext]. It never
// blocks. After Close, and while Refuse(true) is in effect, it fails like a
// dial to a port without a listener: with a *net.OpError whose Op is "dial" and
// that wraps ECONNREFUSED. Unlike package net, Dial calls no hooks of httptrace,
// and any number of connections may wait for Accept.
func (l *Listener) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: l.addr, Err: err}
	}
	if ctx.Err() != nil {
		// Package net has its own words for this, and doesn't dial.
		return new(net.Dialer).DialContext(ctx, network, l.addr.String())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.refuse {
		return fail(os.NewSyscallError("connect", errno.Refused))
	}
	clientAddr := &net.TCPAddr{IP: l.addr.IP, Port: 10000 + l.dials%50000}
	var client, server *Conn
	client, server = newConns(clientAddr, l.addr, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.clients, client)
	})
	l.dials++
	l.clients[client] = true
	l.queue = append(l.queue, server)
	l.cond.Broadcast()
	return client, nil
}

// Accept waits for the next connection and returns the server's end, a *[Conn].
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

// Close closes the listener: Accept and another Close fail with net.ErrClosed, and Dial is
// refused. Connections that were not yet accepted are reset; accepted ones
// continue. Frozen connections are reset too, because calls that wait for them
// could never return otherwise.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return &net.OpError{Op: "close", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
	}
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

// Addr returns l's fictitious TCP address.
func (l *Listener) Addr() net.Addr { return l.addr }

// Refuse sets whether Dial refuses new connections. Existing connections
// continue.
func (l *Listener) Refuse(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = on
}

// Freeze freezes every open connection; see [Conn.Freeze]. Connections that are
// dialled later work.
func (l *Listener) Freeze() {
	for _, c := range l.open() {
		c.Freeze()
	}
}

// open returns the client's ends that are not closed yet.
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

// Open returns how many connections the client has not closed yet, including
// idle ones.
func (l *Listener) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.clients)
}
