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
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// Two attempts at a hostile HTTP/2 server, frame by frame: they end in time,
// and the server can send only a bounded number of bytes. (The root package's
// tests cover such HTTP/1.1 servers.)
//
//retrip:promise P12
func TestHostileHTTP2(t *testing.T) {
	const mib = 1 << 20
	long := string(bytes.Repeat([]byte("x"), 8<<10))
	data := make([]byte, 16<<10)
	for _, tt := range []struct {
		name   string
		serve  func(f *frameConn, stream uint32, number int64) bool
		status int   // 0 means an error
		sent   int64 // maximum bytes that the server can send; 0 means no bound
	}{
		{"endless CONTINUATION frames", func(f *frameConn, stream uint32, _ int64) bool {
			block := headerBlock("503", hpack.HeaderField{Name: "x", Value: long})
			err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block})
			for err == nil {
				err = f.WriteContinuation(stream, false, headerBlock("503", hpack.HeaderField{Name: "x", Value: long})[1:])
			}
			return false
		}, 0, 64 * mib},
		// retrip ends the stream within its bound. The connection belongs to
		// the base: net/http continues to read and discards the data.
		{"endless error body", func(f *frameConn, stream uint32, _ int64) bool {
			err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true, BlockFragment: headerBlock("503")})
			for err == nil { // beyond any window
				err = f.WriteData(stream, false, data)
			}
			return false
		}, 0, 0},
		{"error body that never comes", func(f *frameConn, stream uint32, _ int64) bool {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true, BlockFragment: headerBlock("503")}) == nil
		}, 503, mib},
		// The stream ends at MaxResponseHeaderBytes. The connection stays open,
		// and with it the flood, until AttemptTimeout ends the next attempt.
		{"flood of 103", func(f *frameConn, stream uint32, _ int64) bool {
			var err error
			for err == nil {
				err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true, BlockFragment: headerBlock("103", hpack.HeaderField{Name: "link", Value: long})})
			}
			return false
		}, 0, 0},
		{"silence", func(*frameConn, uint32, int64) bool { return true }, 0, mib},
		{"frames of an unknown stream", func(f *frameConn, stream uint32, _ int64) bool {
			return f.WriteData(stream+100, true, data) == nil
		}, 0, mib},
		{"GOAWAY with an error", func(f *frameConn, _ uint32, _ int64) bool {
			return f.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, []byte(long)) == nil
		}, 0, mib},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := newFrameServer(t, tt.serve)
			policy := retrip.Policy{MaxAttempts: 2, AttemptTimeout: time.Second, Backoff: retrip.Backoff{Base: retrip.Off}}
			transport := &retrip.Transport{Base: h2cBase(t), Policy: policy}
			before := testenv.Heap()
			began := time.Now()
			resp, err := transport.RoundTrip(play.MustRequest(t, http.MethodGet, server.URL, nil))
			took := time.Since(began)
			if resp != nil {
				resp.Body.Close()
			}
			switch {
			case tt.status != 0:
				require.NoError(t, err)
				assert.Equal(t, tt.status, resp.StatusCode)
			case err == nil:
				// The response headers may arrive before the connection is
				// given up.
				assert.Equal(t, 503, resp.StatusCode)
			}
			sent := server.bytes.Load()
			assert.Less(t, took, 10*time.Second, "two attempts of a second, and a slow machine")
			if tt.sent > 0 {
				assert.LessOrEqual(t, sent, tt.sent)
			}
			assert.LessOrEqual(t, server.accepted.Load(), int64(2*11))
			assert.Less(t, testenv.Heap(), before+32*mib)
			t.Logf("%v, %d bytes sent, %d connections, %d requests: %v", took, sent, server.accepted.Load(), server.requests.Load(), err)
		})
	}
}

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
