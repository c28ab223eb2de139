// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"crypto/rand"
	"net/http"
	"slices"
	"strings"

	"github.com/retrip/retrip/internal/syntax"
)

// What isn't idempotent is retried only if no server has processed it (P6 in
// docs/promises.md): by the error, see last.neverProcessed in package exchange, by a status of
// Policy.Unprocessed or a 421, or because Classify says so. decide.Rules.repeatable puts that
// together.

// Idempotent reports whether sending req twice has the same effect as sending
// it once: by its method (RFC 9110 §9.2.2), by a key, or because the policy
// says so.
func (r *rules) Idempotent(req *http.Request) bool {
	if r.policy.Idempotent != nil {
		return r.policy.Idempotent(req)
	}
	switch syntax.Method(req) {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete, "QUERY": // RFC 10008
		return true
	}
	return hasKey(req.Header) || slices.Contains(r.policy.IdempotentMethods, syntax.Method(req))
}

// hasKey reports whether h marks a request as idempotent. By net/http's rule, the
// header is present, even without a value. If the map spells the name in another
// way, net/http doesn't know it, but sends its values, and the server sees a key.
func hasKey(h http.Header) bool {
	const key, other = "Idempotency-Key", "X-Idempotency-Key"
	for name, values := range h {
		switch {
		case name == key, name == other:
			return true
		case len(values) > 0 && (strings.EqualFold(name, key) || strings.EqualFold(name, other)):
			return true
		}
	}
	return false
}

// NewKey returns a value of the Idempotency-Key header for a request with the header h: an
// sf-string (draft-ietf-httpapi-idempotency-key-header) with at least 128 random bits. If h
// has a key, NewKey returns "": the caller may retry with the same key.
func (r *rules) NewKey(h http.Header) string {
	if hasKey(h) {
		return ""
	}
	return `"` + rand.Text() + `"`
}
