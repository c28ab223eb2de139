// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/alarm"
)

// A discarded body is read to its end within these bounds, during the wait that
// follows. A body that doesn't end within them costs its connection, and
// nothing more.
const (
	drainBytes = 256 << 10
	DrainTime  = 100 * time.Millisecond

	// A wait shorter than this may stretch to it while a small error body is
	// still arriving: a new connection would cost more.
	DrainLeast = 50 * time.Millisecond

	// After so many reads in a row that return nothing, a body is given up.
	drainIdle = 100
)

// Discard reads the body of resp to its end, so that its connection can be used
// again, and closes it. It gives up after 256 KiB, after the time given, or when
// the caller is gone: ctx has ended or cancel, if it isn't nil, is closed.
func Discard(ctx context.Context, cancel <-chan struct{}, resp *http.Response, most time.Duration) {
	if resp.Body == nil {
		return
	}
	wanted := resp.Body != http.NoBody && resp.ContentLength <= drainBytes
	switch {
	case !endsWithClose(resp.Body):
		discardAside(ctx, cancel, resp.Body, wanted, most)
	case wanted:
		drainHere(ctx, cancel, resp.Body, most)
	default:
		resp.Body.Close()
	}
}

// discarded is the body of a response that nobody wants. It is closed once, and
// closed during a Read only if its time is up.
type discarded struct {
	body   io.ReadCloser
	closed atomic.Bool
	ended  chan any // receives what aside panicked with, or nil
}

func (d *discarded) close() {
	if d.closed.CompareAndSwap(false, true) {
		d.body.Close()
	}
}

// drain reads the body within the bound of bytes and closes it.
func (d *discarded) drain() {
	defer d.close()
	buffer := drainBuffers.Get().(*[8 << 10]byte)
	defer drainBuffers.Put(buffer)
	idle := 0
	for left := drainBytes + 1; left > 0 && idle < drainIdle && !d.closed.Load(); {
		n, err := d.body.Read(buffer[:min(left, len(buffer))])
		if err != nil || n < 0 {
			return
		}
		left -= n
		idle++
		if n > 0 {
			idle = 0
		}
	}
}

// drainHere drains body in the goroutine of RoundTrip. Closing such a body ends
// a Read of it.
func drainHere(ctx context.Context, cancel <-chan struct{}, body io.ReadCloser, most time.Duration) {
	w := drainWatches.Get().(*drainWatch)
	w.body, w.ctx, w.cancel, w.most = body, ctx, cancel, most
	a := alarm.Set(min(most, drainAtOnce), w)
	defer func() {
		if a.Stop() {
			// Nobody else has it.
			*w = drainWatch{}
			drainWatches.Put(w)
			return
		}
		w.end()
	}()
	w.drain()
}

// drainAtOnce is how long a drain goes unwatched: most bodies that are discarded
// have arrived, and are read long before. So in the first millisecond of a drain
// nobody notices that the caller is gone.
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

// Ring implements [alarm.Ringer]: the drain takes longer, and from now on it is
// watched.
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
	w.close()
}

// end tells the watcher that the drain is over.
func (w *drainWatch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.ends != nil {
		close(w.ends)
	}
}

// discardAside drains body, if that is wanted, and closes it in a goroutine of
// its own, since neither Read nor Close of an unknown body need ever return.
// RoundTrip returns in time all the same; the goroutine ends when the body lets
// it.
func discardAside(ctx context.Context, cancel <-chan struct{}, body io.ReadCloser, wanted bool, most time.Duration) {
	d := &discarded{body: body, ended: make(chan any, 1)}
	go d.aside(wanted)
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case p := <-d.ended:
		rethrow(p)
		return
	case <-timer.C:
		closeWithin(d.close, DrainLeast)
	case <-ctx.Done():
		closeWithin(d.close, 0)
	case <-cancel:
		closeWithin(d.close, 0)
	}
}

// aside drains or closes the body, and reports what that panicked with.
func (d *discarded) aside(wanted bool) {
	defer func() { d.ended <- recover() }()
	if wanted {
		d.drain()
	} else {
		d.close()
	}
}

var drainBuffers = sync.Pool{New: func() any { return new([8 << 10]byte) }}
