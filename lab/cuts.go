// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"
)

// Cut is a way in which the body of a response breaks.
type Cut int

// The kinds of cuts.
const (
	CutFIN       Cut = iota // the connection closes
	CutRST                  // the connection is reset
	CutRSTStream            // HTTP/2: the stream is reset
	CutGOAWAY               // HTTP/2: the server sends GOAWAY, and the connection closes
	CutSilence              // nothing follows
)

// Cuts is a TCP proxy that cuts the stream to its clients after a number of
// bytes, rotating through the kinds of cuts, and resets a connection over which the
// client has sent eight times as many. For HTTP/2 without TLS, it works on frames.
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
		_, err := io.CopyN(p.server, p.client, 8*p.cuts.every)
		if err == nil {
			p.cuts.cuts.Add(1)
			_ = p.client.SetLinger(0)
			_ = p.client.Close()
		}
		return err
	}
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(p.client, preface); err != nil {
		return err
	}
	if _, err := p.server.Write(preface); err != nil {
		return err
	}
	return eachFrame(p.client, func(_ http2.Frame, raw []byte) error { return p.up(raw) })
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
			switch p.next() {
			case CutRST:
				return errReset
			case CutSilence:
				p.silence()
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// silence keeps the connection until the client has closed it.
func (p *cutConn) silence() {
	for {
		if _, err := p.server.Read(make([]byte, 16<<10)); err != nil {
			return
		}
	}
}

// frames copies the server's frames, and cuts after the given number of data
// bytes.
func (p *cutConn) frames() error {
	left := p.cuts.every
	dead := map[uint32]bool{}
	return eachFrame(p.server, func(frame http2.Frame, raw []byte) error {
		stream := frame.Header().StreamID
		if dead[stream] {
			return nil
		}
		if err := p.down(raw); err != nil || frame.Header().Type != http2.FrameData {
			return err
		}
		if left -= int64(len(raw)); left > 0 {
			return nil
		}
		left = p.cuts.every
		var last bytes.Buffer
		write := http2.NewFramer(&last, nil)
		switch p.next() {
		case CutRST:
			return errReset
		case CutSilence:
			p.silence()
		case CutRSTStream:
			dead[stream] = true
			_ = write.WriteRSTStream(stream, http2.ErrCodeInternal)
			if err := p.up(last.Bytes()); err != nil {
				return err
			}
			return p.down(last.Bytes())
		case CutGOAWAY:
			_ = write.WriteGoAway(stream, http2.ErrCodeNo, nil)
			if err := p.down(last.Bytes()); err != nil {
				return err
			}
		}
		return io.EOF
	})
}

// eachFrame calls f with each frame that it reads from r, and its bytes.
func eachFrame(r io.Reader, f func(frame http2.Frame, raw []byte) error) error {
	var raw bytes.Buffer
	framer := http2.NewFramer(nil, io.TeeReader(r, &raw))
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return err
		}
		if err := f(frame, raw.Bytes()); err != nil {
			return err
		}
		raw.Reset()
	}
}
