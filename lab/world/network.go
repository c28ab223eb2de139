// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http/httptrace"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/errno"
	"github.com/retrip/retrip/internal/memhttp"
)

// A connection of the world is two connections of memhttp with a relay between
// them, which takes time and breaks as the plan says. A relay waits before it looks
// at what it carries: by then, all that happens at one instant has happened, so
// that what it finds doesn't depend on the scheduler.

// dial connects a client with a site of the world.
func (w *world) dial(ctx context.Context, network, addr string) (_ net.Conn, err error) {
	s := w.siteOf(addr)
	refused := &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", errno.Refused)}
	if s == nil {
		if strings.HasPrefix(strings.ToLower(addr), "refuses") {
			return nil, refused
		}
		return nil, &net.OpError{Op: "dial", Net: network, Err: &net.DNSError{Err: "no such host", Name: addr, IsNotFound: true}}
	}
	s.mu.Lock()
	number := s.conns
	s.conns++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refused = s.refused || err != nil
	}()
	var fault ConnFault
	if number < len(s.plan.Conns) {
		fault = s.plan.Conns[number]
	}
	x := w.chance(hashOf("conn", s.number, number))
	if w.calm.Load() {
		fault = ConnFault{}
	}
	if err := pause(ctx, 2*s.plan.Latency+fault.Dial+x.tiny()); err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	if fault.Fails && !w.calm.Load() || s.in(Refusing) {
		w.log("dial s%d conn %d: refused", s.number, number)
		return nil, refused
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.over {
		return nil, refused
	}
	client, err := s.front.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	near, err := s.front.Accept()
	if err != nil {
		return nil, err
	}
	far, err := s.back.Dial(context.Background(), network, addr)
	if err != nil {
		near.(*memhttp.Conn).Reset()
		return nil, errors.Join(err, client.Close())
	}
	r := &relay{w: w, site: s, number: number, fault: fault, near: near.(*memhttp.Conn), far: far.(*memhttp.Conn)}
	s.relays = append(s.relays, r)
	if s.in(Silent) {
		r.frozen.Store(true)
	}
	w.log("dial s%d conn %d: connected", s.number, number)
	reportDial(ctx, network, addr)
	if fault.Kind == Departs && w.plan.H2C && !s.plan.TLS {
		w.relays.Go(func() { r.depart(x) })
		return client, nil
	}
	x2 := w.chance(hashOf("down", s.number, number))
	w.relays.Go(func() { r.carry(r.near, r.far, false, x) })
	w.relays.Go(func() { r.carry(r.far, r.near, true, x2) })
	return client, nil
}

// reportDial tells an httptrace of a connection, as package net does.
func reportDial(ctx context.Context, network, addr string) {
	host, port, _ := net.SplitHostPort(addr)
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil {
		return
	}
	if trace.DNSStart != nil {
		trace.DNSStart(httptrace.DNSStartInfo{Host: host})
	}
	if trace.ConnectDone != nil {
		trace.ConnectDone(network, net.JoinHostPort("192.0.2.1", port), nil)
	}
}

// relay carries the bytes of one connection.
type relay struct {
	w         *world
	site      *site
	number    int
	fault     ConnFault
	near, far *memhttp.Conn // towards the client and the server

	frozen atomic.Bool
	done   atomic.Int32 // directions that have ended
}

// carry carries what src sends to dst.
func (r *relay) carry(src, dst *memhttp.Conn, down bool, x *stream) {
	defer r.end()
	in := &intake{most: 64 << 10}
	in.cond.L = &in.mu
	if r.w.plan.H2C || r.site.plan.TLS {
		in.most = 1 << 30
	}
	r.w.relays.Go(func() { in.fill(src) })
	defer in.drop()
	left := -1
	if r.fault.Kind != Sound && r.fault.Kind != Departs && r.fault.Down == down {
		left = r.fault.After
	}
	for {
		in.await()
		time.Sleep(r.site.plan.Latency + x.tiny())
		data, err := in.take()
		if err == nil && left >= 0 && len(data) >= left && !r.w.calm.Load() && !r.frozen.Load() {
			_, _ = dst.Write(data[:left])
			r.w.log("fault s%d conn %d: %v", r.site.number, r.number, r.fault.Kind)
			switch r.fault.Kind {
			case Resets:
				r.reset()
				return
			case HalfClose:
				_ = dst.CloseWrite()
				return
			case Freezes:
				r.frozen.Store(true)
			case Stalls:
				time.Sleep(r.fault.Slow)
			}
			data, left = data[left:], -1
		}
		if r.frozen.Load() {
			in.drop()
			<-r.w.ended
			r.reset()
			return
		}
		if left > 0 {
			left -= len(data)
		}
		if len(data) > 0 {
			if _, broken := dst.Write(data); broken != nil {
				src.Reset()
				return
			}
		}
		switch {
		case err == io.EOF:
			_ = dst.CloseWrite()
			return
		case err != nil:
			dst.Reset()
			return
		}
	}
}

// intake holds what a relay has received. Over HTTP/2, nobody ever has to wait until
// there is room: net/http holds a mutex while it writes, and virtual time stands still
// while another goroutine waits for a mutex.
type intake struct {
	most int

	mu   sync.Mutex
	cond sync.Cond
	data []byte
	err  error // after data
	gone bool  // nobody takes any more
}

func (in *intake) fill(src *memhttp.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		in.mu.Lock()
		if !in.gone {
			in.data = append(in.data, buf[:n]...)
		}
		in.err = err
		in.cond.Broadcast()
		for err == nil && len(in.data) >= in.most && !in.gone {
			in.cond.Wait()
		}
		in.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// await waits for data or an error.
func (in *intake) await() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.data) == 0 && in.err == nil {
		in.cond.Wait()
	}
}

// take returns everything that has arrived.
func (in *intake) take() ([]byte, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	data := in.data
	in.data = nil
	in.cond.Broadcast()
	return data, in.err
}

// drop discards what still comes.
func (in *intake) drop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.gone, in.data = true, nil
	in.cond.Broadcast()
}

func (r *relay) reset() {
	r.near.Reset()
	r.far.Reset()
}

// end closes the connection once both directions have ended.
func (r *relay) end() {
	if r.done.Add(1) == 2 {
		_ = r.near.Close()
		_ = r.far.Close()
	}
}

// siteOf returns the site of an address, or nil.
func (w *world) siteOf(addr string) *site {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(host, "s"), ".test"))
	if err != nil || n < 0 || n >= len(w.sites) {
		return nil
	}
	return w.sites[n]
}

// pause sleeps for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// depart is a server of HTTP/2 that goes away at the first request, which it hasn't
// processed. net/http sends the request again over another connection, by itself.
func (r *relay) depart(x *stream) {
	in := &intake{most: 1 << 30}
	in.cond.L = &in.mu
	r.w.relays.Go(func() { in.fill(r.near) })
	defer in.drop()
	defer func() {
		_ = r.near.Close()
		_ = r.far.Close()
	}()
	var sent []byte
	for {
		in.await()
		time.Sleep(r.site.plan.Latency + x.tiny())
		data, err := in.take()
		if r.frozen.Load() {
			<-r.w.ended
			return
		}
		if err != nil {
			return
		}
		if sent = append(sent, data...); asks(sent) {
			r.w.log("s%d conn %d goes away", r.site.number, r.number)
			_, _ = r.near.Write(goodbye)
			return
		}
	}
}

// goodbye is an empty SETTINGS frame and a GOAWAY that names no stream as processed.
var goodbye = []byte{0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

// asks reports whether data, the beginning of a connection, has the HEADERS of a request.
func asks(data []byte) bool {
	for at := len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); at+9 <= len(data); {
		if data[at+3] == 1 {
			return true
		}
		at += 9 + int(data[at])<<16 + int(data[at+1])<<8 + int(data[at+2])
	}
	return false
}
