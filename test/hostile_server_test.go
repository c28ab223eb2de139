// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// hostileServer answers connections byte by byte, unlike any library.
type hostileServer struct {
	*memhttp.Listener
	URL     string
	Base    *http.Transport
	written atomic.Int64
	read    atomic.Int64 // bytes of response bodies read by the client
	peak    atomic.Uint64
}

// hostileConn is a connection of a hostileServer. It measures what it writes.
type hostileConn struct {
	net.Conn
	server *hostileServer
	r      *bufio.Reader
}

// newHostileServer starts a server that passes each connection to serve and
// then closes it. It must run in a bubble, which fails the test if a goroutine
// of client or server is still running at the end.
func newHostileServer(t *testing.T, serve func(*hostileConn)) *hostileServer {
	l := memhttp.Listen()
	// The default limit of headers is 10 MiB. A smaller one makes the test faster.
	s := &hostileServer{Listener: l, URL: "http://" + l.Addr().String() + "/", Base: &http.Transport{DialContext: l.Dial, MaxResponseHeaderBytes: 1 << 20}}
	var serving sync.WaitGroup
	serving.Go(func() {
		testenv.Accept(l, func(c net.Conn) {
			serving.Add(1)
			defer serving.Done()
			serve(&hostileConn{c, s, bufio.NewReader(c)})
		})
	})
	t.Cleanup(func() {
		s.Base.CloseIdleConnections()
		l.Close()
		serving.Wait()
	})
	return s
}

// RoundTrip passes req to the base and counts the bytes read from the response
// body.
func (s *hostileServer) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := s.Base.RoundTrip(req)
	if err == nil {
		resp.Body = &countedBody{resp.Body, &s.read}
	}
	return resp, err
}

type countedBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}

// request reads a request, and reports whether there is one.
func (c *hostileConn) request() bool {
	_, err := http.ReadRequest(c.r)
	return err == nil
}

// send writes text, and reports whether the client still reads.
func (c *hostileConn) send(text string) bool {
	before := c.server.written.Load() >> 18
	n, err := io.WriteString(c.Conn, text)
	if c.server.written.Add(int64(n))>>18 != before { // once per 256 KiB
		c.server.measure()
	}
	return err == nil
}

// measure records the size of the heap, including garbage, if it is the largest
// so far.
func (s *hostileServer) measure() {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	for peak := s.peak.Load(); m.HeapAlloc > peak && !s.peak.CompareAndSwap(peak, m.HeapAlloc); peak = s.peak.Load() {
	}
}

// hostilePolicy has no waits, so all the time that passes is the server's.
var hostilePolicy = retrip.Policy{
	Backoff: retrip.Backoff{Base: retrip.Off}, AttemptTimeout: time.Second, Budget: retrip.Off,
}

const ok200 = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// gzipBomb returns 64 MiB of zeros, compressed.
func gzipBomb(t *testing.T) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := io.CopyN(w, play.Zeros{}, 64<<20)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}
