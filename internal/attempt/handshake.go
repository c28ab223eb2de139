// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptrace"
	"net/url"
	"reflect"
	"strings"
	"sync"
)

// handshakes is what an attempt knows of its TLS handshakes.
type handshakes struct {
	// Package net looks for hooks under a key of its own. Only a context that
	// httptrace made has a value for it.
	ctx context.Context

	mu        sync.Mutex
	asked     string // host and port that net/http wanted to dial last for the request, of the server or of a proxy
	named     bool   // package net looked up the host of asked
	connected bool   // package net made a connection
	reached   bool   // package net connected to asked itself
	failed    error  // of the last handshake by net/http; nil if it was a success
}

// watchHandshakes completes h with the hooks that record the handshakes, and
// chains the caller's hooks behind all of them.
func (h *hooks) watchHandshakes() {
	s := &handshakes{}
	h.handshakes = s
	h.DNSStart = func(info httptrace.DNSStartInfo) { s.lookUp(info.Host) }
	h.ConnectDone = s.connect
	h.TLSHandshakeDone = func(_ tls.ConnectionState, err error) { s.done(err) }
	s.ctx = httptrace.WithClientTrace(h.attempt.behind(), &h.ClientTrace)
}

func (s *handshakes) ask(hostPort string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked, s.named, s.reached = hostPort, false, false
}

func (s *handshakes) lookUp(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	host, _, err := net.SplitHostPort(s.asked)
	s.named = s.named || err == nil && strings.EqualFold(host, name)
}

func (s *handshakes) connect(_, addr string, err error) {
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connected = true
	s.reached = s.reached || addr == s.asked || s.named && port(addr) == port(s.asked)
}

func (s *handshakes) done(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
}

// HandshakeError returns the error of a TLS handshake over a connection of
// package net, if that is why the attempt failed with err. On other connections
// a handshake error may have any cause. The error of a function that makes
// connections with TLS itself counts if package net had connected it to the
// server: a connection to somewhere else may have failed there.
func (a *Attempt) HandshakeError(err error) error {
	h := a.hooks.Load()
	if h == nil || h.handshakes == nil {
		return nil
	}
	s := h.handshakes
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failed != nil:
		if s.connected && wraps(err, s.failed) {
			return s.failed
		}
	case a.watch&WatchDialTLS != 0 && s.reached && !a.sent:
		if isOf(s.asked, a.Req.URL) {
			return err
		}
		// After the dial, the proxy may have refused something.
		if op, ok := err.(*net.OpError); ok && op.Op == "proxyconnect" {
			return op.Err
		}
	}
	return nil
}

// isOf reports whether hostPort is what net/http dials for u, if there is no proxy and the
// host is in ASCII.
func isOf(hostPort string, u *url.URL) bool {
	usual := "443"
	if u.Scheme == "http" {
		usual = "80"
	}
	if rest, ok := strings.CutPrefix(hostPort, u.Host); ok && (rest == "" || rest[0] == ':' && rest[1:] == usual) {
		return true // as almost always
	}
	host, port, err := net.SplitHostPort(hostPort)
	return err == nil && strings.EqualFold(host, u.Hostname()) && port == cmp.Or(u.Port(), usual)
}

func port(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

// wraps reports whether err is inner, or wraps it. errors.Is finds only errors
// that can be compared.
func wraps(err, inner error) bool {
	if reflect.ValueOf(inner).Comparable() {
		return errors.Is(err, inner)
	}
	found := reflect.New(reflect.TypeOf(inner))
	return errors.As(err, found.Interface()) && found.Elem().Interface().(error).Error() == inner.Error()
}
