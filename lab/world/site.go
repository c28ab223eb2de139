// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/shed"
)

// site is a running server.
type site struct {
	w      *world
	number int
	plan   Site
	front  *memhttp.Listener // pairs of connections towards clients

	mu      sync.Mutex
	back    *memhttp.Listener
	http    *http.Server
	serving sync.WaitGroup // servers and handlers
	conns   int
	refused bool // a connection
	relays  []*relay
	window  time.Duration // in which taken requests have arrived
	taken   int
}

func (s *site) host() string { return fmt.Sprintf("s%d.test", s.number) }

func (s *site) scheme() string {
	if s.plan.TLS {
		return "https"
	}
	return "http"
}

func (s *site) port() string {
	if s.plan.TLS {
		return "443"
	}
	return "80"
}

// start starts the server, for the first time or again.
func (s *site) start() {
	var p http.Protocols
	switch {
	case s.plan.TLS:
		p.SetHTTP1(!s.w.plan.H2C)
		p.SetHTTP2(s.w.plan.H2C || !s.plan.H1)
	case s.w.plan.H2C:
		p.SetUnencryptedHTTP2(true)
	default:
		p.SetHTTP1(true)
	}
	h := http.Handler(http.HandlerFunc(s.serve))
	if s.plan.Shed > 0 {
		h = &shed.Handler{Handler: h, Limit: s.plan.Shed}
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.serving.Add(1)
		defer s.serving.Done()
		h.ServeHTTP(w, r)
	})
	server := &http.Server{Handler: handler, Protocols: &p, ErrorLog: log.New(io.Discard, "", 0), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: s.plan.Streams}}
	l := memhttp.Listen()
	s.mu.Lock()
	s.http, s.back = server, l
	s.mu.Unlock()
	s.serving.Go(func() {
		if s.plan.TLS {
			server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{memhttp.Certificate()}, MinVersion: tls.VersionTLS13, CurvePreferences: []tls.CurveID{tls.X25519}}
			_ = server.ServeTLS(l, "", "")
		} else {
			_ = server.Serve(l)
		}
	})
}

// in reports whether the site is in an outage of that kind.
func (s *site) in(kind OutageKind) bool {
	o := s.outage()
	return o != nil && o.Kind == kind
}

// outage returns the outage that the site is in, or nil.
func (s *site) outage() *Outage {
	if s.w.calm.Load() {
		return nil
	}
	now := s.w.now()
	for i := range s.plan.Outages {
		if o := &s.plan.Outages[i]; now >= o.From && now < o.From+o.For {
			return o
		}
	}
	return nil
}

// begin does what happens at the beginning of an outage.
func (s *site) begin(o Outage) {
	s.w.log("outage s%d: %v for %v", s.number, o.Kind, o.For)
	s.mu.Lock()
	server := s.http
	relays := s.relays
	s.mu.Unlock()
	switch o.Kind {
	case Refusing:
		x := s.w.chance(hashOf("refusing", s.number))
		for _, r := range relays {
			r.reset()
			time.Sleep(x.tiny())
		}
	case Silent:
		for _, r := range relays {
			r.frozen.Store(true)
		}
	case Crash:
		_ = server.Close()
		s.start()
	case Restart:
		s.start()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		// Shutdown returns after a random time.
		s.serving.Go(func() { _ = server.Shutdown(ctx) })
		time.Sleep(5 * time.Second)
		_ = server.Close()
	}
}

// stop ends the server and all connections.
func (s *site) stop() {
	s.mu.Lock()
	server, relays := s.http, s.relays
	s.mu.Unlock()
	_ = server.Close()
	for _, r := range relays {
		r.reset()
	}
	s.serving.Wait()
}

// limited counts a request towards the limit of the site, and reports whether it is
// beyond it.
func (s *site) limited() bool {
	if s.plan.Limit == 0 || s.w.calm.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if window := s.w.now() / time.Second; window != s.window {
		s.window, s.taken = window, 0
	}
	s.taken++
	return s.taken > s.plan.Limit
}

func must(err error) {
	if err != nil {
		panic(strings.TrimSpace(err.Error()))
	}
}
