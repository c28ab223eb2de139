// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// roundTrip is what the world knows of one call of RoundTrip.
type roundTrip struct {
	w      *world
	id     int
	client *client
	of     *callOf
	call   *Call
	hop    int // redirects before it
	script []Step
	sends  []byte // the body
	host   string

	mu       sync.Mutex
	begin    time.Duration
	end      time.Duration // 0: it hasn't ended
	panicked bool
	hostile  bool          // the base was hostile
	uses     int           // of a hostile base
	spoiled  []int         // attempts at which it was hostile
	dead     error         // why its context had ended before
	cause    error         // why it has ended, if it has by the end of RoundTrip
	over     time.Duration // end of its context; 0: it didn't end before RoundTrip
	legacy   time.Duration // when Request.Cancel was closed; 0: not before RoundTrip ended
	deadline time.Duration // of the context when it began; 0: none
	policies Policies      // when it began
	events   []event
	arrivals []*arrival
	resp     *http.Response
	err      error
	closing  time.Duration // the first Close of the response's body; 0: none
	reading  reading
	bodies   []*upload
	readers  []io.ReadCloser // the bodies that a base has got
	trailers []http.Header   // the maps that a base has got
	begun    bool            // the base has been asked
	ahead    bool            // a base has responded before it had the body
	whole    bool            // and then has got it whole
}

// reading is what a caller has read of a response.
type reading struct {
	got    []byte
	err    error // after got; nil if it stopped reading
	done   bool
	closed time.Duration

	longest time.Duration // of one Read
}

func (r *roundTrip) String() string { return "r" + strconv.Itoa(r.id) }

// outer is the RoundTripper of an http.Client: it notes what RoundTrip does.
type outer struct{ c *client }

type callKey struct{}

// callOf is the value of the context of a call.
type callOf struct {
	id   int
	call *Call
	hops atomic.Int32

	legacy atomic.Int64 // when Request.Cancel was closed, as a time.Duration; 0: it wasn't

	mu     sync.Mutex
	traced traced
	last   atomic.Pointer[roundTrip]
}

func (o *outer) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	c, w := o.c, o.c.w
	of := req.Context().Value(callKey{}).(*callOf)
	hop := int(of.hops.Add(1)) - 1
	r := &roundTrip{w: w, id: of.id*10 + hop, client: c, of: of, call: of.call, hop: hop, begin: w.now(), host: strings.ToLower(strings.TrimSuffix(req.URL.Hostname(), "."))}
	of.last.Store(r)
	if hop == 0 {
		r.script = of.call.Script
	}
	if req.Body != nil && req.Body != http.NoBody {
		r.sends = content(of.call.Size, "upload", of.id)
	}
	if d, ok := req.Context().Deadline(); ok {
		r.deadline = max(1, d.Sub(w.began))
	}
	c.mu.Lock()
	r.policies = c.swaps[len(c.swaps)-1]
	c.mu.Unlock()
	r.dead = context.Cause(req.Context())
	w.keep(r)
	stop := context.AfterFunc(req.Context(), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.over = w.now()
	})
	if u, ok := req.Body.(*upload); ok {
		r.bodies = append(r.bodies, u)
	}
	mine := req.Clone(req.Context())
	mine.Header.Set("World-Id", strconv.Itoa(r.id))
	mine.Trailer = req.Trailer // the body sets it
	before := mine.Clone(context.Background())
	get := mine.GetBody
	w.log("%v: t%d %s %s", r, c.number, mine.Method, r.host)
	defer func() {
		// P5: a panic reaches the caller.
		if p := recover(); p != nil {
			if p != aPanic {
				panic(p)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.panicked, r.end = true, w.now()
			resp, err = nil, errPanicked
		}
	}()
	resp, err = c.retrip.RoundTrip(mine)
	r.mu.Lock()
	r.end, r.resp, r.err, r.cause = w.now(), resp, err, context.Cause(req.Context())
	if at := time.Duration(of.legacy.Load()); at > 0 {
		r.legacy = max(r.begin, at)
	}
	r.mu.Unlock()
	stop()
	if !maps.EqualFunc(before.Header, mine.Header, slices.Equal) || before.URL.String() != mine.URL.String() || before.Method != mine.Method || before.ContentLength != mine.ContentLength ||
		(get == nil) != (mine.GetBody == nil) || before.Body != mine.Body || before.Host != mine.Host {
		w.breaks("P2", "%v: RoundTrip has changed the request", r)
	}
	if (resp == nil) == (err == nil) {
		w.breaks("P3", "%v: neither or both of a response and an error: %v, %v", r, resp, err)
	}
	status := 0
	if resp != nil {
		status = resp.StatusCode
		if _, ok := resp.Body.(io.ReadWriteCloser); status == http.StatusSwitchingProtocols && !ok {
			w.breaks("P1", "%v: the body of a 101 is a %T", r, resp.Body)
		}
		// net/http's HTTP/2 may set a copy of its own.
		if q := resp.Request; q != mine && (q == nil || q.Header.Get("World-Id") != strconv.Itoa(r.id) || mine.Body == nil) {
			w.breaks("P1", "%v: Response.Request is another request", r)
		}
	}
	w.log("%v: returns %d, %s", r, status, kindOf(err))
	return resp, err
}

// CloseIdleConnections is for http.Client.CloseIdleConnections.
func (o *outer) CloseIdleConnections() { o.c.retrip.CloseIdleConnections() }

// wrapper is a Base that is no *http.Transport.
type wrapper struct{ c *client }

func (b *wrapper) RoundTrip(req *http.Request) (*http.Response, error) {
	for name, values := range req.Header {
		if len(values) == 0 {
			b.c.w.breaks("P4", "the base sees %s, which isn't sent", name)
		}
	}
	var r *roundTrip // nil if a stranger gets req
	if id, err := strconv.Atoi(req.Header.Get("World-Id")); err == nil {
		r = b.c.w.trip(id)
	}
	if req.GetBody != nil && r != nil && (r.call.Body == Stream || r.call.Body == Section) && !r.repeatable(r.effective()) {
		b.c.w.breaks("P6", "%v: net/http may repeat a stream that must not be repeated", r)
	}
	if text := fmt.Sprintf("%v %+v", req.Context(), req.Context()); strings.Contains(text, hush) {
		b.c.w.breaks("P4", "the context of an attempt prints a secret: %s", text)
	}
	if r != nil {
		b.untouched(r)
		b.trailers(r, req)
	}
	if resp, err, done := b.hostile(req); done {
		return resp, err
	}
	if resp, err := b.handle(r, req); resp != nil || err != nil {
		return resp, err
	}
	resp, err := b.c.base.RoundTrip(req)
	if err == nil {
		b.c.w.lend(r, resp, b.c.base)
	}
	return resp, err
}

func (b *wrapper) CloseIdleConnections() { b.c.base.CloseIdleConnections() }
