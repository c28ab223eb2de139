// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"io"
	"net/http"
	"time"
)

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
