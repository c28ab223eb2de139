// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"io"
	"net/http"
	"time"
)

// loop is the retry loop that people write by hand. Its twenty lines retry
// everything and ignore the method, Retry-After, the deadline and the state of
// the host.
type loop struct {
	base http.RoundTripper
	wait Wait
}

func (l *loop) RoundTrip(req *http.Request) (*http.Response, error) {
	for attempt := 0; ; attempt++ {
		resp, err := l.base.RoundTrip(req)
		if attempt == Retries || err == nil && resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests {
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
	if l.wait == Usual {
		return 100 * time.Millisecond << attempt
	}
	return l.wait.duration()
}
