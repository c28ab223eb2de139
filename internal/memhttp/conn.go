// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package memhttp

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/retrip/retrip/internal/errno"
)

// bufferSize is how many bytes one direction of a connection buffers before
// writes block.
const bufferSize = 64 << 10

// Conn is one end of an in-memory connection that behaves like a TCP connection
// of package net on loopback, under Linux: a test compares them. Conns come from
// [Listener.Dial] and [Listener.Accept]; the zero Conn is not usable. A Conn is
// safe for concurrent use.
//
// These differences remain. Each direction buffers 64 KiB, not some megabytes.
// What one end does reaches the other at once. A Conn has none of the other
// methods of a net.TCPConn. Only a Conn can be frozen.
type Conn struct {
	mu            *sync.Mutex // of both directions
	in, out       *half
	local, remote net.Addr
	onClose       func()
}

// news says that the peer has reset the connection. A socket reports that once, to
// Read or to Write.
type news struct{ reset bool }

func (n *news) take() bool {
	was := n.reset
	n.reset = false
	return was
}

// newConns returns the two ends of a new connection. It calls onClientClose
// once, when the client's end is closed or reset.
func newConns(clientAddr, serverAddr net.Addr, onClientClose func()) (client, server *Conn) {
	mu, clients, servers := &sync.Mutex{}, &news{}, &news{}
	up, down := newHalf(mu, servers, clients), newHalf(mu, clients, servers)
	client = &Conn{mu: mu, in: down, out: up, local: clientAddr, remote: serverAddr, onClose: onClientClose}
	server = &Conn{mu: mu, in: up, out: down, local: serverAddr, remote: clientAddr, onClose: func() {}}
	return client, server
}

// Read reads what the peer has written. It returns io.EOF once the peer has
// closed the connection and everything it wrote has been read.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.in.read(p)
	return n, c.wrap("read", err)
}

// Write copies p into the connection's buffer and blocks while the buffer is
// full. If the peer has closed the connection, the first Write succeeds
// nevertheless, and later ones fail with EPIPE.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	return n, c.wrap("write", err)
}

// Close closes the connection. The peer can still read what was written before,
// and then reads io.EOF. If c has not read everything that the peer wrote, Close
// resets the connection.
func (c *Conn) Close() error { return c.end(false) }

// CloseWrite ends the direction towards the peer, which reads io.EOF after the
// data written before. Reading from the peer continues to work.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch h := c.out; {
	case h.writeClosed:
		return c.wrap("close", net.ErrClosed)
	case h.broken && !h.frozen:
		return &net.OpError{Op: "close", Net: "tcp", Source: c.local, Addr: c.remote, Err: os.NewSyscallError("shutdown", errno.Unconnected)}
	default:
		h.ended = true
		h.cond.Broadcast()
		return nil
	}
}

// Reset closes the connection abruptly, like a TCP RST. The peer can still read
// what was written before; otherwise its next Read or Write fails with
// ECONNRESET. Resetting a closed Conn has no effect.
func (c *Conn) Reset() { _ = c.end(true) }

// Freeze turns the connection into a black hole, as when the peer loses power
// or a firewall forgets the connection: neither end reads what the other
// writes, or learns that the other has closed or reset the connection. Writes
// succeed until the buffer is full, and then block. Deadlines and an end's own
// Close work as usual.
func (c *Conn) Freeze() {
	c.in.freeze()
	c.out.freeze()
}

// resetFrozen resets c if it is frozen. Data written since the freeze is lost.
func (c *Conn) resetFrozen() {
	up, down := c.in.thaw(), c.out.thaw()
	if up || down {
		c.Reset()
	}
}

// end closes this end.
func (c *Conn) end(reset bool) error {
	c.mu.Lock()
	was := c.in.readClosed
	if !was {
		reset = reset || c.in.buf.Len() > 0
		if reset && !c.out.ended {
			c.out.reader.reset = true
		}
		c.in.endReader(reset)
		c.out.endWriter()
	}
	c.mu.Unlock()
	if was {
		return c.wrap("close", net.ErrClosed)
	}
	c.onClose()
	return nil
}

func (c *Conn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.in.readClosed
}

// LocalAddr returns this end's fictitious TCP address.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the peer's fictitious TCP address.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets the read and the write deadline. A zero time clears them.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline makes reads fail with os.ErrDeadlineExceeded from t on,
// including reads that are already blocked. A zero time clears the deadline.
func (c *Conn) SetReadDeadline(t time.Time) error {
	if c.isClosed() {
		return &net.OpError{Op: "set", Net: "tcp", Addr: c.local, Err: net.ErrClosed}
	}
	c.in.setDeadline(&c.in.readDeadline, t)
	return nil
}

// SetWriteDeadline makes writes fail with os.ErrDeadlineExceeded from t on,
// including writes that are already blocked. A zero time clears the deadline.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.isClosed() {
		return &net.OpError{Op: "set", Net: "tcp", Addr: c.local, Err: net.ErrClosed}
	}
	c.out.setDeadline(&c.out.writeDeadline, t)
	return nil
}

// wrap wraps err in the error type of package net.
func (c *Conn) wrap(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if err == errno.Reset || err == errno.Pipe {
		err = os.NewSyscallError(op, err)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// half is one direction of a connection. All waits are on its Cond, because
// these are durably blocking in a synctest bubble, so that time can advance.
// Waiting for a Mutex or a socket is not.
type half struct {
	reader, writer *news // of the two ends

	mu            *sync.Mutex // of both directions
	cond          sync.Cond   // broadcast on any change of the fields below
	buf           bytes.Buffer
	writing       bool // a Write is in progress: Writes don't interleave
	frozen        bool // nothing gets through, not even errors caused by the other end
	readClosed    bool // the reader has closed its end
	writeClosed   bool // the writer has closed its end
	ended         bool // nothing follows what buf holds
	broken        bool // the writer knows that nobody reads
	readDeadline  deadline
	writeDeadline deadline
}

// deadline is one of the two deadlines that SetDeadline sets. The mu of its
// half guards it.
type deadline struct {
	at    time.Time
	timer *time.Timer // wakes blocked calls at the deadline; nil if none is pending
	fired bool
}

// passed also checks the clock: several timers may be due at the same time, and
// the result of a call must not depend on which of them ran first.
func (d *deadline) passed() bool {
	return d.fired || !d.at.IsZero() && !time.Now().Before(d.at)
}

func newHalf(mu *sync.Mutex, reader, writer *news) *half {
	h := &half{mu: mu, reader: reader, writer: writer}
	h.cond.L = mu
	return h
}

func (h *half) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.readClosed:
			return 0, net.ErrClosed
		case len(p) == 0:
			return 0, nil
		case h.readDeadline.passed():
			return 0, os.ErrDeadlineExceeded
		case h.frozen:
		case h.buf.Len() > 0:
			n, _ := h.buf.Read(p) // a non-empty Buffer returns no error
			h.cond.Broadcast()
			return n, nil
		case h.ended:
			if h.reader.take() {
				return 0, errno.Reset
			}
			return 0, io.EOF
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
		switch {
		case h.writeClosed:
			return n, net.ErrClosed
		case h.writeDeadline.passed():
			return n, os.ErrDeadlineExceeded
		case h.frozen && !h.ended:
		case h.broken || h.ended:
			if !h.frozen && h.writer.take() {
				return n, errno.Reset
			}
			return n, errno.Pipe
		}
		m := min(len(p)-n, bufferSize-h.buf.Len())
		if !h.frozen && h.readClosed {
			// The reader answers with a reset.
			h.broken = m > 0
		} else {
			h.buf.Write(p[n : n+m])
		}
		n += m
		h.cond.Broadcast()
		if n == len(p) {
			return n, nil
		}
		if h.frozen || !h.broken {
			h.cond.Wait()
		}
	}
}

// endWriter ends the half on behalf of its writer, who closes its end.
func (h *half) endWriter() {
	h.writeClosed, h.ended = true, true
	h.writeDeadline.stop()
	h.cond.Broadcast()
}

// endReader ends the half on behalf of its reader, who closes its end.
func (h *half) endReader(reset bool) {
	h.readClosed, h.broken = true, h.broken || reset
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
