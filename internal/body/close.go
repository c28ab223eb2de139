// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"context"
	"io"
	"net/http"
	"reflect"
	"time"
)

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
