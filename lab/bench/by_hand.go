// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"net/http"
	"time"
)

// loop is the retry loop that people write by hand. Its twenty lines retry
// everything and ignore the method, Retry-After, the deadline and the state of
// the host.
type loop struct {
	base    http.RoundTripper
	instant bool
}

func (l *loop) RoundTrip(req *http.Request) (*http.Response, error) {
	for attempt := 0; ; attempt++ {
		resp, err := l.base.RoundTrip(req)
		if attempt == retries || err == nil && resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests {
			return resp, err
		}
		if req.Body != nil && req.Body != http.NoBody {
			if req.GetBody == nil {
				return resp, err
			}
			next := *req
			if next.Body, err = req.GetBody(); err != nil {
				return resp, err
			}
			req = &next
		}
		if resp != nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		select {
		case <-time.After(l.pause(attempt)):
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
}

func (l *loop) pause(attempt int) time.Duration {
	if l.instant {
		return 0
	}
	return 100 * time.Millisecond << attempt
}

// timeout is what a caller writes who only wants a time limit for a request:
// each request has a context of its own, released with the body. It is the
// reference for retrip's timeouts.
type timeout struct{ base http.RoundTripper }

func (t timeout) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(req.Context(), time.Hour)
	resp, err := t.base.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Body = &released{resp.Body, cancel}
	return resp, nil
}

// released is a body that ends the context of its request.
type released struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *released) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}
