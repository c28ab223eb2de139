// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// Downloader returns a client for large files. If a body breaks or stalls, the
// Transport continues it with a range request; the reader notices nothing.
func Downloader(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			AttemptTimeout:  10 * time.Second, // up to the headers; it never cuts a body
			Deadline:        time.Minute,      // nor does this
			BodyIdleTimeout: 15 * time.Second,
			Resume:          time.Minute, // without a new byte
		},
	}}
}
