// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"net/http"
	"slices"
	"strings"
)

// IsStream reports whether the type of a response with the header h is that of a stream:
// what comes, and when, is up to the server.
func IsStream(h http.Header) bool { return slices.ContainsFunc(h["Content-Type"], isStream) }

func isStream(contentType string) bool {
	kind, parameters := strings.ToLower(strings.Trim(contentType, " \t")), ""
	if i := strings.IndexAny(kind, ";, \t"); i >= 0 {
		kind, parameters = kind[:i], kind[i:]
	}
	family, form, _ := strings.Cut(kind, "/")
	switch {
	case family == "multipart":
		return form == "mixed" || form == "x-mixed-replace"
	case form == "stream+json", strings.HasPrefix(form, "grpc"), strings.HasPrefix(form, "connect+"):
		return true
	case strings.Contains(form, "event-stream"), strings.Contains(form, "eventstream"), strings.Contains(parameters, "stream=watch"): // Kubernetes
		return true
	}
	// Vendors have prefixes and suffixes of their own.
	for word := range strings.FieldsFuncSeq(form, func(r rune) bool { return r == '.' || r == '+' }) {
		switch strings.TrimPrefix(word, "x-") {
		case "jsonl", "jsonlines", "json-lines", "ndjson", "nd-json", "ldjson", "json-seq", "cbor-seq", "json-stream", "jsonstream",
			"delimited",                        // ksqlDB
			"raw-stream", "multiplexed-stream": // Docker
			return true
		}
	}
	return false
}
