// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// Cut is a way in which the body of a response breaks.
type Cut int

// The kinds of cuts.
const (
	CutFIN       Cut = iota // the connection closes
	CutRST                  // the connection is reset
	CutRSTStream            // HTTP/2: the stream is reset
	CutGOAWAY               // HTTP/2: the server sends GOAWAY, and the connection closes
)

// Cuts is a TCP proxy that cuts the stream to its clients after a number of
// bytes, rotating through the kinds of cuts. For HTTP/2, which must be without
// TLS, it works on frames.
type Cuts struct {
	conns
	upstream string
	every    int64
	ways     []Cut
	proto    Proto
	cuts     atomic.Int64 // made so far
	sent     atomic.Int64 // bytes sent to clients
}

// NewCuts starts a proxy to upstream on a free loopback port.
func NewCuts(upstream string, every int64, p Proto, ways ...Cut) (*Cuts, error) {
	c := &Cuts{upstream: upstream, every: every, ways: ways, proto: p}
	return c, c.serve(func(client net.Conn) { c.relay(client.(*net.TCPConn)) })
}

// Made returns how many cuts the proxy has made.
func (c *Cuts) Made() int64 { return c.cuts.Load() }

// Sent returns how many bytes the proxy has sent to clients.
func (c *Cuts) Sent() int64 { return c.sent.Load() }

func (c *Cuts) relay(client *net.TCPConn) {
	server, ok := c.dial(c.upstream)
	if !ok {
		return
	}
	defer c.drop(server)
	// A reset loses the data in flight, so keep it small.
	_ = client.SetWriteBuffer(32 << 10)
	p := &cutConn{cuts: c, client: client, server: server}
	c.wg.Go(func() {
		_ = p.requests()
		_ = client.CloseRead()
		_ = server.(*net.TCPConn).CloseWrite()
	})
	var err error
	if c.proto == H2C {
		err = p.frames()
	} else {
		err = p.bytes()
	}
	if errors.Is(err, errReset) {
		_ = client.SetLinger(0)
	}
}

var errReset = errors.New("reset")

// cutConn is a connection through the proxy.
type cutConn struct {
	cuts   *Cuts
	client *net.TCPConn
	server net.Conn
	toUp   sync.Mutex // guards writes to server, one frame at a time
}

// requests copies the client's bytes.
func (p *cutConn) requests() error {
	if p.cuts.proto == HTTP1 {
		_, err := io.Copy(p.server, p.client)
		return err
	}
	preface := make([]byte, 24)
	if _, err := io.ReadFull(p.client, preface); err != nil {
		return err
	}
	if _, err := p.server.Write(preface); err != nil {
		return err
	}
	return eachFrame(p.client, func(_ frameHeader, frame []byte) error { return p.up(frame) })
}

func (p *cutConn) up(frame []byte) error {
	p.toUp.Lock()
	defer p.toUp.Unlock()
	_, err := p.server.Write(frame)
	return err
}

func (p *cutConn) down(b []byte) error {
	n, err := p.client.Write(b)
	p.cuts.sent.Add(int64(n))
	return err
}

// next returns the kind of the next cut.
func (p *cutConn) next() Cut {
	return p.cuts.ways[int(p.cuts.cuts.Add(1)-1)%len(p.cuts.ways)]
}

// bytes copies the server's bytes, up to a cut.
func (p *cutConn) bytes() error {
	buffer := make([]byte, 16<<10)
	for left := p.cuts.every; ; {
		n, err := p.server.Read(buffer[:min(int64(len(buffer)), left)])
		if n > 0 {
			if err := p.down(buffer[:n]); err != nil {
				return err
			}
		}
		if left -= int64(n); left == 0 {
			if p.next() == CutRST {
				return errReset
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// frames copies the server's frames, and cuts after the given number of data
// bytes.
func (p *cutConn) frames() error {
	left := p.cuts.every
	dead := map[uint32]bool{}
	return eachFrame(p.server, func(h frameHeader, frame []byte) error {
		const data = 0
		if dead[h.stream] {
			return nil
		}
		if err := p.down(frame); err != nil || h.kind != data {
			return err
		}
		if left -= int64(len(frame)); left > 0 {
			return nil
		}
		left = p.cuts.every
		switch p.next() {
		case CutRST:
			return errReset
		case CutRSTStream:
			dead[h.stream] = true
			reset := h.with(3, 0, 2) // RST_STREAM, INTERNAL_ERROR
			if err := p.up(reset); err != nil {
				return err
			}
			return p.down(reset)
		case CutGOAWAY:
			goodbye := frameHeader{}.with(7, h.stream, 0)
			if err := p.down(goodbye); err != nil {
				return err
			}
			return io.EOF
		default:
			return io.EOF
		}
	})
}

// frameHeader is the relevant part of an HTTP/2 frame header (RFC 9113 §4.1).
type frameHeader struct {
	kind   byte
	stream uint32
}

// with returns a frame on h's stream with the given numbers as payload. For
// RST_STREAM, only the second is used.
func (h frameHeader) with(kind byte, first, second uint32) []byte {
	payload := binary.BigEndian.AppendUint32(nil, second)
	if kind == 7 {
		payload = append(binary.BigEndian.AppendUint32(nil, first), payload...)
	}
	frame := []byte{0, 0, byte(len(payload)), kind, 0}
	frame = binary.BigEndian.AppendUint32(frame, h.stream)
	return append(frame, payload...)
}

// eachFrame calls f with each frame it reads from r.
func eachFrame(r io.Reader, f func(h frameHeader, frame []byte) error) error {
	frame := make([]byte, 9, 32<<10)
	for {
		if _, err := io.ReadFull(r, frame[:9]); err != nil {
			return err
		}
		length := int(frame[0])<<16 | int(frame[1])<<8 | int(frame[2])
		if cap(frame) < 9+length {
			frame = append(make([]byte, 0, 9+length), frame[:9]...)
		}
		frame = frame[:9+length]
		if _, err := io.ReadFull(r, frame[9:]); err != nil {
			return err
		}
		h := frameHeader{kind: frame[3], stream: binary.BigEndian.Uint32(frame[5:9]) & (1<<31 - 1)}
		if err := f(h, frame); err != nil {
			return err
		}
	}
}
