// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package resume decides whether one HTTP response continues the body of
// another (RFC 9110 §14), byte for byte. It knows no request in flight and does
// no I/O.
package resume

import (
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"
)

// The number of bytes to discard from a response that continues another.
const (
	// overlapMost is how far before the requested byte a 206 may start: a cache
	// that stores blocks responds from the start of a block.
	overlapMost = 64 << 10

	// skipMost is how much of a whole representation may be skipped to reach the
	// requested byte, if the server ignores ranges.
	skipMost = 1 << 20
)

// Refusal is a word for why a response body that has broken can't be continued.
// It is empty if the body can be continued. A Refusal is not a reason for a give-up,
// because the request already has its response.
type Refusal string

// The words have no type, because metrics and hooks mix them with reasons.
const (
	RefusedMethod       = "method"         // not a GET, or one with a body
	RefusedStatus       = "status"         // not a 200 and not the requested 206
	RefusedEncoded      = "encoded"        // with a Content-Encoding, or decoded by net/http
	RefusedMultipart    = "multipart"      // several parts
	RefusedTrailers     = "trailers"       // continuing would lose the trailers
	RefusedLength       = "unknown_length" // no Content-Length
	RefusedRanges       = "no_ranges"      // the server doesn't serve parts
	RefusedValidator    = "no_validator"   // no strong ETag
	RefusedContentRange = "content_range"  // not the requested part
	RefusedChanged      = "changed"        // another representation
	RefusedCost         = "too_much"       // more bytes to discard than the limits allow
	RefusedProgress     = "no_progress"    // continuations without a byte
	RefusedError        = "error"          // an error that a retry can't fix
)

// Representation is what a response is a part of, reduced to what a request for
// more of it has to match (RFC 9110 §14). It is a plain value.
type Representation struct {
	etag  string // strong, with its quotes
	First int64  // offset of the first byte of the response's body
	Last  int64  // offset of its last byte; first-1 if the body is empty
	total int64  // length of the representation; -1 if the server doesn't say
}

// Of returns the representation of which resp, the response to req, is
// a part. If no other response can continue resp, it returns the word for the
// reason.
func Of(req *http.Request, resp *http.Response) (r Representation, refusal Refusal) {
	if req.Method != http.MethodGet && req.Method != "" || req.Body != nil && req.Body != http.NoBody {
		return r, RefusedMethod
	}
	h := resp.Header
	switch {
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent:
		return r, RefusedStatus
	case resp.Uncompressed || encoded(h):
		return r, RefusedEncoded
	case multipart(h):
		return r, RefusedMultipart
	case len(resp.Trailer) > 0:
		return r, RefusedTrailers
	case resp.ContentLength < 0:
		return r, RefusedLength
	case refusesRanges(h):
		return r, RefusedRanges
	}
	var ok bool
	if r.etag, ok = strongETag(h); !ok {
		return r, RefusedValidator
	}
	if resp.StatusCode == http.StatusOK {
		r.Last, r.total = resp.ContentLength-1, resp.ContentLength
		return r, ""
	}
	if !asksOneRange(req.Header) {
		return r, RefusedStatus
	}
	r.First, r.Last, r.total, ok = contentRange(h)
	if !ok || r.Last-r.First+1 != resp.ContentLength {
		return r, RefusedContentRange
	}
	return r, ""
}

// Ask returns the header h of the request for r, changed to ask for the rest of
// r from the offset at.
func (r Representation) Ask(h http.Header, at int64) http.Header {
	h = maps.Clone(h)
	if h == nil {
		h = http.Header{}
	}
	// Some servers respond with 416 to a range without an end.
	h["Range"] = []string{"bytes=" + strconv.FormatInt(at, 10) + "-" + strconv.FormatInt(r.Last, 10)}
	h["If-Range"] = []string{r.etag}
	if len(h["Accept-Encoding"]) == 0 {
		h["Accept-Encoding"] = []string{"identity"}
	}
	return h
}

// Landing says where a response that continues another begins, and how far it
// goes.
type Landing struct {
	Skip  int64 // bytes to discard first
	Until int64 // offset after its last useful byte
	Whole bool  // the server ignores ranges and has sent the whole representation
}

// Accept returns where resp, the response to a request for the rest of r from
// the offset at, continues r. If resp doesn't continue r, it returns the word
// for the reason.
func (r Representation) Accept(resp *http.Response, at int64) (l Landing, refusal Refusal) {
	h := resp.Header
	switch {
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent:
		return l, RefusedStatus
	case resp.Uncompressed || encoded(h):
		return l, RefusedEncoded
	case multipart(h):
		return l, RefusedMultipart
	}
	etag, _ := strongETag(h)
	if resp.StatusCode == http.StatusOK {
		switch {
		case etag != r.etag || r.total >= 0 && resp.ContentLength != r.total || resp.ContentLength <= r.Last:
			return l, RefusedChanged
		case at > skipMost:
			return l, RefusedRanges
		}
		return Landing{Skip: at, Until: r.Last + 1, Whole: true}, ""
	}
	// A 206 must repeat the ETag of the 200 (RFC 9110 §15.3.7). Without an ETag
	// nothing shows that the server understood If-Range, and the bytes may belong
	// to another representation.
	if len(h["Etag"]) == 0 {
		return l, RefusedValidator
	}
	if etag != r.etag {
		return l, RefusedChanged
	}
	first, last, total, ok := contentRange(h)
	switch {
	case !ok:
		return l, RefusedContentRange
	case total >= 0 && r.total >= 0 && total != r.total:
		return l, RefusedChanged
	case first > at || last < at || last > r.Last || at-first > overlapMost:
		return l, RefusedContentRange
	case resp.ContentLength < 0:
		// The body may be a range other than the announced one, and only its
		// length would show that.
		return l, RefusedLength
	case resp.ContentLength != last-first+1:
		return l, RefusedContentRange
	}
	return Landing{Skip: at - first, Until: last + 1}, ""
}

// contentRange returns what the Content-Range of h says: the offsets of the
// first and the last byte, and the total length, or -1 if the length is
// unknown. It is strict, because a field that is almost correct may describe
// other bytes.
func contentRange(h http.Header) (first, last, total int64, ok bool) {
	values := h["Content-Range"]
	if len(values) != 1 {
		return 0, 0, 0, false
	}
	unit, rest, _ := strings.Cut(values[0], " ")
	span, length, found := strings.Cut(rest, "/")
	if !strings.EqualFold(unit, "bytes") || !found {
		return 0, 0, 0, false
	}
	from, to, found := strings.Cut(span, "-")
	if !found {
		return 0, 0, 0, false
	}
	first, ok1 := digits(from)
	last, ok2 := digits(to)
	total, ok3 := int64(-1), true
	if length != "*" {
		total, ok3 = digits(length)
	}
	if !ok1 || !ok2 || !ok3 || first > last || total >= 0 && last >= total {
		return 0, 0, 0, false
	}
	return first, last, total, true
}

// digits returns the number in s, if s consists of decimal digits without a
// leading zero and the number is less than the largest int64.
func digits(s string) (int64, bool) {
	if len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n < math.MaxInt64
}

// strongETag returns the ETag of h, if there is exactly one and it is strong
// (RFC 9110 §8.8.3), and "" otherwise. It rejects an empty ETag, which some servers send instead
// of none.
func strongETag(h http.Header) (string, bool) {
	values := h["Etag"]
	if len(values) != 1 {
		return "", false
	}
	etag := values[0]
	if len(etag) < 3 || etag[0] != '"' || etag[len(etag)-1] != '"' {
		return "", false
	}
	for _, c := range []byte(etag[1 : len(etag)-1]) {
		if c <= ' ' || c == '"' || c == 0x7f {
			return "", false
		}
	}
	return etag, true
}

// encoded reports whether a body with the header fields h has a content coding.
func encoded(h http.Header) bool {
	for _, v := range h["Content-Encoding"] {
		if v != "" && !strings.EqualFold(v, "identity") {
			return true
		}
	}
	return false
}

// multipart reports whether a body with the header fields h has several parts.
func multipart(h http.Header) bool {
	const prefix = "multipart/"
	for _, v := range h["Content-Type"] {
		v = strings.TrimSpace(v)
		if len(v) >= len(prefix) && strings.EqualFold(v[:len(prefix)], prefix) {
			return true
		}
	}
	return false
}

// refusesRanges reports whether h says that the server supports no ranges. Many
// servers that do support ranges don't say so.
func refusesRanges(h http.Header) bool {
	for _, v := range h["Accept-Ranges"] {
		if strings.EqualFold(strings.TrimSpace(v), "none") {
			return true
		}
	}
	return false
}

// asksOneRange reports whether a request with the header fields h asks for one
// range of bytes.
func asksOneRange(h http.Header) bool {
	values := h["Range"]
	return len(values) == 1 && len(values[0]) > 6 && strings.EqualFold(values[0][:6], "bytes=") && !strings.Contains(values[0], ",")
}
