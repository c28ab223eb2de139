// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
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
	closeWithin(func() { body.Close() }, DrainLeast)
}

// closeWithin runs closing in a goroutine of its own, and waits for it for at
// most the time most.
func closeWithin(closing func(), most time.Duration) {
	ended := make(chan any, 1)
	go func() {
		defer func() { ended <- recover() }()
		closing()
	}()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case p := <-ended:
		rethrow(p)
	case <-timer.C:
	}
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
	body = innermost(body)
	if _, ok := InMemory(body); ok || body == http.NoBody {
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

// innermost returns the body inside the wrappers of this package.
func innermost(b io.ReadCloser) io.ReadCloser {
	for next := b; next != nil; next = inside(b) {
		b = next
	}
	return b
}

// inside returns the body inside b, if b is a wrapper of this package, and nil
// otherwise.
func inside(b io.ReadCloser) io.ReadCloser {
	switch outer := b.(type) {
	case *Joined:
		return outer.first
	case *Releasing:
		return outer.ReadCloser
	case *Prefixed:
		return outer.ReadCloser
	case *Watched:
		return outer.ReadCloser
	}
	return nil
}
