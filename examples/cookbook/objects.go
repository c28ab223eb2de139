// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// ObjectStore returns a client for S3 or a similar object store. sign signs a
// request in place, and each attempt anew: a signature is valid for only a
// quarter of an hour. AttemptTimeout bounds the upload, too: a minute must do for
// the largest object.
func ObjectStore(base http.RoundTripper, sign func(*http.Request) error) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base: Signed{Base: base, Sign: sign},
		// To slow clients down, S3 answers 503 without saying for how long.
		Policy: retrip.Policy{MaxAttempts: 6, AttemptTimeout: time.Minute, Deadline: 7 * time.Minute, Classify: func(_ *http.Request, _ *http.Response, err error) retrip.Verdict {
			if errors.Is(err, errUnsigned) {
				return retrip.Final
			}
			return retrip.ByRule
		}},
	}}
}

var errUnsigned = errors.New("can't sign the request")

// Signed signs each request that it sends.
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
		return nil, fmt.Errorf("%w: %w", errUnsigned, err)
	}
	return cmp.Or(s.Base, http.DefaultTransport).RoundTrip(signed)
}
