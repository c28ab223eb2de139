// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frameServer speaks HTTP/2 without TLS, frame by frame, so that it can violate
// the protocol in ways that no library allows.
type frameServer struct {
	conns
	URL      string
	requests atomic.Int64 // HEADERS frames
	bytes    atomic.Int64 // written
}

// newFrameServer starts a server that calls request for each request, with its
// number, and closes the connection when request returns false.
func newFrameServer(t *testing.T, request func(f *frameConn, stream uint32, number int64) bool) *frameServer {
	t.Helper()
	s := &frameServer{}
	require.NoError(t, s.serve(func(c net.Conn) { s.frames(c, request) }))
	t.Cleanup(s.Close)
	s.URL = "http://" + s.Addr()
	return s
}

func (s *frameServer) frames(c net.Conn, request func(*frameConn, uint32, int64) bool) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c, preface); err != nil {
		return
	}
	f := &frameConn{Framer: http2.NewFramer(countingWriter{c, &s.bytes}, c)}
	if f.WriteSettings() != nil {
		return
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = f.WriteSettingsAck()
			}
		case *http2.HeadersFrame:
			if !request(f, frame.StreamID, s.requests.Add(1)) {
				return
			}
		}
	}
}

// frameConn is a connection on which a test writes frames.
type frameConn struct{ *http2.Framer }

func headerBlock(status string, fields ...hpack.HeaderField) []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	_ = encoder.WriteField(hpack.HeaderField{Name: ":status", Value: status})
	for _, field := range fields {
		_ = encoder.WriteField(field)
	}
	return block.Bytes()
}

type countingWriter struct {
	io.Writer
	n *atomic.Int64
}

func (w countingWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.n.Add(int64(n))
	return n, err
}

// h2cBase returns a new base transport for a frameServer.
func h2cBase(t *testing.T) *http.Transport {
	base := &http.Transport{Protocols: H2C.Protocols()}
	t.Cleanup(base.CloseIdleConnections)
	return base
}
