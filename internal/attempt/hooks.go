// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"context"
	"net/http/httptrace"
	"net/textproto"
	"sync/atomic"
)

// hooks observe what net/http does within an attempt. They are made when the
// base first asks for them, so a base that never does costs nothing.
type hooks struct {
	httptrace.ClientTrace

	attempt    *Attempt
	conns      conns
	fresh      atomic.Bool // the last connection was new
	interim    atomic.Bool // the caller's Got1xxResponse has ended the last send
	handshakes *handshakes // nil unless they are watched
}

// hooked returns the hooks of a, made on first use.
func (a *Attempt) hooked() *hooks {
	if h := a.hooks.Load(); h != nil {
		return h
	}
	h := &hooks{attempt: a}
	h.GetConn, h.GotConn = h.getConn, h.gotConn
	switch {
	case a.watch&WatchHandshake != 0:
		h.watchHandshakes()
	case httptrace.ContextClientTrace(a.parent) != nil:
		// WithClientTrace chains the caller's hooks behind ours, in place.
		// Value provides the trace, so the context that it returns isn't
		// needed.
		httptrace.WithClientTrace(a.parent, &h.ClientTrace)
	}
	if callers := h.Got1xxResponse; callers != nil {
		h.Got1xxResponse = func(status int, header textproto.MIMEHeader) error {
			err := callers(status, header)
			if err != nil {
				h.interim.Store(true)
			}
			return err
		}
	}
	a.hooks.CompareAndSwap(nil, h)
	return a.hooks.Load()
}

func (h *hooks) getConn(hostPort string) {
	if own := h.conns.ask(hostPort, h.attempt.Req.URL, h.attempt.watch&OwnConns != 0); own && h.handshakes != nil {
		h.handshakes.ask(hostPort)
	}
}

func (h *hooks) gotConn(info httptrace.GotConnInfo) {
	a := h.attempt
	n, own := h.conns.got(info.Conn, info.Reused, a.watch&ExpectHTTP2 != 0)
	if !own {
		return
	}
	h.fresh.Store(!info.Reused)
	h.interim.Store(false)
	if n > maxSends && a.fate.CompareAndSwap(undecided, exceeded) {
		a.cancel(ErrHiddenSends)
	}
}

// traceKey is the context key under which httptrace looks for its hooks.
var traceKey = keyOf(func(ctx context.Context) { httptrace.ContextClientTrace(ctx) })

// cancelKey is the context key under which package context looks for the cause of an
// end, and for the context that ends children.
var cancelKey = keyOf(func(ctx context.Context) { _ = context.Cause(ctx) })

// keyOf returns the key for which ask asks a context that has ended.
func keyOf(ask func(context.Context)) any {
	var asked keyRecorder
	ask(&asked)
	return asked.key
}

// ChecksInterim reports whether a hook of ctx may refuse an interim response.
func ChecksInterim(ctx context.Context) bool {
	trace := httptrace.ContextClientTrace(ctx)
	return trace != nil && trace.Got1xxResponse != nil
}

// InterimRefused reports whether the caller's own hook has ended the last send
// because of an interim response.
func (a *Attempt) InterimRefused() bool {
	h := a.hooks.Load()
	return h != nil && h.interim.Load()
}

// keyRecorder is a context that has ended, and records the key it was asked for.
type keyRecorder struct {
	context.Context
	key any
}

func (*keyRecorder) Err() error { return context.Canceled }

func (r *keyRecorder) Value(key any) any {
	r.key = key
	return nil
}
