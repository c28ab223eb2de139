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
// connection in it; see Pool.fresh. That bounds the cost of a slow host: its
// spares are made at least half an AttemptTimeout apart.
//
// But the host may only have been slow, and then the connection of the base
// works while the spare still has to connect, which may take longer than an
// attempt, or fail. So an attempt waits a part of its time for a connection of
// the spare, and then goes to the base; see Turn. The dial goes on, for the next
// retry. If the HTTP/2 connection of the base has delivered a response meanwhile,
// no spare is needed at all.
//
// A hedge that wins over a spare while the HTTP/2 connection of the base delivers nothing
// is the same evidence, and so is a caller that gives up after many times the delay of a
// hedge. It reaches further: where attempts have no timeout, every later request would wait
// on that connection. So first attempts shun the base, until it has delivered a response.
// That response is due to a hedge beside an attempt at the spare, or to the first attempt
// that tries the base again after a while.

const (
	// most bounds the spares of a Transport. Beyond it, the least recently
	// used spare goes.
	most = 256

	// idle is how long a spare keeps an idle connection, and how long a
	// Transport keeps a spare that nothing uses.
	idle = 30 * time.Second

	// connecting is how long a spare may take to connect, at least. That is
	// enough for two lost packets in a row: TCP sends a SYN again after one
	// second, and once more after three.
	connecting = 4 * time.Second

	// waits is how many times as long as an attempt waits for it a spare may
	// take to connect, at least: four attempts that wait a third of their time.
	waits = 12

	// shunning is how long first attempts shun the base before one of them tries it.
	// By then, http.DefaultTransport has closed a connection that nothing uses.
	shunning = 2 * time.Minute

	// mostScouts bounds the requests to a host over HTTP/2 that are at the base
	// because the spare had no connection in time. If their connection is
	// frozen, each takes a stream of it that never ends, and once these have run
	// out, net/http dials for each request. If the connection works, they tell.
	mostScouts = 8
)

// Pool is a second pool of connections to one host. It is safe for concurrent
// use.
type Pool struct {
	pool     *http.Transport
	http2    bool
	epoch    time.Time // instants are durations since then
	made     time.Duration
	answered atomic.Int64 // instant of the last response
	silent   atomic.Bool  // since then, a request got a connection and then no response for longer than nearly all

	mu      sync.Mutex
	waiting map[*wait]struct{} // requests without a connection
	had     bool               // a request has got a connection
	http1   bool               // the pool is for HTTP/2, but its connection speaks HTTP/1
}

// fresh reports whether p may serve, at the instant now, a retry after an
// attempt that was still waiting at the instant since: p is newer or, over
// HTTP/2, has delivered a response after that instant. Over HTTP/1 a response
// says nothing about the other connections of p. A pool that is still connecting
// is newer than any doubt, but not for ever: its dial may hang.
func (p *Pool) fresh(now, since, patience time.Duration) bool {
	if p.made > since || p.http2 && time.Duration(p.answered.Load()) > since {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.had && now-p.made < max(connecting, span.Mul(patience, waits))
}

// Pools are the spares of a Transport. The zero Pools is empty.
type Pools struct {
	mu       sync.Mutex
	list     map[Key]*entry
	some     atomic.Bool // list isn't empty
	sweeping bool        // a timer of sweepLater is running
}

// entry is what is known of the connections to a host. The mutex of its Pools
// guards it.
type entry struct {
	pool     *Pool         // nil if none has been needed
	answered time.Duration // instant of the base's last response over HTTP/2; 0 if none is known
	used     time.Duration // instant of the last doubt or retry
	scouts   int           // requests at the base that had no connection of the spare in time
	made     time.Duration // instant since which answered is known
	shunned  bool          // first attempts go to the spare and not to the base
	since    time.Duration // if shunned, the instant since which the base owes a response
	retry    time.Duration // if shunned, the instant at which a first attempt may try the base
}

// Key includes the protocol, because spares for different protocols
// differ; see newPool.
type Key struct {
	hostkey.Key
	Scheme string
	HTTP2  bool
}

// Some reports whether l may know the host of a response; see Answered.
func (l *Pools) Some() bool { return l.some.Load() }

// Doubt tells l that a connection of the base is suspect. From now on l wants to
// know of responses from the base.
func (l *Pools) Doubt(epoch time.Time, key Key) {
	l.mu.Lock()
	e, gone := l.entry(epoch, key)
	e.used = time.Since(epoch)
	l.mu.Unlock()
	closeIdle(gone)
}

// Answered tells l of a response from the base over HTTP/2. Requests that wait
// for a connection of the spare then go to the base.
func (l *Pools) Answered(epoch time.Time, key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.list[key]
	if e == nil {
		return
	}
	e.answered, e.shunned = time.Since(epoch), false
	if e.pool != nil {
		e.pool.dismissAll()
	}
}

// Shun makes first attempts avoid a connection that should have delivered a response since
// the instant since: a hedge has won over another one, or no attempt takes so long. It does
// nothing if the base has delivered a response meanwhile, or may have done so without a
// hedge that won.
func (l *Pools) Shun(epoch time.Time, key Key, since time.Duration, won bool) {
	l.mu.Lock()
	e, gone := l.entry(epoch, key)
	now := time.Since(epoch)
	e.used = now
	if e.answered <= since && (won || e.made <= since) {
		e.shunned, e.since, e.retry = true, since, now+shunning
	}
	l.mu.Unlock()
	closeIdle(gone)
}

// Shuns reports whether a first attempt must avoid the base, and the instant for Get. Now
// and then it returns false for an attempt that may get a hedge, which then tries the base.
func (l *Pools) Shuns(epoch time.Time, key Key, hedged bool) (since time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.list[key]
	if e == nil || !e.shunned {
		return 0, false
	}
	if now := time.Since(epoch); hedged && now >= e.retry {
		e.retry = now + shunning
		return 0, false
	}
	return e.since, true
}

// scout reports whether a request whose doubt dates from since may go to the base
// because the spare is slow to connect. The caller calls home afterwards.
func (l *Pools) scout(e *entry, http2 bool, since time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if http2 && e.scouts >= mostScouts && e.answered <= max(0, since) {
		return false
	}
	e.scouts++
	return true
}

func (l *Pools) home(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.scouts--
}

// Get returns the base's spare of key for one attempt, which waits for a
// connection as long as patience says. It makes a new spare if there is none or
// if it isn't fresh. It returns nil if the attempt should use the base: it has
// delivered a response after the instant since, or it allows no spare.
func (l *Pools) Get(epoch time.Time, base *http.Transport, key Key, since, patience time.Duration) *Turn {
	return l.get(epoch, base, key, since, patience, func(e *entry, now time.Duration) (use, pool bool) {
		return !key.HTTP2 || e.answered <= max(0, since), e.pool != nil && e.pool.fresh(now, since, patience)
	})
}

// Beside returns the base's spare of key for an attempt beside one that the base has been
// making since the instant since. If no connection to the host has delivered a response
// meanwhile, all of them may have frozen at once, and Beside makes a new spare. It also
// does so if the last request over the spare has waited for longer than the time
// most, which nearly no response takes. If the other attempt, which other isn't nil for,
// is at the spare itself, the new attempt is for the base unless neither has delivered a
// response. Beside returns nil for the base, and if the base allows no spare.
func (l *Pools) Beside(epoch time.Time, base *http.Transport, key Key, other *Turn, since, patience, most time.Duration) *Turn {
	t := l.get(epoch, base, key, time.Since(epoch), patience, func(e *entry, _ time.Duration) (use, pool bool) {
		p := e.pool
		alive := e.answered > since || p != nil && time.Duration(p.answered.Load()) > since
		if p != nil && other != nil && !other.left && other.pool == p {
			return !alive, false
		}
		return true, p != nil && !p.silent.Load() && (alive || p.made > since)
	})
	if t != nil {
		t.most = most
	}
	return t
}

// get does the work of Get and Beside. fit reports whether a spare should be used, and
// whether the one of the entry can be.
func (l *Pools) get(epoch time.Time, base *http.Transport, key Key, since, patience time.Duration, fit func(e *entry, now time.Duration) (use, pool bool)) *Turn {
	l.mu.Lock()
	e, gone := l.entry(epoch, key)
	now := time.Since(epoch)
	e.used = now
	var old *Pool
	switch use, fits := fit(e, now); {
	case !use:
		l.mu.Unlock()
		return nil
	case !fits:
		old = e.pool
		e.pool = nil
		if pool := newPool(base, key.Scheme, key.HTTP2); pool != nil {
			e.pool = &Pool{pool: pool, http2: key.HTTP2, epoch: epoch, made: now}
		}
	}
	p := e.pool
	l.mu.Unlock()
	// Don't hold the lock: closing may have to wait for a peer.
	closeIdle(gone, old)
	if p == nil {
		return nil
	}
	return &Turn{pools: l, entry: e, pool: p, base: base, key: key, since: since, patience: patience}
}

// entry returns the entry of key, made on first use, and a spare that has to go
// for it. The caller holds l.mu.
func (l *Pools) entry(epoch time.Time, key Key) (e *entry, gone *Pool) {
	if e := l.list[key]; e != nil {
		return e, nil
	}
	if len(l.list) >= most {
		gone = l.makeRoom()
	}
	if l.list == nil {
		l.list = map[Key]*entry{}
	}
	// The strings of key are parts of a URL, which may be long.
	key.Key, key.Scheme = key.Key.Clone(), strings.Clone(key.Scheme)
	e = &entry{made: time.Since(epoch)}
	l.list[key] = e
	l.some.Store(true)
	if !l.sweeping {
		l.sweeping = true
		l.sweepLater(epoch, idle)
	}
	return e, gone
}

// makeRoom removes the least recently used entry and returns its spare. A
// request that still uses the spare is not affected.
func (l *Pools) makeRoom() *Pool {
	var oldest Key
	var gone *entry
	for key, e := range l.list {
		if gone == nil || e.used < gone.used {
			oldest, gone = key, e
		}
	}
	delete(l.list, oldest)
	return gone.pool
}

// sweepLater removes entries that nothing has used for idle, for the first
// time after d. Besides connections, a spare keeps what net/http keeps in its
// pool: the contexts of requests that waited for another request's connection.
func (l *Pools) sweepLater(epoch time.Time, d time.Duration) {
	time.AfterFunc(d, func() {
		l.mu.Lock()
		now, next := time.Since(epoch), span.Forever
		var gone []*Pool
		for key, e := range l.list {
			if left := e.used + idle - now; left > 0 {
				next = min(next, left)
			} else {
				gone = append(gone, e.pool)
				delete(l.list, key)
			}
		}
		l.sweeping = len(l.list) > 0
		l.some.Store(l.sweeping)
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
	for _, e := range l.list {
		gone = append(gone, e.pool)
	}
	clear(l.list)
	l.some.Store(false)
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
