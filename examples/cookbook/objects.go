// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"net/http"
	"os"

	"github.com/retrip/retrip"
)

// ObjectStore returns a client of S3 or an object store like it. sign signs a
// request in place. Under retrip it signs each attempt: a retry has a fresh
// date, and signatures hold for a quarter of an hour only.
func ObjectStore(base http.RoundTripper, sign func(*http.Request) error) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base: Signed{Base: base, Sign: sign},
		// S3 asks to slow down by 503, without saying for how long.
		Policy: retrip.Policy{MaxAttempts: 6},
	}}
}

// Signed signs each request that it is given.
type Signed struct {
	Base http.RoundTripper
	Sign func(*http.Request) error
}

// RoundTrip implements http.RoundTripper.
func (s Signed) RoundTrip(req *http.Request) (*http.Response, error) {
	signed := req.Clone(req.Context()) // a RoundTripper must not change its request
	if err := s.Sign(signed); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	return s.Base.RoundTrip(signed)
}

// Upload puts a file. retrip sends it again by its offset: nothing is kept in
// memory. The length must be told, or S3 refuses what would come in chunks.
func Upload(ctx context.Context, client *http.Client, url, name string) (*http.Response, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, file)
	if err != nil {
		return nil, err
	}
	req.ContentLength = info.Size()
	return client.Do(req)
}
