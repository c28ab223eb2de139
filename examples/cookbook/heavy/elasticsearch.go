// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package heavy

import (
	"net/http"

	"github.com/elastic/go-elasticsearch/v9"

	"github.com/retrip/retrip"
)

// Elasticsearch returns a client for the nodes at the addresses. By itself the
// SDK makes three retries after 502, 503 and 504, without any wait.
func Elasticsearch(base http.RoundTripper, addresses ...string) (*elasticsearch.Client, error) {
	return elasticsearch.NewClient(elasticsearch.Config{
		Addresses:    addresses,
		Transport:    &retrip.Transport{Base: base},
		DisableRetry: true,
	})
}
