// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net"
	"sync"
	"sync/atomic"
)

// conns is a server on a free loopback port, with its connections and those
// that it has made.
type conns struct {
	listener net.Listener
	accepted atomic.Int64
	wg       sync.WaitGroup

	mu   sync.Mutex
	open map[net.Conn]bool // nil once closed
}

// serve calls handle for each connection, and closes the connection when handle
// returns.
func (c *conns) serve(handle func(net.Conn)) (err error) {
	c.open = map[net.Conn]bool{}
	if c.listener, err = listen(); err != nil {
		return err
	}
	c.wg.Go(func() {
		for {
			conn, err := c.listener.Accept()
			if err != nil {
				return
			}
			if c.keep(conn) {
				c.accepted.Add(1)
				c.wg.Go(func() {
					defer c.drop(conn)
					handle(conn)
				})
			}
		}
	})
	return nil
}

// Addr returns the address at which c listens.
func (c *conns) Addr() string { return c.listener.Addr().String() }

// Close closes all connections, and waits until all goroutines have ended.
func (c *conns) Close() {
	c.listener.Close()
	c.mu.Lock()
	for conn := range c.open {
		conn.Close()
	}
	c.open = nil
	c.mu.Unlock()
	c.wg.Wait()
}

// keep reports whether c is still running. If not, it closes conn.
func (c *conns) keep(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		conn.Close()
		return false
	}
	c.open[conn] = true
	return true
}

func (c *conns) drop(conn net.Conn) {
	conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, conn)
}

// dial connects to another server.
func (c *conns) dial(addr string) (net.Conn, bool) {
	conn, err := net.Dial("tcp", addr)
	return conn, err == nil && c.keep(conn)
}
