// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package memhttp

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log"
	"math/big"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// Proto is the only protocol that a [Server] speaks. The zero Proto is HTTP1.
type Proto int

// The protocols.
const (
	HTTP1 Proto = iota // HTTP/1.1 without TLS
	HTTPS              // HTTP/1.1 over TLS
	HTTP2              // HTTP/2 over TLS
	H2C                // HTTP/2 without TLS, with prior knowledge
)

// String returns the protocol's name in a form suited to subtest names.
func (p Proto) String() string { return [...]string{"HTTP1", "HTTPS", "HTTP2", "H2C"}[p] }

func (p Proto) tls() bool { return p == HTTPS || p == HTTP2 }

// Scheme returns the URL scheme.
func (p Proto) Scheme() string {
	if p.tls() {
		return "https"
	}
	return "http"
}

// Protocols returns p in the form that transports and servers take.
func (p Proto) Protocols() *http.Protocols {
	var ps http.Protocols
	ps.SetHTTP1(p == HTTP1 || p == HTTPS)
	ps.SetHTTP2(p == HTTP2)
	ps.SetUnencryptedHTTP2(p == H2C)
	return &ps
}

// Server is a running [net/http.Server] on an in-memory [Listener]. Create one
// with [NewServer]; the zero Server is not usable. A Server is safe for
// concurrent use; its fields must not be changed.
type Server struct {
	URL      string    // http:// http:// or https:// and the Listener's address, without a trailing slash
	Listener *Listener // for counting and refusing connections

	proto Proto
	http  *http.Server
	wg    sync.WaitGroup // all serving goroutines: the listener's, the connections', the handlers'
}

// NewServer starts a server for h that speaks proto. t's Cleanup functions
// close it. In a bubble they run inside the bubble, so NewServer must be called
// there too.
//
// The cleanup closes every connection of the server, which cancels the contexts
// of running requests, and waits for the handlers to return. Idle client
// connections need not be closed. A client that still has a connection 10
// seconds later has left a response body open, which fails t (and a bubble
// panics because of blocked goroutines).
func NewServer(t testing.TB, proto Proto, h http.Handler) *Server {
	t.Helper()
	l := Listen()
	s := &Server{URL: proto.Scheme() + "://" + l.Addr().String(), Listener: l, proto: proto}
	s.http = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// An HTTP/2 handler outlives its connection's goroutine.
			s.wg.Add(1)
			defer s.wg.Done()
			h.ServeHTTP(w, r)
		}),
		ConnState:   s.connState,
		ConnContext: withConn,
		ErrorLog:    log.New(t.Output(), "", 0),
		Protocols:   proto.Protocols(),
	}
	serve := func() error { return s.http.Serve(l) }
	if proto.tls() {
		s.http.TLSConfig = &tls.Config{Certificates: []tls.Certificate{Certificate()}}
		serve = func() error { return s.http.ServeTLS(l, "", "") }
	}
	s.wg.Go(func() {
		if err := serve(); err != http.ErrServerClosed {
			t.Errorf("memhttp: Serve: %v", err)
		}
	})
	t.Cleanup(func() { s.close(t) })
	return s
}

// Transport returns a new base transport that sends requests for any host to
// the server, with its protocol. With TLS it trusts [Certificate]. The caller may
// modify the transport before its first use.
func (s *Server) Transport() *http.Transport {
	tr := &http.Transport{DialContext: s.Listener.Dial, Protocols: s.proto.Protocols()}
	if s.proto.tls() {
		tr.TLSClientConfig = &tls.Config{RootCAs: Roots()}
	}
	return tr
}

// connState counts connections. net/http ends a connection only after a pause
// that lets the client read an early response, even if the connection was
// closed before.
func (s *Server) connState(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.wg.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.wg.Done()
	}
}

func (s *Server) close(t testing.TB) {
	t.Helper()
	_ = s.http.Close() // its error says that the Listener is already closed
	s.wg.Wait()
	const pause = time.Millisecond
	for left := 10 * time.Second; s.Listener.Open() > 0 && left > 0; left -= pause {
		time.Sleep(pause)
	}
	if n := s.Listener.Open(); n > 0 {
		t.Errorf("memhttp: %d connections are still open on the client's side: was a response body not closed?", n)
	}
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	if tc, ok := c.(*tls.Conn); ok {
		c = tc.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// RequestConn returns the server's end of the connection on which r arrived,
// for handlers that reset it:
//
//	memhttp.RequestConn(r).Reset()
//	panic(http.ErrAbortHandler)
//
// It returns nil if r did not come from a [Server].
func RequestConn(r *http.Request) *Conn {
	c, _ := r.Context().Value(connKey{}).(*Conn)
	return c
}

// Roots returns the certificates that clients of [Certificate] should trust.
func Roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(Certificate().Leaf)
	return roots
}

// Certificate returns a certificate for 127.0.0.1, example.com and the hosts below
// example.com and test. It is self-signed, and valid on a bubble's clock too, which
// starts in the year 2000.
var Certificate = sync.OnceValue(func() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "memhttp"},
		NotBefore:             time.Unix(0, 0),
		NotAfter:              time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:                  true,
		BasicConstraintsValid: true,
		DNSNames:              []string{"example.com", "*.example.com", "*.test"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
})

// HTTP2 reports whether s speaks HTTP/2.
func (s *Server) HTTP2() bool { return s.proto == HTTP2 || s.proto == H2C }
