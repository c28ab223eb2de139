// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/retrip/retrip"
)

// GraphQL returns a client that repeats queries, and mutations only if the server
// provably didn't process them.
func GraphQL(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: &retrip.Transport{Base: base, Policy: retrip.Policy{
		Idempotent:     onlyReads,
		AttemptTimeout: 5 * time.Second,
		Deadline:       25 * time.Second,
	}}}
}

// onlyReads reports whether no operation in the document of a request can write. A
// field whose name has one of the two words makes a query count as one that may.
func onlyReads(req *http.Request) bool {
	if req.Method != http.MethodPost || req.GetBody == nil {
		return req.Method == http.MethodGet // by which a server must not run mutations
	}
	body, err := req.GetBody()
	if err != nil {
		return false
	}
	defer body.Close()
	document, err := io.ReadAll(body)
	var call map[string]any // a struct would also take "Query" for "query"
	if err != nil || json.Unmarshal(document, &call) != nil {
		return false
	}
	query, _ := call["query"].(string)
	return query != "" && !strings.Contains(query, "mutation") && !strings.Contains(query, "subscription")
}
