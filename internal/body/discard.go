// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"context"
	"io"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/alarm"
)

// The wait before a retry leaves time to read a discarded body to its end,
// within these bounds. A body that exceeds them costs its connection and
// nothing more.
const (
	drainBytes = 256 << 10
	DrainTime  = 100 * time.Millisecond

	// A shorter wait may grow to this length while a small error body is still
	// arriving, because a new connection would cost more.
	DrainLeast = 50 * time.Millisecond
)

// Discarding is what Discard has to know of a response that nobody wants.
type Discarding struct {
	Resp    *http.Response
	Req     *http.Request // the caller's
	Attempt Cutter        // the context of the attempt that got Resp; nil if Req itself was sent
	Clock   time.Time     // as in [alarm.Set]
	Most    time.Duration
}

// Discard reads the body of a response to its end, so that its connection can be
// used again, and closes it. It gives up after 256 KiB, after the time Most, or when
// the caller goes: the context of Req ends, or its Cancel is closed. The caller must
// have called CloseLocal before.
func Discard(of Discarding) {
	d := drains.Get().(*drain)
	d.Discarding, d.wanted = of, of.Resp.ContentLength <= drainBytes
	switch closes(of.Resp.Body) {
	case unknown:
		d.aside()
		return
	case inTime:
		if closeDrains && of.Attempt == nil {
			// Nothing would end a Read at once, and net/http drains what is closed.
			d.wanted = false
		}
	}
	d.here()
}

// cut ends the attempt, and with it a Read of the body. Since Go 1.27, a Close of an
// HTTP/1 body doesn't end that at once, and in a testing/synctest bubble never (see
// closeDrains). cut reports whether there is a context to end.
func (d *Discarding) cut() bool {
	if d.Attempt == nil {
		return false
	}
	d.Attempt.Cut()
	return true
}

// cutTime is how long a Read gets to end with its attempt. net/http needs some
// microseconds for that. A Close before would take the longer way.
const cutTime = 10 * time.Millisecond

// CloseLocal closes the body of resp if it is empty or in memory, and reports
// whether it did. No connection depends on such a body, so it needs no reading.
func CloseLocal(resp *http.Response) bool {
	if resp.Body == nil {
		return true
	}
	if _, ok := InMemory(layer(resp.Body, nil)); !ok {
		return false
	}
	resp.Body.Close()
	return true
}

// drain is the discarding of one body.
type drain struct {
	Discarding
	wanted bool // the body is read before it is closed
	closed atomic.Bool
	alone  func() // run, in a goroutine of its own

	mu       sync.Mutex // guards the fields below
	change   sync.Cond
	over     bool          // the body has been read and closed
	left     bool          // RoundTrip no longer waits for that
	panicked any           // what the body's methods have panicked with; nil if they haven't
	ends     chan struct{} // closed when over is set; nil if nobody waits for that
}

var drains = sync.Pool{New: func() any {
	d := new(drain)
	d.change.L, d.alone = &d.mu, d.run
	return d
}}

// here discards the body in RoundTrip's goroutine. Close or cut must end a Read of it.
func (d *drain) here() {
	a := alarm.Set(d.Clock, min(d.Most, drainAtOnce), d)
	d.run()
	d.mu.Lock()
	d.finish(a)
}

// aside discards the body in a goroutine of its own, because Read and Close of it may
// never return. RoundTrip returns in time nevertheless. The goroutine ends when they
// return.
func (d *drain) aside() {
	a := alarm.Set(d.Clock, min(d.Most, drainAtOnce), d)
	go d.alone()
	d.mu.Lock()
	for !d.over && !d.left {
		d.change.Wait()
	}
	d.finish(a)
}

// finish ends RoundTrip's part. The caller must hold d.mu.
func (d *drain) finish(a *alarm.Alarm) {
	panicked := d.panicked
	idle := d.over && a.Stop()
	d.mu.Unlock()
	if idle {
		// Nothing else refers to d.
		d.Discarding, d.over, d.panicked = Discarding{}, false, nil
		d.closed.Store(false)
		drains.Put(d)
	}
	rethrow(panicked)
}

// run reads the body, if it is wanted, up to the maximum number of bytes, and closes it.
func (d *drain) run() {
	defer func() { d.close(recover()) }()
	if !d.wanted {
		return
	}
	buffer := drainBuffers.Get().(*[8 << 10]byte)
	defer drainBuffers.Put(buffer)
	idle := 0 // Reads in a row without a byte
	for left := drainBytes + 1; left > 0 && idle < patience && !d.closed.Load(); {
		n, err := d.Resp.Body.Read(buffer[:min(left, len(buffer))])
		if err != nil || n < 0 {
			return
		}
		left -= n
		if idle++; n > 0 {
			idle = 0
		}
	}
}

// close closes the body once, and during a Read only if its time is up. panicked is what
// the Read has panicked with, or nil.
func (d *drain) close(panicked any) {
	if !d.closed.CompareAndSwap(false, true) {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			panicked = p
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.over, d.panicked = true, panicked
		if d.ends != nil {
			close(d.ends)
		}
		d.change.Signal()
	}()
	d.Resp.Body.Close()
}

// drainAtOnce is how long a drain runs unwatched. Most discarded bodies have
// already arrived and take less time to read. A caller that goes in the first
// millisecond of a drain is therefore not noticed.
const drainAtOnce = time.Millisecond

// Ring implements [alarm.Ringer]. The drain is taking longer, so Ring watches it from
// here on: it ends the drain when its time is up or the caller is gone.
func (d *drain) Ring(*alarm.Alarm) {
	d.mu.Lock()
	if d.over {
		d.mu.Unlock()
		return
	}
	d.ends = make(chan struct{})
	d.mu.Unlock()
	done, canceled := d.Req.Context().Done(), d.Req.Cancel //lint:ignore SA1019 http.Client closes it for its Timeout
	if Await(d.ends, d.Most-min(d.Most, drainAtOnce), done, canceled) || d.cut() && Await(d.ends, cutTime, nil, nil) {
		return
	}
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		d.close(nil)
	}()
	Await(returned, DrainLeast, done, canceled)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = true
	d.change.Signal()
}

var drainBuffers = sync.Pool{New: func() any { return new([8 << 10]byte) }}

// CloseRequest closes the body of req, if there is one.
func CloseRequest(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

// Dismiss closes the body of resp, if there is one. It doesn't wait for a Close
// that doesn't return.
func Dismiss(resp *http.Response) {
	if resp != nil && resp.Body != nil {
		dismiss(resp.Body)
	}
}

func dismiss(body io.ReadCloser) {
	if closes(body) != unknown {
		body.Close()
		return
	}
	CloseIn(context.Background(), nil, body, DrainLeast)
}

// Await waits until ended is closed, and reports whether it is, within the time most, and
// before done or canceled is closed. Both may be nil.
func Await(ended <-chan struct{}, most time.Duration, done, canceled <-chan struct{}) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
	case <-done:
	case <-canceled:
	}
	return false
}

// rethrow continues a panic of another goroutine in RoundTrip's goroutine.
func rethrow(panicked any) {
	if panicked != nil {
		panic(panicked)
	}
}

// CloseAside closes body in a goroutine of its own. It recovers a panic, which
// would end the process.
func CloseAside(body io.Closer) {
	defer func() { _ = recover() }()
	body.Close()
}

// CloseSoon closes the body of a request. Like net/http, it doesn't wait for a Close that
// doesn't return.
func CloseSoon(body io.ReadCloser) { CloseIn(context.Background(), nil, body, 5*time.Millisecond) }

// closeKind is what is known of a body's Close.
type closeKind uint8

const (
	unknown closeKind = iota // it may wait for a Read, or never return
	inTime                   // it returns at once, and ends a Read, if closeDrains after up to 50 ms
	atOnce                   // it returns at once, and ends a Read
)

// closes returns what is known of Close of body: that it returns at once if body is
// net/http's own or in memory.
func closes(body io.ReadCloser) closeKind {
	body = layer(body, nil)
	if _, ok := InMemory(body); ok {
		return atOnce
	}
	t := reflect.TypeOf(body)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return transportBodies[[2]string{t.PkgPath(), t.Name()}]
}

// transportBodies are the bodies of http.Transport. The body of http.ReadResponse isn't one:
// its Close waits for a Read, and then reads to the end.
var transportBodies = map[[2]string]closeKind{
	{"net/http", "bodyEOFSignal"}: inTime,
	{"net/http", "gzipReader"}:    inTime,

	// HTTP/2 of Go 1.26, and of Go 1.27.
	{"net/http", "http2transportResponseBody"}:           atOnce,
	{"net/http", "http2gzipReader"}:                      atOnce,
	{"net/http/internal/http2", "transportResponseBody"}: atOnce,
	{"net/http/internal/http2", "gzipReader"}:            atOnce,
}

// layer returns the first that is wanted of b and the bodies inside its wrappers, from the
// outside to the inside, or else the innermost body.
func layer(b io.ReadCloser, wanted func(io.ReadCloser) bool) io.ReadCloser {
	for wanted == nil || !wanted(b) {
		switch outer := b.(type) {
		case *Joined:
			b = outer.first
		case *Releasing:
			b = outer.ReadCloser
		case *Prefixed:
			b = outer.ReadCloser
		case *Watched:
			b = outer.ReadCloser
		default:
			return b
		}
	}
	return b
}
