// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package spare keeps second pools of connections, for retries that must not use the
// connection that their attempt doubts.
package spare

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/span"
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
	// most bounds the spares of a Transport. Beyond it, the least recently
	// used spare goes.
	most = 256

	// idle is how long a spare keeps an idle connection, and how long a
	// Transport keeps a spare that nothing uses.
	idle = 30 * time.Second
)

// Pool is a second pool of connections to one host. It is safe for concurrent
// use.
type Pool struct {
	pool     *http.Transport
	http2    bool
	epoch    time.Time // instants are durations since then
	made     time.Duration
	answered atomic.Int64  // instant of the last response
	used     time.Duration // instant of the last retry sent here; guarded by spares.mu
}

// RoundTrip implements [http.RoundTripper].
func (p *Pool) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := p.pool.RoundTrip(req)
	if err == nil {
		p.answered.Store(int64(time.Since(p.epoch)))
	}
	return resp, err
}

// fresh reports whether p may serve a retry after an attempt that was still
// waiting at the instant since: p is newer or, over HTTP/2, has delivered a
// response after that instant. Over HTTP/1 a response says nothing about the
// other connections of p.
func (p *Pool) fresh(since time.Duration) bool {
	return p.made > since || p.http2 && time.Duration(p.answered.Load()) > since
}

// Pools are the spares of a Transport. The zero spares is empty.
type Pools struct {
	mu       sync.Mutex
	list     map[Key]*Pool
	sweeping bool // a timer of sweepLater is running
}

// Key includes the protocol, because spares for different protocols
// differ; see newPool.
type Key struct {
	hostkey.Key
	Scheme string
	HTTP2  bool
}

// Get returns the spare of key if it is fresh, and otherwise a new one in its
// place. It returns nil if base allows no spare.
func (l *Pools) Get(epoch time.Time, base *http.Transport, key Key, since time.Duration) *Pool {
	l.mu.Lock()
	now := time.Since(epoch)
	p := l.list[key]
	if p != nil && p.fresh(since) {
		p.used = now
		l.mu.Unlock()
		return p
	}
	pool := newPool(base, key.Scheme, key.HTTP2)
	if pool == nil {
		l.mu.Unlock()
		return nil
	}
	gone := l.makeRoom(key)
	if l.list == nil {
		l.list = map[Key]*Pool{}
	}
	// The strings of key are parts of a URL, which may be long.
	key.Key, key.Scheme = key.Key.Clone(), strings.Clone(key.Scheme)
	p = &Pool{pool: pool, http2: key.HTTP2, epoch: epoch, made: now, used: now}
	l.list[key] = p
	if !l.sweeping {
		l.sweeping = true
		l.sweepLater(epoch, idle)
	}
	l.mu.Unlock()
	// Don't hold the lock: closing may have to wait for a peer.
	closeIdle(gone)
	return p
}

// makeRoom removes and returns the spare of key, or the least recently used one
// if there is no room for another. A request that still uses it is not
// affected.
func (l *Pools) makeRoom(key Key) *Pool {
	gone, ok := l.list[key]
	if !ok && len(l.list) >= most {
		for k, p := range l.list {
			if gone == nil || p.used < gone.used {
				key, gone = k, p
			}
		}
	}
	delete(l.list, key)
	return gone
}

// sweepLater removes spares that nothing has used for idle, for the first
// time after d. Besides connections, a spare keeps what net/http keeps in its
// pool: the contexts of requests that waited for another request's connection.
func (l *Pools) sweepLater(epoch time.Time, d time.Duration) {
	time.AfterFunc(d, func() {
		l.mu.Lock()
		now, next := time.Since(epoch), span.Forever
		var gone []*Pool
		for key, p := range l.list {
			if left := p.used + idle - now; left > 0 {
				next = min(next, left)
			} else {
				gone = append(gone, p)
				delete(l.list, key)
			}
		}
		l.sweeping = len(l.list) > 0
		if l.sweeping {
			l.sweepLater(epoch, next)
		}
		l.mu.Unlock()
		closeIdle(gone...)
	})
}

// Close removes all spares and closes their idle connections.
func (l *Pools) Close() {
	l.mu.Lock()
	gone := make([]*Pool, 0, len(l.list))
	for _, p := range l.list {
		gone = append(gone, p)
	}
	clear(l.list)
	l.mu.Unlock()
	closeIdle(gone...)
}

func closeIdle(gone ...*Pool) {
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
	if pool.IdleConnTimeout <= 0 || pool.IdleConnTimeout > idle {
		pool.IdleConnTimeout = idle
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
	// Nobody registers while requests are under way, and Clone has waited for
	// net/http itself, so reading the value needs no atomic operation.
	value := f.Field(0).Elem()
	if !value.IsValid() {
		return false
	}
	if value.Type() != reflect.TypeFor[map[string]http.RoundTripper]() {
		return true
	}
	for protocols := value.MapRange(); protocols.Next(); {
		// By "http/2" and "http/3", golang.org/x/net changes what base does
		// from Go 1.27 on.
		name := protocols.Key().String()
		if (name == scheme || strings.HasPrefix(name, "http/")) && !ownHTTP2(protocols.Value().Elem()) {
			return true
		}
	}
	return false
}

// ownHTTP2 reports whether rt is what net/http itself registers for HTTP/2.
func ownHTTP2(rt reflect.Value) bool {
	return rt.IsValid() && rt.Type().PkgPath() == "net/http" && strings.HasPrefix(rt.Type().Name(), "http2")
}
