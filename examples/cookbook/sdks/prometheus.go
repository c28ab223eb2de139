// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sdks

import (
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"

	"github.com/retrip/retrip"
)

// Prometheus returns a client for the server at address. Queries are POSTs, but
// they only read, so retrip may repeat them; a snapshot and other calls of the admin
// API don't. The SDK itself doesn't retry.
func Prometheus(base http.RoundTripper, address string) (v1.API, error) {
	client, err := api.NewClient(api.Config{Address: address, RoundTripper: &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			Idempotent:     func(req *http.Request) bool { return !strings.Contains(req.URL.Path, "/admin/") },
			AttemptTimeout: 30 * time.Second,
			Deadline:       2*time.Minute + time.Second,
		},
	}})
	if err != nil {
		return nil, err
	}
	return v1.NewAPI(client), nil
}
