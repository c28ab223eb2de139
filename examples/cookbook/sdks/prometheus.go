// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sdks

import (
	"net/http"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"

	"github.com/retrip/retrip"
)

// Prometheus returns a client for the server at address. Queries are POSTs, but
// they only read, so retrip may repeat them. The SDK itself doesn't retry.
func Prometheus(base http.RoundTripper, address string) (v1.API, error) {
	client, err := api.NewClient(api.Config{Address: address, RoundTripper: &retrip.Transport{
		Base:   base,
		Policy: retrip.Policy{Idempotent: func(*http.Request) bool { return true }},
	}})
	if err != nil {
		return nil, err
	}
	return v1.NewAPI(client), nil
}
