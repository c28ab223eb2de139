// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// A retry after a timeout uses another connection, and so does a retry after two
// lost connections.
//
// A connection may freeze: the network stops delivering its bytes, and neither
// end learns of it. Over HTTP/2 net/http sends every request to a host down the
// same connection, so every attempt would time out until pings or TCP find out.
// Over HTTP/1 net/http closes the connection of a request that timed out, but
// its pool may hold more connections that died in the same moment.
//
// When a peer silently drops connections, as load balancers do, it resets the
// next request over each of them. net/http repeats a GET until it gets a live
// connection, but not a PUT or DELETE, and a pool may hold more dead connections
// than a request has attempts.
//
// Such a retry therefore goes to a spare: a clone of the base, with a pool of
// its own. Requests to one host share its spare while nothing speaks for a dead
// connection in it; see spare.fresh. That bounds the cost of a slow host: its
// spares are made at least half an AttemptTimeout apart.

const (
	// maxSpares bounds the spares of a Transport. Beyond it, the least recently
	// used spare goes.
	maxSpares = 256

	// lostLately is how long a lost connection is assumed to have been dead
	// before its attempt failed, at most.
	lostLately = time.Second

	// spareIdle is how long a spare keeps an idle connection, and how long a
	// Transport keeps a spare that nothing uses.
	spareIdle = 30 * time.Second
)

// doubt is what a request knows about bad connections to its host.
type doubt struct {
	on    bool          // the next attempt avoids the pool of the base
	http2 bool          // the connection of the last attempt spoke HTTP/2
	lost  int32         // attempts whose connection was lost
	since time.Duration // an instant by which that attempt should have been answered
}

// spare is a second pool of connections to one host. It is safe for concurrent
// use.
type spare struct {
	pool     *http.Transport
	http2    bool
	set      *settings // for its clock
	made     time.Duration
	answered atomic.Int64  // instant of the last response
	used     time.Duration // instant of the last retry sent here; guarded by spares.mu
}

// RoundTrip implements [http.RoundTripper].
func (p *spare) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := p.pool.RoundTrip(req)
	if err == nil {
		p.answered.Store(int64(p.set.now()))
	}
	return resp, err
}

// fresh reports whether p may serve a retry after an attempt that was still
// waiting at the instant since: p is newer or, over HTTP/2, has delivered a
// response after that instant. Over HTTP/1 a response says nothing about the
// other connections of p.
func (p *spare) fresh(since time.Duration) bool {
	return p.made > since || p.http2 && time.Duration(p.answered.Load()) > since
}

// spares are the spares of a Transport. The zero spares is empty.
type spares struct {
	mu       sync.Mutex
	list     map[spareKey]*spare
	sweeping bool // a timer of sweepLater is running
}

// spareKey includes the protocol, because spares for different protocols
// differ; see newPool.
type spareKey struct {
	hostKey
	scheme string
	http2  bool
}

// get returns the spare of key if it is fresh, and otherwise a new one in its
// place. It returns nil if base allows no spare.
func (l *spares) get(s *settings, base *http.Transport, key spareKey, since time.Duration) *spare {
	l.mu.Lock()
	now := s.now()
	p := l.list[key]
	if p != nil && p.fresh(since) {
		p.used = now
		l.mu.Unlock()
		return p
	}
	pool := newPool(base, key.scheme, key.http2)
	if pool == nil {
		l.mu.Unlock()
		return nil
	}
	gone := l.makeRoom(key)
	if l.list == nil {
		l.list = map[spareKey]*spare{}
	}
	// The strings of key are parts of a URL, which may be long.
	key.hostKey, key.scheme = key.hostKey.clone(), strings.Clone(key.scheme)
	p = &spare{pool: pool, http2: key.http2, set: s, made: now, used: now}
	l.list[key] = p
	if !l.sweeping {
		l.sweeping = true
		l.sweepLater(s, spareIdle)
	}
	l.mu.Unlock()
	// Don't hold the lock: closing may have to wait for a peer.
	closeIdle(gone)
	return p
}

// makeRoom removes and returns the spare of key, or the least recently used one
// if there is no room for another. A request that still uses it is not
// affected.
func (l *spares) makeRoom(key spareKey) *spare {
	gone, ok := l.list[key]
	if !ok && len(l.list) >= maxSpares {
		for k, p := range l.list {
			if gone == nil || p.used < gone.used {
				key, gone = k, p
			}
		}
	}
	delete(l.list, key)
	return gone
}

// sweepLater removes spares that nothing has used for spareIdle, for the first
// time after d. Besides connections, a spare keeps what net/http keeps in its
// pool: the contexts of requests that waited for another request's connection.
func (l *spares) sweepLater(s *settings, d time.Duration) {
	time.AfterFunc(d, func() {
		l.mu.Lock()
		now, next := s.now(), noLimit
		var gone []*spare
		for key, p := range l.list {
			if left := p.used + spareIdle - now; left > 0 {
				next = min(next, left)
			} else {
				gone = append(gone, p)
				delete(l.list, key)
			}
		}
		l.sweeping = len(l.list) > 0
		if l.sweeping {
			l.sweepLater(s, next)
		}
		l.mu.Unlock()
		closeIdle(gone...)
	})
}

// close removes all spares and closes their idle connections.
func (l *spares) close() {
	l.mu.Lock()
	gone := make([]*spare, 0, len(l.list))
	for _, p := range l.list {
		gone = append(gone, p)
	}
	clear(l.list)
	l.mu.Unlock()
	closeIdle(gone...)
}

func closeIdle(gone ...*spare) {
	for _, p := range gone {
		if p != nil {
			p.pool.CloseIdleConnections()
		}
	}
}

// newPool returns a copy of base without connections, for requests of the
// scheme over HTTP/2 or HTTP/1. It returns nil if a copy isn't needed or would
// not behave like base.
func newPool(base *http.Transport, scheme string, http2 bool) *http.Transport {
	switch {
	case base.DisableKeepAlives:
		// Every request has a connection of its own.
		return nil
	case base.MaxConnsPerHost > 0 && !http2:
		// A second pool would exceed the limit.
		return nil
	}
	pool := base.Clone()
	if len(pool.TLSNextProto) > 0 || registered(base, scheme) {
		// base uses another implementation of HTTP/2, whose pool the copy would
		// share, or a registered RoundTripper, which the copy would lack.
		return nil
	}
	if pool.Protocols == nil && pool.TLSNextProto == nil {
		// Its first use has given base a TLSClientConfig. Because of it, net/http
		// wouldn't enable HTTP/2 in the copy, although the copy would offer
		// HTTP/2 to servers: https://go.dev/issue/39302.
		pool.Protocols = new(http.Protocols)
		pool.Protocols.SetHTTP1(true)
		pool.Protocols.SetHTTP2(base.TLSNextProto["h2"] != nil)
	}
	if config := pool.TLSClientConfig; config != nil {
		// net/http appends to NextProtos, and all copies would share the array.
		config.NextProtos = slices.Clone(config.NextProtos)
	}
	if http2 {
		// Without a limit, net/http dials once for each request that finds no
		// connection yet, and discards all connections but one. Over HTTP/2 the
		// limit makes no request wait for long: if a connection runs out of
		// streams, net/http opens another.
		pool.MaxConnsPerHost = 1
	}
	if pool.IdleConnTimeout <= 0 || pool.IdleConnTimeout > spareIdle {
		pool.IdleConnTimeout = spareIdle
	}
	return pool
}

// registered reports whether base passes requests of the scheme to a
// RoundTripper that was registered with it. No exported API tells, so
// registered also reports true if net/http's internals have changed.
func registered(base *http.Transport, scheme string) bool {
	f := reflect.ValueOf(base).Elem().FieldByName("altProto")
	if !f.IsValid() || f.Type() != reflect.TypeFor[atomic.Value]() {
		return true
	}
	value := (*atomic.Value)(unsafe.Pointer(f.UnsafeAddr())).Load()
	protocols, ok := value.(map[string]http.RoundTripper)
	if !ok {
		return value != nil
	}
	for name, rt := range protocols {
		// By "http/2" and "http/3", golang.org/x/net changes what base does
		// from Go 1.27 on.
		if (name == scheme || strings.HasPrefix(name, "http/")) && !ownHTTP2(rt) {
			return true
		}
	}
	return false
}

// ownHTTP2 reports whether rt is what net/http itself registers for HTTP/2.
func ownHTTP2(rt http.RoundTripper) bool {
	t := reflect.TypeOf(rt)
	return t != nil && t.PkgPath() == "net/http" && strings.HasPrefix(t.Name(), "http2")
}

// doubts records what the error of the last attempt says about its connection.
// From then on the request may avoid the pool of the base.
func (x *exchange) doubts() {
	base, ok := x.s.base.(*http.Transport)
	if !ok {
		return
	}
	var limit time.Duration
	a := x.attempt
	had := a != nil && a.HadConn()
	switch {
	// An attempt without a connection waited for a dial or for its turn. That
	// says nothing about a connection of the base, but counts against a spare.
	case errors.Is(x.err, errBodyIdle):
		if a != nil && !x.doubt.on && !had {
			return
		}
		limit = x.r.policy.BodyIdle
	case errors.Is(x.err, errAttemptTimeout):
		if a == nil || !x.doubt.on && !had {
			return
		}
		limit = x.r.policy.AttemptTimeout
	case base.ResponseHeaderTimeout > 0 && strings.HasSuffix(x.err.Error(), awaitingHeaders):
		limit = base.ResponseHeaderTimeout
	case lost(x.err):
		if x.doubt.lost++; x.doubt.lost < 2 || had && a.SpokeHTTP2() {
			return
		}
		limit = lostLately
	default:
		// A dial that failed, for instance.
		return
	}
	switch {
	case x.continues && a == nil:
		// x.doubt.http2 is already set, from the body that broke.
	case a == nil:
		x.doubt.http2 = strings.HasPrefix(x.err.Error(), "http2: ")
	case had:
		x.doubt.http2 = a.SpokeHTTP2()
	}
	// Ignore responses from the first half of the attempt: the connection may
	// have frozen after them. The second half lets requests that time out at
	// different moments share a spare.
	x.doubt.on, x.doubt.since = true, x.s.now()-limit/2
}

// awaitingHeaders ends the texts of net/http's errors for
// ResponseHeaderTimeout.
const awaitingHeaders = "timeout awaiting response headers"

// base returns the RoundTripper for the next attempt.
func (x *exchange) base() http.RoundTripper {
	if !x.doubt.on {
		return x.s.base
	}
	return x.spare()
}

// spare returns the spare of the request's host, or the base if there can't be
// one. It must not be inlined, to keep the stack frames of other attempts
// small.
//
//go:noinline
func (x *exchange) spare() http.RoundTripper {
	key := spareKey{keyOf(x.req.URL), x.req.URL.Scheme, x.doubt.http2}
	if p := x.t.spares.get(x.s, x.s.base.(*http.Transport), key, x.doubt.since); p != nil {
		return p
	}
	return x.s.base
}
