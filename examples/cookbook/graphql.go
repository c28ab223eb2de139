// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/retrip/retrip"
)

// GraphQL returns a client that repeats queries, and mutations only if the server
// provably didn't process them.
func GraphQL(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: &retrip.Transport{Base: base, Policy: retrip.Policy{Idempotent: onlyReads}}}
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
	var call struct{ Query string }
	err = json.NewDecoder(body).Decode(&call)
	writes := strings.Contains(call.Query, "mutation") || strings.Contains(call.Query, "subscription")
	return err == nil && call.Query != "" && !writes
}
