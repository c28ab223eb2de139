// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/contrib/retripotel"
)

// Traced returns a client that makes a span for each attempt, with its number,
// inside a span for the request, with its waits and reasons. OpenTelemetry's
// conventions ask for this.
func Traced(base http.RoundTripper, config retripotel.Config) *http.Client {
	policy := retrip.Policy{AttemptTimeout: 5 * time.Second, Deadline: 25 * time.Second}
	return &http.Client{Transport: retripotel.New(&retrip.Transport{Base: base, Policy: policy}, config)}
}
