// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"

	"github.com/retrip/retrip"
)

// ObjectStore returns a client for S3 or a similar object store. sign signs a
// request in place, and each attempt anew: a signature is valid for only a
// quarter of an hour.
func ObjectStore(base http.RoundTripper, sign func(*http.Request) error) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base: Signed{Base: base, Sign: sign},
		// To slow clients down, S3 answers 503 without saying for how long.
		Policy: retrip.Policy{MaxAttempts: 6},
	}}
}

// Signed signs each request that it sends, through http.DefaultTransport if Base is nil.
type Signed struct {
	Base http.RoundTripper
	Sign func(*http.Request) error
}

// RoundTrip implements http.RoundTripper.
func (s Signed) RoundTrip(req *http.Request) (*http.Response, error) {
	signed := req.Clone(req.Context()) // a RoundTripper must not modify the request
	if err := s.Sign(signed); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	if s.Base == nil {
		return http.DefaultTransport.RoundTrip(signed)
	}
	return s.Base.RoundTrip(signed)
}
