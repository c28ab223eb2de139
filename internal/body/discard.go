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

// Discard reads the body of resp to its end, so that its connection can be used
// again, and closes it. It gives up after 256 KiB, after the given time, or
// when the caller goes: ctx ends, or cancel is closed. cancel may be nil. clock
// is as in [alarm.Set]. The caller must have called CloseLocal before.
func Discard(ctx context.Context, cancel <-chan struct{}, resp *http.Response, clock time.Time, most time.Duration) {
	wanted := resp.ContentLength <= drainBytes
	switch {
	case !endsWithClose(resp.Body):
		discardAside(ctx, cancel, resp.Body, wanted, most)
	case wanted:
		drainHere(ctx, cancel, resp.Body, clock, most)
	default:
		resp.Body.Close()
	}
}

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

// discarded is the body of a response that nobody wants. It is closed once. It
// is closed during a Read only if its time is up.
type discarded struct {
	body   io.ReadCloser
	closed atomic.Bool
}

func (d *discarded) Close() error {
	if d.closed.CompareAndSwap(false, true) {
		return d.body.Close()
	}
	return nil
}

// drained is a body whose Close drains it first.
type drained struct{ *discarded }

func (d drained) Close() error {
	d.drain()
	return nil
}

// drain reads up to the maximum number of bytes of the body and closes it.
func (d *discarded) drain() {
	defer d.Close() //nolint:errcheck // nobody could do anything about it
	buffer := drainBuffers.Get().(*[8 << 10]byte)
	defer drainBuffers.Put(buffer)
	idle := 0 // Reads in a row without a byte
	for left := drainBytes + 1; left > 0 && idle < patience && !d.closed.Load(); {
		n, err := d.body.Read(buffer[:min(left, len(buffer))])
		if err != nil || n < 0 {
			return
		}
		left -= n
		if idle++; n > 0 {
			idle = 0
		}
	}
}

// drainHere drains body in RoundTrip's goroutine, because closing such a body
// ends a Read of it.
func drainHere(ctx context.Context, cancel <-chan struct{}, body io.ReadCloser, clock time.Time, most time.Duration) {
	w := drainWatches.Get().(*drainWatch)
	w.body, w.ctx, w.cancel, w.most = body, ctx, cancel, most
	a := alarm.Set(clock, min(most, drainAtOnce), w)
	defer func() {
		if a.Stop() {
			// Nothing else refers to w.
			*w = drainWatch{}
			drainWatches.Put(w)
			return
		}
		w.end()
	}()
	w.drain()
}

// drainAtOnce is how long a drain runs unwatched. Most discarded bodies have
// already arrived and take less time to read. A caller that goes in the first
// millisecond of a drain is therefore not noticed.
const drainAtOnce = time.Millisecond

// drainWatch ends a drain when its time is up or the caller is gone.
type drainWatch struct {
	discarded
	ctx    context.Context
	cancel <-chan struct{}
	most   time.Duration

	mu   sync.Mutex
	over bool
	ends chan struct{} // closed when over is set; nil if nobody waits for that
}

var drainWatches = sync.Pool{New: func() any { return new(drainWatch) }}

// Ring implements [alarm.Ringer]. The drain is taking longer, so Ring watches
// it from here on.
func (w *drainWatch) Ring(*alarm.Alarm) {
	w.mu.Lock()
	if w.over {
		w.mu.Unlock()
		return
	}
	w.ends = make(chan struct{})
	w.mu.Unlock()
	timer := time.NewTimer(w.most - min(w.most, drainAtOnce))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.ctx.Done():
	case <-w.cancel:
	case <-w.ends:
		return
	}
	_ = w.Close()
}

// end tells the watcher that the drain has ended.
func (w *drainWatch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.ends != nil {
		close(w.ends)
	}
}

// discardAside drains body, if wanted is set, and closes it in a goroutine of
// its own, because Read and Close of an unknown body may never return.
// RoundTrip returns in time nevertheless. The goroutine ends when the body's
// methods return.
func discardAside(ctx context.Context, cancel <-chan struct{}, body io.ReadCloser, wanted bool, most time.Duration) {
	d := &discarded{body: body}
	var unread io.Closer = d
	if wanted {
		unread = drained{d}
	}
	if !aside(ctx, cancel, unread, most) {
		aside(ctx, cancel, d, DrainLeast)
	}
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
	if endsWithClose(body) {
		body.Close()
		return
	}
	aside(context.Background(), nil, body, DrainLeast)
}

// aside closes body in a goroutine of its own, and reports whether Close has returned. It
// doesn't wait for that any longer than the time most, or until ctx ends or cancel is closed.
func aside(ctx context.Context, cancel <-chan struct{}, body io.Closer, most time.Duration) bool {
	ended := make(chan any, 1)
	go func() {
		defer func() { ended <- recover() }()
		body.Close()
	}()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case p := <-ended:
		rethrow(p)
		return true
	case <-timer.C:
	case <-ctx.Done():
	case <-cancel:
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
func CloseSoon(body io.ReadCloser) {
	if t := reflect.TypeOf(body); t == nopCloserType || t == nopCloserWriterToType {
		return
	}
	aside(context.Background(), nil, body, 5*time.Millisecond)
}

// endsWithClose reports whether Close of body is known to return at once and to
// end a Read: that is so if body is net/http's own or in memory.
func endsWithClose(body io.ReadCloser) bool {
	body = layer(body, nil)
	if _, ok := InMemory(body); ok {
		return true
	}
	t := reflect.TypeOf(body)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.PkgPath() != "net/http" {
		return false
	}
	switch t.Name() {
	case "bodyEOFSignal", "gzipReader", "http2transportResponseBody", "http2gzipReader":
		// These are the bodies of http.Transport. The body of http.ReadResponse
		// is different: its Close waits for a Read, and then reads to the end.
		return true
	}
	return false
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
