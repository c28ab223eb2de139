// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/memhttp"
)

// Proto is the protocol between client and server.
type Proto = memhttp.Proto

// The protocols; a server speaks only one.
const (
	HTTP1 = memhttp.HTTP1
	HTTP2 = memhttp.HTTP2
	H2C   = memhttp.H2C
)

// Protos lists all protocols.
var Protos = []Proto{HTTP1, HTTP2, H2C}

// Serve starts a server for h on loopback. The caller closes it.
func Serve(p Proto, h http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = p.Protocols()
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // aborted handlers and connections are intended
	if p == HTTP2 {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	return s
}

// Base returns a new base transport that speaks p and trusts s. The caller may
// modify it before its first use.
func Base(p Proto, s *httptest.Server) *http.Transport {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.Proxy = nil
	base.Protocols = p.Protocols()
	base.MaxIdleConnsPerHost = 32
	if p == HTTP2 {
		base.TLSClientConfig.RootCAs = x509.NewCertPool()
		base.TLSClientConfig.RootCAs.AddCert(s.Certificate())
	}
	return base
}

var lastPort atomic.Int64

// listen listens on a loopback port that no client of an ended server still
// dials. Its port is below the range that systems assign to outgoing sockets and
// to listeners on port 0.
func listen() (net.Listener, error) {
	const first, ports = 12_000, 16_000
	for range ports {
		port := first + (int64(os.Getpid())*131+lastPort.Add(1))%ports
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return l, nil
		}
	}
	return nil, errors.New("lab: no free port")
}

// FreeAddr returns a loopback address without a listener, as listen chooses it: a
// client that repeatedly dials a port without a listener may otherwise be
// assigned that very port, and connect to itself.
func FreeAddr() (string, error) {
	l, err := listen()
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// pause sleeps for d and reports whether ctx is still active.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// within polls until done returns true or d has passed.
func within(d time.Duration, done func() bool) bool {
	for end := time.Now().Add(d); !done(); {
		if time.Now().After(end) {
			return false
		}
		pause(context.Background(), 10*time.Millisecond)
	}
	return true
}
