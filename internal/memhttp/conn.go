// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package memhttp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// bufferSize is how many bytes one direction of a connection holds before
// writes wait for the reader.
const bufferSize = 64 << 10

// Conn is one end of an in-memory connection that behaves as TCP does on
// loopback: each direction is buffered (64 KiB), so that both ends may write at
// the same time. Conns come from [Listener.Dial] and [Listener.Accept]; the zero
// Conn is not usable. A Conn is safe for concurrent use.
//
// Errors have the form that package net gives them: a *net.OpError around
// net.ErrClosed, os.ErrDeadlineExceeded, or a system call's EPIPE or ECONNRESET.
type Conn struct {
	in, out       *half
	local, remote net.Addr
	onClose       func()

	mu     sync.Mutex
	closed bool
}

// newConns returns the two ends of a fresh connection. Each calls its onClose
// function once, when it is closed or reset.
func newConns(clientAddr, serverAddr net.Addr, onClientClose func()) (client, server *Conn) {
	up, down := newHalf(), newHalf()
	client = &Conn{in: down, out: up, local: clientAddr, remote: serverAddr, onClose: onClientClose}
	server = &Conn{in: up, out: down, local: serverAddr, remote: clientAddr, onClose: func() {}}
	return client, server
}

// Read reads what the peer has written. It returns io.EOF once the peer has
// closed the connection and everything it wrote before has been read.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.in.read(p)
	return n, c.wrap("read", err)
}

// Write copies p into the connection's buffer, waiting while that is full. It
// fails with EPIPE if the peer has closed the connection, at once: no first
// write is lost in flight.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	return n, c.wrap("write", err)
}

// Close closes the connection. The peer still reads what was written before;
// what the peer wrote and nobody has read is dropped.
func (c *Conn) Close() error {
	return c.end(io.EOF, syscall.EPIPE)
}

// CloseWrite ends the direction towards the peer, which reads io.EOF after what
// was written before; reading from the peer goes on.
func (c *Conn) CloseWrite() error {
	if c.isClosed() {
		return c.wrap("close", net.ErrClosed)
	}
	c.out.endWriter(syscall.EPIPE, io.EOF)
	return nil
}

// Reset closes the connection the hard way, as TCP does with a RST: the peer's
// writes fail with ECONNRESET at once, and so do its reads after what was
// written before the reset. On a Conn that is closed it does nothing.
func (c *Conn) Reset() {
	_ = c.end(syscall.ECONNRESET, syscall.ECONNRESET)
}

// Freeze makes the connection a black hole from now on, as a peer does that has
// lost its power, or a firewall that has forgotten the connection: neither end
// reads what the other writes, or that the other has closed or reset the
// connection. Writes go on until the buffer is full, and then wait. Deadlines
// and the end's own Close work as ever.
func (c *Conn) Freeze() {
	c.in.freeze()
	c.out.freeze()
}

// resetFrozen resets c if it is frozen. What was written since is lost.
func (c *Conn) resetFrozen() {
	up, down := c.in.thaw(), c.out.thaw()
	if up || down {
		c.Reset()
	}
}

// end closes this end; the errors are what the peer meets from now on.
func (c *Conn) end(peerRead, peerWrite error) error {
	c.mu.Lock()
	was := c.closed
	c.closed = true
	c.mu.Unlock()
	if was {
		return c.wrap("close", net.ErrClosed)
	}
	c.out.endWriter(net.ErrClosed, peerRead)
	c.in.endReader(peerWrite)
	c.onClose()
	return nil
}

func (c *Conn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// LocalAddr returns this end's made-up TCP address.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the peer's made-up TCP address.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets the read and the write deadline. A zero time clears them.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline makes reads, also one that waits already, fail with
// os.ErrDeadlineExceeded from t on. A zero time clears the deadline.
func (c *Conn) SetReadDeadline(t time.Time) error {
	if c.isClosed() {
		return c.wrap("set", net.ErrClosed)
	}
	c.in.setDeadline(&c.in.readDeadline, t)
	return nil
}

// SetWriteDeadline makes writes, also one that waits already, fail with
// os.ErrDeadlineExceeded from t on. A zero time clears the deadline.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.isClosed() {
		return c.wrap("set", net.ErrClosed)
	}
	c.out.setDeadline(&c.out.writeDeadline, t)
	return nil
}

// wrap gives err the form that package net would give it.
func (c *Conn) wrap(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// half is one direction of a connection. All waits are on its Cond: in a
// synctest bubble those are durable, so that time can move on, which waiting for
// a Mutex or for a socket is not.
type half struct {
	mu            sync.Mutex
	cond          sync.Cond // broadcast on any change of the fields below
	buf           bytes.Buffer
	writing       bool  // a Write is under way: Writes don't interleave
	frozen        bool  // nothing gets through, not even an error of the other end's making
	readErr       error // for reads when buf is empty; net.ErrClosed for all reads
	writeErr      error
	readDeadline  deadline
	writeDeadline deadline
}

// deadline is half of what SetDeadline sets. Guarded by its half's mu.
type deadline struct {
	at    time.Time
	timer *time.Timer // wakes those who wait at the time; nil if none is to come
	fired bool
}

// passed also asks the clock: several timers may be due in the same instant,
// and what a call meets must not depend on which of them ran first.
func (d *deadline) passed() bool {
	return d.fired || !d.at.IsZero() && !time.Now().Before(d.at)
}

func newHalf() *half {
	h := &half{}
	h.cond.L = &h.mu
	return h
}

func (h *half) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.readErr == net.ErrClosed:
			return 0, h.readErr
		case h.readDeadline.passed():
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		case h.frozen:
		case h.buf.Len() > 0:
			n, _ := h.buf.Read(p) // a Buffer that is not empty gives no error
			h.cond.Broadcast()
			return n, nil
		case h.readErr != nil:
			return 0, h.readErr
		}
		h.cond.Wait()
	}
}

func (h *half) write(p []byte) (n int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.writing {
		h.cond.Wait()
	}
	h.writing = true
	defer func() {
		h.writing = false
		h.cond.Broadcast()
	}()
	for {
		if h.writeErr != nil && (!h.frozen || h.writeErr == net.ErrClosed) {
			return n, h.writeErr
		}
		if h.writeDeadline.passed() {
			return n, os.ErrDeadlineExceeded
		}
		m := min(len(p)-n, bufferSize-h.buf.Len())
		h.buf.Write(p[n : n+m])
		n += m
		h.cond.Broadcast()
		if n == len(p) {
			return n, nil
		}
		h.cond.Wait()
	}
}

// endWriter is the writer's word that nothing more comes.
func (h *half) endWriter(writer, reader error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writeErr = writer
	if h.readErr == nil {
		h.readErr = reader
	}
	h.writeDeadline.stop()
	h.cond.Broadcast()
}

// endReader is the reader's word that it reads no more.
func (h *half) endReader(writer error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readErr = net.ErrClosed
	if h.writeErr == nil {
		h.writeErr = writer
	}
	h.buf = bytes.Buffer{}
	h.readDeadline.stop()
	h.cond.Broadcast()
}

func (h *half) freeze() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.frozen = true
	h.cond.Broadcast()
}

// thaw ends a freeze and reports whether there was one.
func (h *half) thaw() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.frozen {
		return false
	}
	h.frozen = false
	h.buf = bytes.Buffer{}
	if h.readErr == nil {
		h.readErr = syscall.ECONNRESET
	}
	h.cond.Broadcast()
	return true
}

// setDeadline arms d, which is one of h's two deadlines.
func (h *half) setDeadline(d *deadline, t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d.stop()
	d.at = t
	if wait := time.Until(t); !t.IsZero() && wait > 0 {
		var timer *time.Timer
		timer = time.AfterFunc(wait, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			if d.timer == timer { // not replaced while it waited for mu
				d.fired = true
				h.cond.Broadcast()
			}
		})
		d.timer = timer
	}
	h.cond.Broadcast()
}

func (d *deadline) stop() {
	d.fired = false
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
