// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"net"
	"net/http"
	"testing"
	"testing/synctest"
)

// Bubble runs f in a bubble of its own, as a subtest.
func Bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// Do returns the response to req. An error ends t.
func Do(t testing.TB, rt http.RoundTripper, req *http.Request) *http.Response {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// Drop closes the body of the response to req unread. Any goroutine may call it.
func Drop(t testing.TB, rt http.RoundTripper, req *http.Request) {
	t.Helper()
	if err := Try(rt, req); err != nil {
		t.Error(err)
	}
}

// Try is Drop where no response has to come, or none with a body.
func Try(rt http.RoundTripper, req *http.Request) error {
	resp, err := rt.RoundTrip(req)
	if err != nil || resp.Body == nil {
		return err
	}
	return resp.Body.Close()
}

// RoundTripper is a function as an http.RoundTripper.
type RoundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls f.
func (f RoundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Reader is a function as an io.Reader.
type Reader func([]byte) (int, error)

// Read calls f.
func (f Reader) Read(p []byte) (int, error) { return f(p) }

// Status answers every request with itself and no body.
type Status int

// RoundTrip returns the response.
func (s Status) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: int(s), Body: http.NoBody, Request: r}, nil
}

// Accept calls serve for each connection of l, until l is closed, and closes the
// connection after that.
func Accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}
