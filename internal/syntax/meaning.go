// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"slices"
	"strings"
)

// meaningful are the names, in lower case and sorted, of the header fields of requests
// that mean something to net/http, to connections, to servers or to what is between
// them. Some of them net/http never sends from the map of a request.
var meaningful = []string{
	"accept", "accept-charset", "accept-encoding", "accept-language", "authorization", "cache-control",
	"connection", "content-digest", "content-disposition", "content-encoding", "content-language",
	"content-length", "content-location", "content-range", "content-type", "cookie", "date", "expect",
	"forwarded", "from", "host", "http2-settings", "idempotency-key", "if-match", "if-modified-since",
	"if-none-match", "if-range", "if-unmodified-since", "keep-alive", "max-forwards", "origin", "pragma",
	"proxy-authenticate", "proxy-authorization", "proxy-connection", "range", "referer", "te", "trailer",
	"transfer-encoding", "upgrade", "user-agent", "via", "x-forwarded-for", "x-forwarded-host",
	"x-forwarded-proto", "x-idempotency-key",
}

// HasMeaning reports whether name is one of [meaningful], in any case.
func HasMeaning(name string) bool {
	_, found := slices.BinarySearch(meaningful, strings.ToLower(name))
	return found
}
