// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

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

// The results for a response body that has broken while it was read. These are not
// reasons for a give-up, because the request already has its response.
const (
	resumeContinued Reason = "continued"

	refusedMethod       Reason = "method"         // not a GET, or one with a body
	refusedStatus       Reason = "status"         // not a 200 and not the requested 206
	refusedEncoded      Reason = "encoded"        // with a Content-Encoding, or decoded by net/http
	refusedMultipart    Reason = "multipart"      // several parts
	refusedTrailers     Reason = "trailers"       // continuing would lose the trailers
	refusedLength       Reason = "unknown_length" // no Content-Length
	refusedRanges       Reason = "no_ranges"      // the server doesn't serve parts
	refusedValidator    Reason = "no_validator"   // no strong ETag
	refusedContentRange Reason = "content_range"  // not the requested part
	refusedChanged      Reason = "changed"        // another representation
	refusedCost         Reason = "too_much"       // more bytes to discard than the limits allow
	refusedProgress     Reason = "no_progress"    // three continuations in a row without a byte
	refusedError        Reason = "error"          // an error that a retry can't fix
)

// representation is what a response is a part of, reduced to what a request for
// more of it has to match (RFC 9110 §14). It is a plain value.
type representation struct {
	etag  string // strong, with its quotes
	first int64  // offset of the first byte of the response's body
	last  int64  // offset of its last byte; first-1 if the body is empty
	total int64  // length of the representation; -1 if the server doesn't say
}

// represented returns the representation of which resp, the response to req, is
// a part. If no other response can continue resp, it returns the word for the
// reason.
func represented(req *http.Request, resp *http.Response) (r representation, refusal Reason) {
	if req.Method != http.MethodGet && req.Method != "" || req.Body != nil && req.Body != http.NoBody {
		return r, refusedMethod
	}
	h := resp.Header
	switch {
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent:
		return r, refusedStatus
	case resp.Uncompressed || encoded(h):
		return r, refusedEncoded
	case multipart(h):
		return r, refusedMultipart
	case len(resp.Trailer) > 0:
		return r, refusedTrailers
	case resp.ContentLength < 0:
		return r, refusedLength
	case refusesRanges(h):
		return r, refusedRanges
	}
	var ok bool
	if r.etag, ok = strongETag(h); !ok {
		return r, refusedValidator
	}
	if resp.StatusCode == http.StatusOK {
		r.last, r.total = resp.ContentLength-1, resp.ContentLength
		return r, ""
	}
	if !asksOneRange(req.Header) {
		return r, refusedStatus
	}
	r.first, r.last, r.total, ok = contentRange(h)
	if !ok || r.last-r.first+1 != resp.ContentLength {
		return r, refusedContentRange
	}
	return r, ""
}

// ask returns the header h of the request for r, changed to ask for the rest of
// r from the offset at.
func (r representation) ask(h http.Header, at int64) http.Header {
	h = maps.Clone(h)
	if h == nil {
		h = http.Header{}
	}
	// Some servers respond with 416 to a range without an end.
	h["Range"] = []string{"bytes=" + strconv.FormatInt(at, 10) + "-" + strconv.FormatInt(r.last, 10)}
	h["If-Range"] = []string{r.etag}
	if len(h["Accept-Encoding"]) == 0 {
		h["Accept-Encoding"] = []string{"identity"}
	}
	return h
}

// landing says where a response that continues another begins, and how far it
// goes.
type landing struct {
	skip  int64 // bytes to discard first
	until int64 // offset after its last useful byte
	whole bool  // the server ignores ranges and has sent the whole representation
}

// accept returns where resp, the response to a request for the rest of r from
// the offset at, continues r. If resp doesn't continue r, it returns the word
// for the reason.
func (r representation) accept(resp *http.Response, at int64) (l landing, refusal Reason) {
	h := resp.Header
	switch {
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent:
		return l, refusedStatus
	case resp.Uncompressed || encoded(h):
		return l, refusedEncoded
	case multipart(h):
		return l, refusedMultipart
	}
	etag, _ := strongETag(h)
	if resp.StatusCode == http.StatusOK {
		switch {
		case etag != r.etag || r.total >= 0 && resp.ContentLength != r.total || resp.ContentLength <= r.last:
			return l, refusedChanged
		case at > skipMost:
			return l, refusedRanges
		}
		return landing{skip: at, until: r.last + 1, whole: true}, ""
	}
	// A 206 must repeat the ETag of the 200 (RFC 9110 §15.3.7). Without an ETag
	// nothing shows that the server understood If-Range, and the bytes may belong
	// to another representation.
	if len(h["Etag"]) == 0 {
		return l, refusedValidator
	}
	if etag != r.etag {
		return l, refusedChanged
	}
	first, last, total, ok := contentRange(h)
	switch {
	case !ok:
		return l, refusedContentRange
	case total >= 0 && r.total >= 0 && total != r.total:
		return l, refusedChanged
	case first > at || last < at || last > r.last || at-first > overlapMost:
		return l, refusedContentRange
	case resp.ContentLength < 0:
		// The body may be a range other than the announced one, and only its
		// length would show that.
		return l, refusedLength
	case resp.ContentLength != last-first+1:
		return l, refusedContentRange
	}
	return landing{skip: at - first, until: last + 1}, ""
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
