// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"context"
	"crypto/tls"
	"net/http/httptrace"
	"sync/atomic"
)

// hooks observe what net/http does within an attempt. They are made when the
// base first asks for them, so a base that never does costs nothing.
type hooks struct {
	httptrace.ClientTrace

	attempt   *Attempt
	wanted    atomic.Bool  // net/http asked for a connection
	sends     atomic.Int32 // connections that the base got, each for one send
	connected atomic.Bool  // package net made a connection
	handshake atomic.Pointer[error]
	bounded   boundedSends
}

// hooked returns the hooks of a, made on first use.
func (a *Attempt) hooked() *hooks {
	if h := a.hooks.Load(); h != nil {
		return h
	}
	h := &hooks{attempt: a}
	h.GotConn = h.gotConn
	if a.watch&WatchSend != 0 {
		h.GetConn = h.getConn
	}
	if a.watch&WatchHandshake != 0 {
		h.ConnectDone = h.connectDone
		h.TLSHandshakeDone = h.tlsHandshakeDone
	}
	if httptrace.ContextClientTrace(a.parent) != nil {
		// WithClientTrace chains the caller's hooks behind ours, in place.
		// Value provides the trace, so the context that it returns isn't
		// needed.
		httptrace.WithClientTrace(a.parent, &h.ClientTrace)
	}
	a.hooks.CompareAndSwap(nil, h)
	return a.hooks.Load()
}

func (h *hooks) getConn(string) { h.wanted.Store(true) }

func (h *hooks) connectDone(_, _ string, err error) {
	if err == nil {
		h.connected.Store(true)
	}
}

func (h *hooks) tlsHandshakeDone(_ tls.ConnectionState, err error) {
	if err != nil {
		h.handshake.Store(&err)
	}
}

func (h *hooks) gotConn(info httptrace.GotConnInfo) {
	h.sends.Add(1)
	a := h.attempt
	if n := h.bounded.count(info.Conn, info.Reused, a.watch&ExpectHTTP2 != 0); a.maxSends > 0 && n > a.maxSends {
		a.cancel(ErrHiddenSends)
	}
}

// traceKey is the context key under which httptrace looks for its hooks.
var traceKey = func() any {
	var asked keyRecorder
	httptrace.ContextClientTrace(&asked)
	return asked.key
}()

// keyRecorder is a context that records the key it was asked for.
type keyRecorder struct {
	context.Context
	key any
}

func (r *keyRecorder) Value(key any) any {
	r.key = key
	return nil
}
