// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// Download is the result of fetching a body that was cut repeatedly.
type Download struct {
	Size, Sent int64 // of the body, and on the wire
	Cuts       int64
	Continued  int // how often another response continued the body
	SHA256     [sha256.Size]byte
	Header     http.Header // of the response that began the body
}

// Overhead returns the bytes on the wire relative to the size of the body.
func (d Download) Overhead() float64 { return float64(d.Sent) / float64(d.Size) }

// Fetch gets a path of a server without TLS, whose address is upstream, through a
// proxy that cuts after every given number of bytes: by FIN and RST in turn over
// HTTP/1.1, and by FIN, RST, RST_STREAM and GOAWAY over HTTP/2. The status must be
// 200.
func Fetch(ctx context.Context, upstream, path string, every int64, p Proto) (Download, error) {
	ways := []Cut{CutFIN, CutRST}
	if p == H2C {
		ways = append(ways, CutRSTStream, CutGOAWAY)
	}
	proxy, err := NewCuts(upstream, every, p, ways...)
	if err != nil {
		return Download{}, err
	}
	defer proxy.Close()

	dialer := net.Dialer{}
	base := &http.Transport{
		Protocols: p.Protocols(),
		// A reset loses the data in the buffers.
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err == nil {
				_ = conn.(*net.TCPConn).SetReadBuffer(32 << 10)
			}
			return conn, err
		},
	}
	var d Download
	transport := &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			Resume: time.Minute, BodyIdleTimeout: 10 * time.Second, AttemptTimeout: 10 * time.Second, Backoff: retrip.Backoff{Base: 10 * time.Millisecond},
		},
		Trace: &retrip.Trace{Resume: func(e retrip.Event) {
			if e.Reason == "continued" {
				d.Continued++
			}
		}},
	}
	defer transport.CloseIdleConnections()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+proxy.Addr()+path, nil)
	if err != nil {
		return d, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return d, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return d, fmt.Errorf("the response has status %d, not 200", resp.StatusCode)
	}
	d.Header = resp.Header
	hash := sha256.New()
	d.Size, err = io.Copy(hash, resp.Body)
	d.Sent, d.Cuts, d.SHA256 = proxy.Sent(), proxy.Made(), [sha256.Size]byte(hash.Sum(nil))
	if err != nil {
		return d, fmt.Errorf("after %d bytes: %w", d.Size, err)
	}
	return d, nil
}
