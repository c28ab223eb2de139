// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"time"
)

// Turn is one attempt at a spare. If the spare has no connection in time, or
// fails to get one, the base makes the attempt: nothing has been sent. The
// context of a request that gets a response should end with the response's body:
// a Turn keeps contexts derived from it until then. A Turn is not safe for
// concurrent use.
type Turn struct {
	pools    *Pools
	entry    *entry
	pool     *Pool
	base     *http.Transport
	key      Key
	since    time.Duration
	patience time.Duration
	most     time.Duration // that nearly all responses take; 0 if it doesn't matter
	left     bool          // the base makes the attempt
}

// AtBase reports whether the attempt was left to the base.
func (t *Turn) AtBase() bool { return t.left }

// RoundTrip implements [http.RoundTripper].
func (t *Turn) RoundTrip(req *http.Request) (*http.Response, error) {
	for !t.left {
		w := &wait{turn: t, pool: t.pool}
		resp, err := w.roundTrip(req)
		scouts, http1 := w.why()
		if scouts {
			defer t.pools.home(t.entry)
		}
		switch {
		case err == nil || w.had:
			return resp, err
		case req.Context().Err() != nil:
			if req.Body != nil {
				_ = req.Body.Close()
			}
			return nil, err
		}
		t.left = !http1 || !t.toHTTP1()
	}
	return t.base.RoundTrip(req)
}

// toHTTP1 moves t to the spare for HTTP/1, and reports whether there is one.
func (t *Turn) toHTTP1() bool {
	t.key.HTTP2 = false
	next := t.pools.Get(t.pool.epoch, t.base, t.key, t.since, t.patience)
	if next != nil {
		t.pool = next.pool
	}
	return next != nil
}

// wait is one use of a pool. The mutex of the pool guards its fields.
type wait struct {
	turn   *Turn
	pool   *Pool
	leave  context.CancelFunc // called if the request gives up before it has a connection
	scouts bool               // the request gave up because of its patience
	had    bool               // the request got a connection
	late   bool               // but had given up
	since  time.Duration      // instant at which it got the connection
}

// lateError ends an attempt that got its connection just as it gave up.
type lateError struct{}

func (lateError) Error() string { return "retrip: timeout awaiting a connection" }
func (lateError) Timeout() bool { return true }

// roundTrip sends req over the pool, unless the pool has no connection for it in
// time. It leaves the body open if there was no connection.
func (w *wait) roundTrip(req *http.Request) (resp *http.Response, err error) {
	p := w.pool
	ctx, leave := context.WithCancel(req.Context())
	defer func() {
		if resp == nil {
			leave()
		}
		// Otherwise ctx ends with the context of req.
	}()
	if w.leave = leave; !p.begin(w) {
		return nil, lateError{}
	}
	defer p.end(w, false)
	own := req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { p.got(w, info.Conn) },
	}))
	if req.Body != nil && req.Body != http.NoBody {
		own.Body = &heldBody{req.Body, w}
	}
	defer time.AfterFunc(w.turn.patience, w.loseHeart).Stop()
	resp, err = p.pool.RoundTrip(own)
	switch {
	case w.late:
		if err == nil {
			_ = resp.Body.Close()
		}
		return nil, lateError{}
	case err != nil:
		if w.waited(w.turn.most) {
			p.silent.Store(true)
		}
		return nil, err
	}
	p.silent.Store(false)
	p.answered.Store(int64(time.Since(p.epoch)))
	if resp.Request == own {
		resp.Request = req
	}
	return resp, nil
}

// heldBody is a request body that net/http can't close before there is a
// connection: the base may need the body.
type heldBody struct {
	io.ReadCloser
	wait *wait
}

// Close implements [io.Closer].
func (b *heldBody) Close() error {
	p := b.wait.pool
	p.mu.Lock()
	had := b.wait.had
	p.mu.Unlock()
	if !had {
		return nil
	}
	return b.ReadCloser.Close()
}

// begin adds w to the requests that wait for a connection of p. It returns false
// if p speaks another protocol than it is for.
func (p *Pool) begin(w *wait) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.http1 {
		return false
	}
	if p.waiting == nil {
		p.waiting = map[*wait]struct{}{}
	}
	p.waiting[w] = struct{}{}
	return true
}

// loseHeart ends the wait of w if the base may be tried instead.
func (w *wait) loseHeart() {
	t := w.turn
	if t.pools.scout(t.entry, w.pool.http2, t.since) && !w.pool.end(w, true) {
		t.pools.home(t.entry)
	}
}

// why reports why w ended without a connection: because of its patience, or
// because the pool speaks HTTP/1 and not HTTP/2.
func (w *wait) why() (scouts, http1 bool) {
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	return w.scouts, w.pool.http1 && !w.scouts
}

// end ends the wait of w, and reports whether it still waited.
func (p *Pool) end(w *wait, scouts bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, waits := p.waiting[w]
	w.scouts = w.scouts || waits && scouts
	p.dismiss(w)
	return waits
}

func (p *Pool) dismissAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.waiting {
		p.dismiss(w)
	}
}

// dismiss ends the wait of w, if it still waits. The caller holds p.mu.
func (p *Pool) dismiss(w *wait) {
	if _, ok := p.waiting[w]; ok {
		delete(p.waiting, w)
		w.leave()
	}
}

// got records that w got the connection conn. A pool for HTTP/2 has only one
// connection. If that speaks HTTP/1, the other requests don't wait for it, unless
// the base limits connections.
func (p *Pool) got(w *wait, conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.waiting[w]; !ok && !w.had {
		w.late = true
	}
	delete(p.waiting, w)
	w.had, p.had, w.since = true, true, time.Since(p.epoch)
	if p.http2 && w.turn.base.MaxConnsPerHost <= 0 && speaksHTTP1(conn) {
		p.http1 = true
		for other := range p.waiting {
			p.dismiss(other)
		}
	}
}

// waited reports whether w got a connection longer than the time most ago. It returns
// false if most is 0.
func (w *wait) waited(most time.Duration) bool {
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	return most > 0 && w.had && time.Since(w.pool.epoch)-w.since > most
}

// speaksHTTP1 reports whether conn speaks HTTP/1, as far as TLS tells.
func speaksHTTP1(conn net.Conn) bool {
	c, ok := conn.(interface{ ConnectionState() tls.ConnectionState })
	return ok && c.ConnectionState().NegotiatedProtocol != "h2"
}
