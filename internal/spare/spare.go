// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package spare makes second connections to hosts, for attempts that must not use the one
// that an earlier attempt has shown to be suspect.
package spare

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/retrip/retrip/internal/hostkey"
)

// A connection may freeze: the network stops delivering its bytes, and neither end learns of it.
// Over HTTP/2 net/http sends every request to a host down the same connection, so every attempt
// would time out until pings or TCP find out. So an attempt after a timeout, and a hedge, go to
// the host's spare: a clone of the base with one connection, which all requests share while
// nothing speaks against it. Once the base is known to deliver nothing while the spare delivers,
// or for long enough, all requests begin with the spare, until the base delivers a response: to
// a hedge, or to an attempt that had no connection of the spare in time; see Turn.
//
// Over HTTP/1 net/http closes the connection of a request that timed out. But the pool may hold
// more that died in the same moment, and a PUT that finds one isn't repeated. So after one of the
// pool that timed out, or two that were lost, an attempt gets a connection that is closed after it;
// see Once. So does one after a 421, over any HTTP.

const (
	most = 256              // hosts that a Transport knows of
	idle = 30 * time.Second // for which a spare keeps a connection, and a host is known, that nothing uses
)

// Pools are the spares of a Transport. The zero Pools is empty. It is safe for concurrent use.
type Pools struct {
	some  atomic.Bool // hosts isn't empty
	mu    sync.Mutex  // guards all below, and every host and pool
	hosts map[hostkey.Key]*host
	made  []weak.Pointer[http.Transport] // all spares; those with connections are reachable
	swept weak.Pointer[[16]byte]         // what it points to is gone after a garbage collection, and only that takes spares away

	allows, asked bool // the result of Allows; whether it is known
}

// host is what is known of the HTTP/2 connections to a host.
type host struct {
	made     time.Time       // since then, answered is known
	answered time.Time       // of the base's last response
	over     [8]delivery     // of the base's connections, those that delivered last, the last one first
	works    context.Context // ends then
	end      context.CancelFunc
	doubted  time.Time // since then the base owes a response; zero if it doesn't
	avoided  bool      // no request begins with the base
	pool     *pool     // the spare; nil if none has been needed
	expiry   *time.Timer
}

// delivery is the last response over a connection.
type delivery struct {
	conn  net.Conn
	at    time.Time
	began time.Time // when the last attempt began that got a good response over conn
}

// pool is a second pool of connections to one host.
type pool struct {
	*http.Transport
	connected time.Time // when a request first got a connection; zero before that
	answered  time.Time // of the last response
	silent    bool      // since the last response, a hedge has waited for longer than nearly all
}

// fresh reports whether p has got its connection or delivered a response after the instant
// since. So has one that is still connecting: a host has one dial under way.
func (p *pool) fresh(since time.Time) bool {
	return p != nil && (p.connected.IsZero() || p.connected.After(since) || p.answered.After(since))
}

// Some reports whether l may know any host.
func (l *Pools) Some() bool { return l.some.Load() }

// Doubt tells l that the base, or the spare in its place, owes a response over HTTP/2 since
// the instant since. From now on l wants to know of the base's responses. It returns the spare if
// that has delivered one since then, and the base hasn't.
func (l *Pools) Doubt(key hostkey.Key, since time.Time, atSpare bool) *pool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.host(key)
	if h.answered.After(since) || atSpare && h.doubted.IsZero() {
		return nil
	}
	h.doubted = since
	if !h.made.After(since) || h.pool != nil && h.pool.answered.After(since) {
		h.avoided = true
	}
	if h.avoided && h.pool != nil && h.pool.answered.After(since) {
		return h.pool
	}
	return nil
}

// delivers reports whether conn has delivered no response of the base since the instant since, and
// another connection has, to an attempt that began after the instant began: with hundreds of requests
// in flight, net/http has several connections. An overloaded server nearly keeps the order.
func (l *Pools) delivers(key hostkey.Key, began, since time.Time, conn net.Conn) (other bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	over := &l.host(key).over
	for _, d := range over {
		if d.conn == conn && d.at.After(since) {
			return false
		}
		other = other || d.began.After(began)
	}
	// Else there may be more connections than places.
	return other && !over[len(over)-1].at.After(since)
}

// RecordAnswer tells l of a response of the base over HTTP/2 and conn, which is nil if unknown, to
// an attempt that began at the instant began, which is zero if unknown or the server was unwell.
// Attempts that wait then go there.
func (l *Pools) RecordAnswer(key hostkey.Key, conn net.Conn, began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hosts[key]
	if h == nil {
		return
	}
	h.end()
	h.works, h.end = context.WithCancel(context.Background())
	h.answered, h.doubted, h.avoided = time.Now(), time.Time{}, false
	if conn == nil {
		h.over = [8]delivery{} // it may be any of them
		return
	}
	i := slices.IndexFunc(h.over[:], func(d delivery) bool { return d.conn == conn })
	if i < 0 {
		i = len(h.over) - 1
		h.over[i] = delivery{conn: conn}
	}
	d := h.over[i]
	if d.at = h.answered; began.After(d.began) {
		d.began = began
	}
	copy(h.over[1:], h.over[:i])
	h.over[0] = d
}

// Avoids reports whether a request must not begin with the base, and the instant for Get.
func (l *Pools) Avoids(key hostkey.Key) (since time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.hosts[key]; h != nil && h.avoided {
		return h.doubted, true
	}
	return time.Time{}, false
}

// Get returns a turn at the spare of key, for an attempt after one that is owed a response since
// that instant. It returns nil if the base has delivered one since, or allows no spare.
func (l *Pools) Get(base *http.Transport, key hostkey.Key, since time.Time, patience time.Duration) *Turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.host(key)
	if h.answered.After(since) {
		return nil
	}
	return l.turn(h, base, h.pool.fresh(since), patience, 0)
}

// ForHedge returns a turn for a hedge of an attempt that began at the instant since, at the base
// or with the turn first. If no connection has delivered a response since, all of them may have
// frozen, and the hedge gets a new one. If first has that of the spare, and it works, ForHedge
// returns nil for the base. Nearly no response takes as long as delay.
func (l *Pools) ForHedge(base *http.Transport, key hostkey.Key, first *Turn, since time.Time, patience, delay time.Duration) *Turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.host(key)
	p := h.pool
	works := h.answered.After(since) || p != nil && p.answered.After(since)
	same := p != nil && !first.AtBase() && first.pool == p
	if same && works {
		return nil
	}
	return l.turn(h, base, p != nil && !same && !p.silent && (works || p.fresh(since)), patience, delay)
}

// turn returns a turn at h's spare, a new one unless it can keep that. The caller holds l.mu.
func (l *Pools) turn(h *host, base *http.Transport, keep bool, patience, delay time.Duration) *Turn {
	if !keep {
		if h.pool != nil {
			go h.pool.CloseIdleConnections() // which may wait for the peer
		}
		h.pool = l.pool(base, true)
	}
	if h.pool == nil {
		return nil
	}
	return &Turn{pools: l, host: h, pool: h.pool, base: base, patience: patience, delay: delay, works: h.works}
}

// Allows reports whether an attempt can have a new connection, by Once or because base, which
// has been used and is the same for all calls, makes one for each request.
func (l *Pools) Allows(base *http.Transport) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.asked {
		l.asked, l.allows = true, base.DisableKeepAlives || l.pool(base, false) != nil
	}
	return l.allows
}

// Once returns a turn with a connection of its own, or nil if the base allows none.
func (l *Pools) Once(base *http.Transport, patience time.Duration) *Turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.turn(&host{pool: l.pool(base, false), works: context.Background()}, base, true, patience, 0)
}

// host returns the host of key, made on first use. The caller holds l.mu.
func (l *Pools) host(key hostkey.Key) *host {
	if h := l.hosts[key]; h != nil {
		h.expiry.Reset(idle)
		return h
	}
	for other, gone := range l.hosts {
		if len(l.hosts) < most {
			break
		}
		gone.expiry.Stop()
		delete(l.hosts, other)
	}
	if l.hosts == nil {
		l.hosts = map[hostkey.Key]*host{}
	}
	key = key.Clone() // its strings are parts of a URL, which may be long
	h := &host{made: time.Now()}
	h.works, h.end = context.WithCancel(context.Background())
	h.expiry = time.AfterFunc(idle, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.hosts[key] == h {
			delete(l.hosts, key)
			l.some.Store(len(l.hosts) > 0)
		}
	})
	l.hosts[key] = h
	l.some.Store(true)
	return h
}

// Close closes the idle connections of all spares. What is known of hosts stays: a connection of the
// base that has frozen isn't idle.
func (l *Pools) Close() {
	l.mu.Lock()
	made := slices.Clone(l.made)
	l.mu.Unlock()
	for _, p := range made {
		if t := p.Value(); t != nil {
			t.CloseIdleConnections()
		}
	}
}

// pool returns a copy of base without connections, for HTTP/2 or for one request.
// It returns nil if a copy isn't needed or would not behave like base. The caller holds l.mu.
func (l *Pools) pool(base *http.Transport, http2 bool) *pool {
	if base.DisableKeepAlives || base.MaxConnsPerHost > 0 && !http2 {
		return nil // every request has its own connection, or there would be more than allowed
	}
	t := base.Clone()
	if len(t.TLSNextProto) > 0 || Registered(base) {
		// The copy would share the pool of a foreign HTTP/2, or lack a RoundTripper.
		return nil
	}
	if t.Protocols == nil && t.TLSNextProto == nil {
		// Its first use has given base a TLSClientConfig, because of which the copy would
		// offer HTTP/2 to servers but not speak it: https://go.dev/issue/39302.
		t.Protocols = new(http.Protocols)
		t.Protocols.SetHTTP1(true)
		t.Protocols.SetHTTP2(base.TLSNextProto["h2"] != nil)
	}
	if config := t.TLSClientConfig; config != nil {
		config.NextProtos = slices.Clone(config.NextProtos) // net/http appends to it
	}
	// Without a limit, each request that finds no connection dials.
	t.MaxConnsPerHost, t.DisableKeepAlives = 1, !http2
	t.IdleConnTimeout = cmp.Or(min(max(0, t.IdleConnTimeout), idle), idle)
	if l.swept.Value() == nil {
		l.made = slices.DeleteFunc(l.made, func(p weak.Pointer[http.Transport]) bool { return p.Value() == nil })
		l.swept = weak.Make(new([16]byte))
	}
	l.made = append(l.made, weak.Make(t))
	return &pool{Transport: t}
}

// Registered reports whether base passes HTTP requests to a RoundTripper that was registered
// with it. Only net/http's internals tell. If they have changed, it returns true.
func Registered(base *http.Transport) (yes bool) {
	defer func() { yes = yes || recover() != nil }()
	// Nobody registers during requests, and Clone has waited for net/http itself.
	all := reflect.ValueOf(base).Elem().FieldByName("altProto").Field(0).Elem()
	if !all.IsValid() {
		return false
	}
	for i := all.MapRange(); i.Next(); {
		// net/http itself registers its HTTP/2, and golang.org/x/net "http/2" from Go 1.27 on.
		rt := i.Value().Elem()
		own := rt.IsValid() && rt.Type().PkgPath() == "net/http" && strings.HasPrefix(rt.Type().Name(), "http2")
		if !own && strings.HasPrefix(i.Key().String(), "http") {
			return true
		}
	}
	return false
}

// Turn is one attempt at a spare. If that has no connection in time, or fails to get one, or if
// the base delivers a response meanwhile, the base makes the attempt: nothing has been sent, and
// the dial goes on for others. The context of a request that gets a response should end with the
// response's body: a Turn keeps one derived from it until then.
type Turn struct {
	pools    *Pools
	host     *host
	pool     *pool
	base     *http.Transport
	patience time.Duration
	delay    time.Duration   // of a hedge, else 0
	works    context.Context // ends when the base turns out to work
	left     atomic.Bool     // the base makes the attempt
}

// AtBase reports whether the base makes the attempt, as it does without a Turn.
func (t *Turn) AtBase() bool { return t == nil || t.left.Load() }

// RoundTrip implements [http.RoundTripper].
func (t *Turn) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.left.Load() {
		return t.base.RoundTrip(req)
	}
	began := time.Now()
	ctx, cancel := context.WithCancelCause(req.Context())
	var state atomic.Int32
	// A stopped timer may stay in the runtime's heap, and must not keep the request there.
	var late atomic.Pointer[context.CancelCauseFunc]
	late.Store(&cancel)
	defer late.Store(nil)
	leave := func() {
		if c := late.Load(); c != nil && state.CompareAndSwap(0, left) {
			(*c)(errLate)
		}
	}
	defer time.AfterFunc(t.patience, leave).Stop()
	defer context.AfterFunc(t.works, leave)()
	own := req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		if state.Swap(sent) == left {
			cancel(errLate) // before leave does
		}
		t.pools.mu.Lock()
		defer t.pools.mu.Unlock()
		t.pool.connected = cmp.Or(t.pool.connected, time.Now())
	}}))
	if req.Body != nil && req.Body != http.NoBody {
		own.Body = &heldBody{req.Body, &state}
	}
	resp, err := t.pool.RoundTrip(own)
	if context.Cause(ctx) == errLate {
		if err == nil { // it got a connection just as it left
			_ = resp.Body.Close()
		}
		err = errLate
	}
	t.pools.mu.Lock()
	if err == nil {
		defer t.pools.mu.Unlock()
		t.pool.answered, t.pool.silent = time.Now(), false
		t.host.avoided = !t.host.doubted.IsZero()
		resp.Request = req
		return resp, nil // ctx ends with that of req
	}
	t.pool.silent = t.pool.silent || t.delay > 0 && state.Load() == sent && time.Since(began) > t.delay
	t.pools.mu.Unlock()
	if cancel(nil); state.Load() == sent {
		return nil, err
	}
	t.left.Store(true)
	return t.base.RoundTrip(req)
}

const left, sent = 1, 2 // states of an attempt at a spare; before that, it waits

// errLate ends an attempt that leaves the spare.
var errLate = fmt.Errorf("retrip: awaiting a connection: %w", os.ErrDeadlineExceeded)

// heldBody is a body that stays open until there is a connection: the base may need it.
type heldBody struct {
	io.ReadCloser
	state *atomic.Int32
}

// Close implements [io.Closer].
func (b *heldBody) Close() error {
	if b.state.Load() != sent {
		return nil
	}
	return b.ReadCloser.Close()
}
