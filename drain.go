// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// A discarded body is read to its end within these bounds, in the time of the
// wait behind it. It costs its connection otherwise, and nothing more.
const (
	drainBytes = 256 << 10
	drainTime  = 100 * time.Millisecond

	// A wait shorter than this may stretch to it while a small error body is
	// still arriving: a new connection would cost more.
	drainLeast = 50 * time.Millisecond
)

// discard reads the body of resp to its end, so that its connection can be
// used again, and closes it: within 256 KiB and the time given. It returns
// early when the caller of req is gone.
func discard(req *http.Request, resp *http.Response, most time.Duration) {
	body := resp.Body
	if body == nil {
		return
	}
	defer body.Close()
	if body == http.NoBody || resp.ContentLength > drainBytes {
		return
	}
	// Closing the body is what ends a Read of it. It is done from here rather
	// than reading in a goroutine of ours, where a panic of a foreign Read
	// would end the process.
	timer := time.AfterFunc(most, func() { closeAside(body) })
	defer timer.Stop()
	if ctx := req.Context(); ctx.Done() != nil {
		defer context.AfterFunc(ctx, func() { closeAside(body) })()
	}
	if canceled := legacyCancel(req); canceled != nil {
		drained := make(chan struct{})
		defer close(drained)
		go func() {
			select {
			case <-canceled:
				closeAside(body)
			case <-drained:
			}
		}()
	}
	buffer := drainBuffers.Get().(*[8 << 10]byte)
	defer drainBuffers.Put(buffer)
	for left := drainBytes + 1; left > 0; {
		n, err := body.Read(buffer[:min(left, len(buffer))])
		if err != nil {
			return
		}
		left -= n
	}
}

// closeAside closes body from a goroutine of ours, where a panic would end the
// process. The caller's own closes it too and meets the panic there.
func closeAside(body io.Closer) {
	defer func() { _ = recover() }()
	body.Close()
}

var drainBuffers = sync.Pool{New: func() any { return new([8 << 10]byte) }}

// legacyCancel returns the channel of Request.Cancel. It is deprecated, but
// http.Client closes it for its Timeout, and net/http obeys it.
func legacyCancel(req *http.Request) <-chan struct{} {
	return req.Cancel //lint:ignore SA1019 see above
}
