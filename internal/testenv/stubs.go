// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import "net/http"

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
