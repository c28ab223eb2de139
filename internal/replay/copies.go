// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/body"
)

// Copies provides the bodies that the caller's GetBody makes to the attempts of their
// request. Such a body may be no copy: many a GetBody rewinds the one reader that the last
// attempt may still be reading. So an attempt must be over, with all its calls of the
// caller's code, before GetBody is asked for the next.
//
// Of a body in memory, the base gets a reader of its own: net/http sends a body that it
// knows to be in memory together with the header.
type Copies struct {
	req       *http.Request
	alone     bool        // there is only one attempt
	announced http.Header // the trailers before the first attempt

	mu      sync.Mutex
	first   copied        // the first body needs no allocation of its own
	current *copied       // the latest of the attempt; nil if there is none
	memory  io.ReadCloser // the latest in memory, of which the base has got a copy; nil if there is none
	trailer http.Header   // of the attempt
	ended   int           // attempts that are over
	next    io.ReadCloser // the body of the next attempt, until that begins
	busy    int           // calls of the caller's code in progress
	idle    chan struct{} // closed when busy is 0; nil if nobody waits for that
	least   int64         // bytes that a body has: as many as one in memory, or as were read of one

	fault atomic.Bool // the caller's body failed, not the host
}

// copied is a body of an attempt. The mutex of its Copies guards the fields from n on.
type copied struct {
	io.ReadCloser
	from    *Copies
	before  *copied     // of the same attempt
	trailer http.Header // of the attempt; nil if there are none
	attempt int         // attempts that were over when it began
	n       int64       // bytes read
	ended   bool        // a Read has returned an error
	closed  bool
}

var (
	errShorter   = errors.New("retrip: the request body ends earlier than it did before")
	errUnrewound = errors.New("retrip: Request.GetBody returned the body that an attempt has begun to read")
	errInUse     = errors.New("retrip: the last attempt is still in a Read or Close of the request body")
)

// NewCopies returns the bodies of req. If there is only one attempt, Copies only records
// whether they are at fault.
func NewCopies(req *http.Request, alone bool) *Copies {
	c := &Copies{req: req, alone: alone}
	if !alone {
		c.announced = req.Trailer.Clone()
	}
	return c
}

// Give gives req, the request of the next attempt, its body and its trailers.
func (c *Copies) Give(req *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, attempt := c.req.Body, c.ended
	if c.next != nil {
		b, c.next = c.next, nil
	}
	if !c.alone {
		c.trailer = c.announced.Clone()
		req.Trailer = c.trailer
	}
	c.current = nil
	req.Body = c.open(b)
	if c.req.GetBody != nil {
		req.GetBody = func() (io.ReadCloser, error) { return c.again(attempt) }
	}
}

// open makes b a body of the attempt. The caller holds mu.
func (c *Copies) open(b io.ReadCloser) io.ReadCloser {
	if n, ok := body.InMemory(b); ok {
		if c.alone {
			return b
		}
		c.least, c.memory = max(c.least, n), b
		return body.Copy(b)
	}
	next := &c.first
	if next.from != nil {
		next = new(copied)
	}
	*next = copied{ReadCloser: b, from: c, before: c.current, trailer: c.trailer, attempt: c.ended}
	c.current = next
	return next
}

// again is the GetBody of an attempt's request. The base may keep it. net/http may call it in
// a Read of the body that it replaces.
func (c *Copies) again(attempt int) (io.ReadCloser, error) {
	if !c.await(c.req.Context(), nil, body.DrainTime) {
		return nil, errInUse
	}
	if !c.enter(attempt) {
		return nil, errSuperseded
	}
	defer c.leave()
	made, err := c.req.GetBody()
	if err != nil {
		c.fault.Store(true)
	}
	if err != nil || made == nil {
		return made, err
	}
	c.mu.Lock()
	if attempt == c.ended {
		defer c.mu.Unlock()
		return c.open(made), nil
	}
	c.mu.Unlock()
	_ = made.Close()
	return nil, errSuperseded
}

// enter begins a call of the caller's code, unless the attempt is over.
func (c *Copies) enter(attempt int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if attempt != c.ended {
		return false
	}
	c.busy++
	return true
}

// leave ends what enter has begun.
func (c *Copies) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy--; c.busy == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

func (b *copied) Read(p []byte) (n int, err error) {
	if !b.from.enter(b.attempt) {
		return 0, errSuperseded
	}
	defer b.from.leave() // even if Read panics
	n, err = b.ReadCloser.Read(p)
	return b.note(n, err)
}

// note records what a Read has returned, and returns what the base gets.
func (b *copied) note(n int, err error) (int, error) {
	c := b.from
	c.mu.Lock()
	defer c.mu.Unlock()
	b.n += int64(n)
	c.least = max(c.least, b.n)
	b.ended = b.ended || err != nil
	if b.attempt != c.ended {
		return 0, errSuperseded
	}
	if err == io.EOF {
		if b.n < c.least {
			err = errShorter
		}
		if b.trailer != nil {
			// The caller's code has set them by now, in the caller's own map.
			maps.Copy(b.trailer, c.req.Trailer)
		}
	}
	// What a body returns after its Close doesn't matter.
	if body.AtFault(c.req.ContentLength, b.n, err) && !b.closed {
		c.fault.Store(true)
	}
	return n, err
}

func (b *copied) Close() error {
	c := b.from
	if !c.enter(b.attempt) {
		return nil // End has closed it
	}
	defer c.leave()
	c.mu.Lock()
	b.closed = true
	c.mu.Unlock()
	return b.ReadCloser.Close()
}

// InUse reports whether the base may still need a body of the attempt.
func (c *Copies) InUse() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for b := c.current; b != nil; b = b.before {
		if !b.ended && !b.closed {
			return true
		}
	}
	return c.busy > 0
}

// End ends the attempt's use of its bodies, and closes those that the base has left open.
// It reports whether no call of the caller's code is in progress any more. It waits for that
// at most for the given time, in whose second half it closes a body in spite of a Read of it,
// and no longer than the caller, who goes when ctx ends or cancel is closed.
func (c *Copies) End(ctx context.Context, cancel <-chan struct{}, most time.Duration) bool {
	c.mu.Lock()
	c.ended++
	c.mu.Unlock()
	until := time.Now().Add(most)
	over := c.await(ctx, cancel, most/2)
	for b := c.current; b != nil; b = b.before {
		if !b.close(ctx, cancel, time.Until(until)) {
			return false
		}
	}
	return over || c.await(ctx, cancel, time.Until(until))
}

// close closes b, if nobody has, and reports whether Close has returned in time.
func (b *copied) close(ctx context.Context, cancel <-chan struct{}, most time.Duration) bool {
	c := b.from
	c.mu.Lock()
	closed := b.closed
	b.closed = true
	c.mu.Unlock()
	return closed || body.CloseIn(ctx, cancel, b.ReadCloser, most)
}

// await waits for the end of all calls of the caller's code, and reports whether that has
// come.
func (c *Copies) await(ctx context.Context, cancel <-chan struct{}, most time.Duration) bool {
	c.mu.Lock()
	idle := c.busy == 0
	if !idle && c.idle == nil {
		c.idle = make(chan struct{})
	}
	came := c.idle
	c.mu.Unlock()
	if idle {
		return true
	}
	return body.Await(came, most, ctx.Done(), cancel)
}

// Sent leaves a body in memory at its end, as a base does that sends it.
func (c *Copies) Sent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.memory != nil {
		_, _ = io.Copy(io.Discard, c.memory)
	}
}

// Next gets the body of the next attempt, after the last one is over.
func (c *Copies) Next(ctx context.Context, cancel <-chan struct{}, most time.Duration) error {
	if !c.End(ctx, cancel, most) {
		return errInUse
	}
	// Without a length, nobody would miss the bytes that an attempt has read, if it hasn't
	// read them all.
	last, at := c.current, int64(-1)
	partly := last != nil && c.req.ContentLength <= 0 && last.n > 0 && !last.ended
	if partly {
		at = position(last.ReadCloser)
	}
	next, err := c.req.GetBody()
	if err == nil && next == nil {
		err = errNoBody
	}
	if err != nil {
		return err
	}
	c.next = next
	if n, ok := body.InMemory(next); ok && n < c.least {
		return errShorter
	}
	if partly && same(next, last.ReadCloser) && (at < 0 || position(next) != at-last.n) {
		return errUnrewound
	}
	return nil
}

// same reports whether a and b are one value.
func same(a, b io.ReadCloser) bool { return reflect.ValueOf(a).Comparable() && a == b }

// position returns how far b has been read, or -1 if b doesn't know.
func position(b io.ReadCloser) int64 {
	if s, ok := body.Unwrap(b).(io.Seeker); ok {
		if at, err := s.Seek(0, io.SeekCurrent); err == nil {
			return at
		}
	}
	return -1
}

// Close closes what no attempt will use. If the last attempt has panicked, or there was none,
// that is also what it has left open.
func (c *Copies) Close(unused bool) {
	switch {
	case c.next != nil:
		c.next.Close()
	case unused && c.current == nil:
		c.req.Body.Close()
	case unused:
		for b := c.current; b != nil; b = b.before {
			b.close(context.Background(), nil, body.DrainLeast)
		}
	}
}

// AtFault reports whether the caller's body caused the failure, and not the host.
func (c *Copies) AtFault() bool { return c.fault.Load() }
