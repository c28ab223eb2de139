// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package resume decides whether one HTTP response continues the body of
// another (RFC 9110 §14), byte for byte. It knows no request in flight and does
// no I/O.
package resume

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/syntax"
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

// What a date needs to prove that two responses are parts of one representation.
const (
	// settled is how many seconds after Last-Modified the origin must have sent a
	// response. A file that changes twice within a second keeps its
	// Last-Modified, and so may one that a clock behind the origin's stamps. The
	// number is that of RFC 7232 §2.2.2; RFC 9110 §8.8.2.2 leaves it open.
	settled = 60

	// firstYear is the first year that is taken for the time of a change. The
	// files of reproducible builds have constant dates: 1970 (Nix, container
	// images), 1980 (archives), 1985 (npm).
	firstYear = 1990

	// repeated is how many bytes that the reader has, a continuation by date must
	// repeat. Tools that keep the date of a file, such as cp -p and rsync -t, may
	// put another file of the same length and date in its place.
	repeated = 4 << 10
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
	RefusedValidator    = "no_validator"   // no strong ETag, and no date that can replace it
	RefusedContentRange = "content_range"  // not the requested part
	RefusedChanged      = "changed"        // another representation
	RefusedCost         = "too_much"       // more bytes to discard than the limits allow
	RefusedProgress     = "no_progress"    // no byte for as long as the policy allows
	RefusedError        = "error"          // an error that a retry can't fix
)

// Representation is what a response is a part of, reduced to what a request for
// more of it has to match (RFC 9110 §14). It is a plain value.
type Representation struct {
	etag  string // strong, with its quotes; empty if the date is the validator
	date  string // Last-Modified, if it is the validator
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
		if r.date, ok = strongDate(h); !ok {
			return r, RefusedValidator
		}
	}
	if resp.StatusCode == http.StatusOK {
		if !whole(resp) {
			return r, RefusedContentRange
		}
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

// Repeats returns how many bytes before the offset at a continuation must
// repeat. Its caller has to compare them with those that the reader has.
func (r Representation) Repeats(at int64) int64 {
	if r.date == "" {
		return 0
	}
	return min(at-r.First, repeated)
}

// Ask returns the header h of the request for r, changed to ask for the rest of
// r from the offset at, and for what must be repeated before it.
func (r Representation) Ask(h http.Header, at int64) http.Header {
	// Some servers respond with 416 to a range without an end.
	h = syntax.WithHeader(h, "Range", "bytes="+strconv.FormatInt(at-r.Repeats(at), 10)+"-"+strconv.FormatInt(r.Last, 10))
	h = syntax.WithHeader(h, "If-Range", r.etag+r.date)
	if !syntax.HasHeader(h, "Accept-Encoding") {
		h = syntax.WithHeader(h, "Accept-Encoding", "identity")
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
	given, same := r.validates(h)
	if resp.StatusCode == http.StatusOK {
		switch {
		case !same || r.total >= 0 && resp.ContentLength != r.total || resp.ContentLength <= r.Last:
			return l, RefusedChanged
		case !whole(resp):
			return l, RefusedContentRange
		case at > skipMost || r.date != "":
			// A server that ignores ranges may make each response anew, under the
			// date of what it makes it from.
			return l, RefusedRanges
		}
		return Landing{Skip: at, Until: r.Last + 1, Whole: true}, ""
	}
	// A 206 must repeat the ETag of the 200 (RFC 9110 §15.3.7). Without a
	// validator nothing shows that the server understood If-Range, and the bytes
	// may belong to another representation.
	switch {
	case !given:
		return l, RefusedValidator
	case !same:
		return l, RefusedChanged
	}
	first, last, total, ok := contentRange(h)
	asked := at - r.Repeats(at)
	switch {
	case !ok:
		return l, RefusedContentRange
	case total >= 0 && r.total >= 0 && total != r.total:
		return l, RefusedChanged
	case first > asked || last < at || last > r.Last || asked-first > overlapMost:
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

// whole reports whether the header of resp, a 200 of known length, leaves no
// doubt that its body is a whole representation. Content-Range means nothing in a
// 200 (RFC 9110 §14.4), but some servers send a part with that status.
func whole(resp *http.Response) bool {
	if len(resp.Header["Content-Range"]) == 0 {
		return true
	}
	first, last, total, ok := contentRange(resp.Header)
	return ok && first == 0 && last == total-1 && total == resp.ContentLength
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
	span, length, _ := strings.Cut(rest, "/")
	from, to, _ := strings.Cut(span, "-")
	first, ok1 := digits(from)
	last, ok2 := digits(to)
	total, ok3 := int64(-1), true
	if length != "*" {
		total, ok3 = digits(length)
	}
	if !strings.EqualFold(unit, "bytes") || !ok1 || !ok2 || !ok3 || first > last || total >= 0 && last >= total {
		return 0, 0, 0, false
	}
	return first, last, total, true
}

// digits returns the number in s, if s consists of decimal digits without a
// leading zero and the number is less than the largest int64.
func digits(s string) (int64, bool) {
	if len(s) > 1 && s[0] == '0' || !syntax.IsDigits(s) {
		return 0, false
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
	if inside := etag[1 : len(etag)-1]; strings.ContainsAny(inside, `" `) || syntax.HasControl(inside) {
		return "", false
	}
	return etag, true
}

// strongDate returns the Last-Modified of h, if it is a strong validator (RFC
// 9110 §8.8.2.2) and h has no ETag (§13.1.5): the file that it dates was no longer
// changing when the origin sent the response, as far as dates show that.
func strongDate(h http.Header) (string, bool) {
	modified, ok1 := date(h["Last-Modified"])
	sent, ok2 := date(h["Date"])
	if !ok1 || !ok2 || len(h["Etag"]) > 0 || modified.Year() < firstYear {
		return "", false
	}
	// A cache must keep the origin's Date, but may send its own.
	age := int64(0)
	if values := h["Age"]; len(values) > 0 {
		var ok bool
		if age, ok = digits(values[0]); !ok || len(values) > 1 {
			return "", false
		}
	}
	for _, v := range h["Vary"] {
		// The next representation may be chosen by anything, and have the same date.
		if strings.Contains(v, "*") {
			return "", false
		}
	}
	return h["Last-Modified"][0], age <= sent.Unix()-modified.Unix()-settled
}

// date returns the time in a header field with the given values, if there is
// exactly one, in the form that servers must send.
func date(values []string) (time.Time, bool) {
	if len(values) != 1 {
		return time.Time{}, false
	}
	t, err := time.Parse(http.TimeFormat, values[0])
	return t, err == nil && t.Format(http.TimeFormat) == values[0]
}

// validates reports whether h has a validator of the kind that r has, and
// whether it is the same.
func (r Representation) validates(h http.Header) (given, same bool) {
	if r.date == "" {
		etag, _ := strongETag(h)
		return len(h["Etag"]) > 0, etag == r.etag
	}
	values := h["Last-Modified"]
	return len(values) > 0, len(values) == 1 && values[0] == r.date && len(h["Etag"]) == 0
}

// encoded reports whether a body with the header fields h has a content coding.
func encoded(h http.Header) bool {
	return slices.ContainsFunc(h["Content-Encoding"], func(v string) bool { return v != "" && !strings.EqualFold(v, "identity") })
}

// multipart reports whether a body with the header fields h has several parts.
func multipart(h http.Header) bool {
	return slices.ContainsFunc(h["Content-Type"], func(v string) bool {
		return strings.HasPrefix(strings.ToLower(strings.TrimSpace(v)), "multipart/")
	})
}

// refusesRanges reports whether h says that the server supports no ranges. Many
// servers that do support ranges don't say so.
func refusesRanges(h http.Header) bool {
	return slices.ContainsFunc(h["Accept-Ranges"], func(v string) bool { return strings.EqualFold(strings.TrimSpace(v), "none") })
}

// asksOneRange reports whether a request with the header fields h asks for one
// range of bytes.
func asksOneRange(h http.Header) bool {
	values := h["Range"]
	return len(values) == 1 && len(values[0]) > 6 && strings.EqualFold(values[0][:6], "bytes=") && !strings.Contains(values[0], ",")
}
