// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package syntax has the small parts of the grammar of HTTP.
package syntax

import (
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Method returns the method of req. As in net/http, an empty method means GET.
func Method(req *http.Request) string {
	if req.Method == "" {
		return http.MethodGet
	}
	return req.Method
}

// IsToken reports whether s is a token (RFC 9110 §5.6.2).
func IsToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && !('0' <= c && c <= '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// IsDigits reports whether s consists of one or more digits.
func IsDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// HasControl reports whether s contains a control character.
func HasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// WithHeader returns a copy of h in which the field name, in canonical form, has the
// one value. net/http sends every spelling of a name in a map, so WithHeader removes
// the others.
func WithHeader(h http.Header, name, value string) http.Header {
	h = maps.Clone(h)
	if h == nil {
		h = http.Header{}
	}
	for other := range h {
		if strings.EqualFold(other, name) {
			delete(h, other)
		}
	}
	h[name] = []string{value}
	return h
}

// HasHeader reports whether h has a value of the field name, in any spelling.
func HasHeader(h http.Header, name string) bool {
	for other, values := range h {
		if len(values) > 0 && strings.EqualFold(other, name) {
			return true
		}
	}
	return false
}

// Members returns the values in the lines of a field. Whoever is in between may join lines by
// commas (RFC 9110 §5.3).
func Members(lines []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, line := range lines {
			for value := range strings.SplitSeq(line, ",") {
				if !yield(strings.Trim(value, " \t")) {
					return
				}
			}
		}
	}
}

// Says reports whether one of the values in the lines of a field is word, in any case.
func Says(lines []string, word string) bool {
	for value := range Members(lines) {
		if strings.EqualFold(value, word) {
			return true
		}
	}
	return false
}

// OnlyIfCached reports whether a request with the header h asks for a stored response, or
// else a 504 (RFC 9111 §5.2.1.7).
func OnlyIfCached(h http.Header) bool { return Says(h["Cache-Control"], "only-if-cached") }

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
