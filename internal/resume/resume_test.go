// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package resume

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// fielded returns a response with the given header lines "Name: value". Its
// length is that of a Content-Length among them, or -1.
func fielded(status int, lines ...string) *http.Response {
	resp := &http.Response{StatusCode: status, Header: http.Header{}, ContentLength: -1}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		resp.Header.Add(name, value)
		if name == "Content-Length" {
			resp.ContentLength, _ = strconv.ParseInt(value, 10, 64)
		}
	}
	return resp
}

// get returns a GET with the given header lines.
func get(lines ...string) *http.Request {
	return &http.Request{Method: http.MethodGet, Header: fielded(0, lines...).Header}
}

// tagged returns a response of ten bytes with the ETag "a" and the given header lines.
func tagged(status int, lines ...string) *http.Response {
	return fielded(status, append(lines, `ETag: "a"`, "Content-Length: 10")...)
}

func TestOf(t *testing.T) {
	noBody := get()
	noBody.Body = http.NoBody
	noMethod := get()
	noMethod.Method = ""
	rest := get("Range: bytes=5-")
	part := func(total string) *http.Response {
		return fielded(206, `ETag: "a"`, "Content-Length: 5", "Content-Range: bytes 5-9/"+total)
	}
	whole := Representation{etag: `"a"`, Last: 9, total: 10}
	for _, c := range []struct {
		name string
		req  *http.Request
		resp *http.Response
		want Representation
	}{
		{"200", get(), tagged(200), whole},
		{"no method is GET", noMethod, tagged(200), whole},
		{"NoBody", noBody, tagged(200), whole},
		{"200, although a range was asked for", rest, tagged(200), whole},
		{"identity", get(), tagged(200, "Content-Encoding: Identity"), whole},
		{"empty", get(), fielded(200, `ETag: "a"`, "Content-Length: 0"), Representation{etag: `"a"`, Last: -1}},
		{"206", rest, part("10"), Representation{etag: `"a"`, First: 5, Last: 9, total: 10}},
		{"206 of unknown length", rest, part("*"), Representation{etag: `"a"`, First: 5, Last: 9, total: -1}},
	} {
		got, refusal := Of(c.req, c.resp)
		assert.Empty(t, refusal, c.name)
		assert.Equal(t, c.want, got, c.name)
	}

	uncompressed := tagged(200)
	uncompressed.Uncompressed = true
	trailers := tagged(200)
	trailers.Trailer = http.Header{"X": nil}
	for refusal, resps := range map[Refusal][]*http.Response{
		"status":         {tagged(203), tagged(404), tagged(101), part("10")},
		"encoded":        {uncompressed, tagged(200, "Content-Encoding: gzip")},
		"multipart":      {tagged(200, "Content-Type: Multipart/Mixed; boundary=x")},
		"trailers":       {trailers},
		"unknown_length": {fielded(200, `ETag: "a"`)},
		"no_ranges":      {tagged(200, "Accept-Ranges: none")},
		"no_validator": {
			fielded(200, "Content-Length: 10", "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT"),
			fielded(200, "Content-Length: 10", `ETag: W/"a"`),
			fielded(200, "Content-Length: 10", `ETag: ""`),
			fielded(200, "Content-Length: 10", `ETag: abc`),
			fielded(200, "Content-Length: 10", `ETag: "a"b"`),
			tagged(200, `ETag: "b"`),
		},
	} {
		for _, resp := range resps {
			_, got := Of(get(), resp)
			assert.Equal(t, refusal, got, "%d %v", resp.StatusCode, resp.Header)
		}
	}
	refused := func(want Refusal, req *http.Request, resp *http.Response) {
		t.Helper()
		_, refusal := Of(req, resp)
		assert.Equal(t, want, refusal)
	}
	withBody, err := http.NewRequest(http.MethodGet, "http://a.example/", strings.NewReader("x"))
	require.NoError(t, err)
	refused("method", withBody, tagged(200))
	refused("method", &http.Request{Method: http.MethodPost}, tagged(200))
	refused("status", get("Range: bytes=0-1,4-5"), part("10"))
	refused("content_range", get("Range: bytes=0-0"), fielded(206, `ETag: "a"`, "Content-Length: 1"))
	refused("content_range", rest, fielded(206, `ETag: "a"`, "Content-Length: 4", "Content-Range: bytes 5-9/10"))
}

// A 200 with a Content-Range is whole only if the field says so, both when it
// begins a body and when it continues one.
//
//retrip:promise P20
func TestContentRangeOfA200(t *testing.T) {
	r := Representation{etag: `"a"`, Last: 9, total: 10}
	both := func(want Refusal, lines ...string) {
		resp := tagged(200, lines...)
		_, refusal := Of(get(), resp)
		assert.Equal(t, want, refusal, "%q", lines)
		_, refusal = r.Accept(resp, 5)
		assert.Equal(t, want, refusal, "%q", lines)
	}
	both("")
	both("", "Content-Range: bytes 0-9/10")
	both("", "Content-Range: BYTES 0-9/10")
	for _, v := range []string{
		"bytes 5-14/20", "bytes 5-14/*", "bytes 0-9/*", "bytes 0-9/11", "bytes 0-9/20", "bytes 0-8/10", "bytes 0-8/9", "bytes 1-9/10", "bytes 0-10/11",
		"bytes */10", "", " ", "items 0-9/10", "bytes 00-9/10", "bytes 0-9/10, bytes 0-9/10", "bytes 0-18446744073709551625/18446744073709551626", "bytes -10--1/10",
	} {
		both(RefusedContentRange, "Content-Range: "+v)
	}
	both(RefusedContentRange, "Content-Range: bytes 0-9/10", "Content-Range: bytes 0-9/10")
}

func TestAsk(t *testing.T) {
	r := Representation{etag: `"a"`, First: 0, Last: 99, total: 100}
	rest := func(more ...string) http.Header {
		return fielded(0, append(more, "Range: bytes=7-99", `If-Range: "a"`)...).Header
	}
	callers := http.Header{"Range": {"bytes=0-"}, "If-Range": {"x"}, "Accept-Encoding": {"br"}, "X": {"y"}}
	before := callers.Clone()
	assert.Equal(t, rest("Accept-Encoding: br", "X: y"), r.Ask(callers, 7))
	assert.Equal(t, before, callers, "the caller's")
	assert.Equal(t, rest("Accept-Encoding: identity"), r.Ask(nil, 7))
	odd := http.Header{"range": {"bytes=0-"}, "RANGE": {"bytes=1-"}, "if-Range": {"x"}, "accept-encoding": {"br"}}
	want := rest()
	want["accept-encoding"] = []string{"br"}
	assert.Equal(t, want, r.Ask(odd, 7), "net/http sends every spelling")
}

// TestAccept has a wrong response for each rule. Each differs in
// one header field from a response that is accepted.
//
//retrip:promise P20
func TestAccept(t *testing.T) {
	const mib = 1 << 20
	const all, end = "4194304", 4*mib - 1
	tag, length, span := `ETag: "a"`, "Content-Length: 3145728", "Content-Range: bytes 1048576-4194303/4194304"
	part := func(first, last int64, total string, lines ...string) *http.Response {
		return fielded(206, append(lines, tag, fmt.Sprint("Content-Length: ", last-first+1), fmt.Sprintf("Content-Range: bytes %d-%d/%s", first, last, total))...)
	}
	r := Representation{etag: `"a"`, Last: end, total: 4 * mib}
	for name, c := range map[string]struct {
		resp *http.Response
		want Landing
	}{
		"exact":            {part(mib, end, all), Landing{Until: 4 * mib}},
		"shorter":          {part(mib, 2*mib-1, all), Landing{Until: 2 * mib}},
		"unknown total":    {part(mib, end, "*"), Landing{Until: 4 * mib}},
		"of a block":       {part(mib-64<<10, end, all), Landing{Skip: 64 << 10, Until: 4 * mib}}, // as caches store them
		"unit in capitals": {fielded(206, tag, length, "Content-Range: Bytes 1048576-4194303/*"), Landing{Until: 4 * mib}},
		"whole":            {fielded(200, tag, "Content-Length: 4194304"), Landing{Skip: mib, Until: 4 * mib, Whole: true}},
	} {
		got, refusal := r.Accept(c.resp, mib)
		assert.Empty(t, refusal, name)
		assert.Equal(t, c.want, got, name)
	}
	for refusal, resps := range map[Refusal][]*http.Response{
		"content_range": {
			part(mib+1, end, all),
			part(mib-64<<10-1, end, all), // of a block that is too long
			part(mib-10, mib-1, all),     // ends before it begins to help
			part(mib, end+1, "*"),        // beyond the end
			part(mib, end+1, all),
			part(mib, end, all, span), // two of them
			fielded(206, tag, "Content-Length: 0", span),
			fielded(206, tag, "Content-Length: 5", span),
			fielded(206, tag, length),
			fielded(206, tag, length, "Content-Range: bytes */4194304"),
		},
		"unknown_length": {fielded(206, tag, span)},
		"changed": {
			part(mib, end, "4194305"),
			fielded(206, `ETag: "b"`, length, span),
			fielded(206, `ETag: W/"a"`, length, span),
			fielded(206, `ETag: "A"`, length, span),
			part(mib, end, all, `ETag: "b"`),
			fielded(200, tag, "Content-Length: 4194305"),
			fielded(200, tag),
			fielded(200, `ETag: "b"`, "Content-Length: 4194304"),
			fielded(200, `ETag: W/"a"`, "Content-Length: 4194304"),
			fielded(200, "Content-Length: 4194304"),
		},
		"no_validator": {fielded(206, length, span)},
		"encoded": {
			part(mib, end, all, "Content-Encoding: gzip"),
			part(mib, end, all, "Content-Encoding: identity", "Content-Encoding: gzip"),
			fielded(200, tag, "Content-Length: 4194304", "Content-Encoding: br"),
		},
		"multipart": {
			part(mib, end, all, "Content-Type: multipart/byteranges; boundary=x"),
			part(mib, end, all, "Content-Type: text/plain", "Content-Type:  Multipart/Mixed"),
		},
		"status": {
			fielded(203, tag, "Content-Length: 4194304"), fielded(204, tag), fielded(302, tag), fielded(304, tag), fielded(412),
			fielded(416, "Content-Range: bytes */4194304"),
		},
	} {
		for _, resp := range resps {
			_, got := r.Accept(resp, mib)
			assert.Equal(t, refusal, got, "%d %v", resp.StatusCode, resp.Header)
		}
	}
	_, refusal := r.Accept(fielded(200, tag, "Content-Length: 4194304"), mib+1)
	assert.EqualValues(t, "no_ranges", refusal, "too much to skip")
}

// If the caller asked for a part, the representation ends where that part ends.
//
//retrip:promise P20
func TestAccept_Part(t *testing.T) {
	const tag = `ETag: "a"`
	whole := Landing{Skip: 150, Until: 200, Whole: true}
	for _, c := range []struct {
		total   int64
		resp    *http.Response
		refusal Refusal
		want    Landing
	}{
		{1000, fielded(200, tag, "Content-Length: 1000"), "", whole},
		{1000, fielded(206, tag, "Content-Length: 100", "Content-Range: bytes 150-249/1000"), "content_range", Landing{}},
		{-1, fielded(206, tag, "Content-Length: 50", "Content-Range: bytes 150-199/1000"), "", Landing{Until: 200}},
		{-1, fielded(200, tag, "Content-Length: 200"), "", whole},
		{-1, fielded(200, tag, "Content-Length: 199"), "changed", Landing{}}, // shorter than announced
	} {
		got, refusal := Representation{etag: `"a"`, First: 100, Last: 199, total: c.total}.Accept(c.resp, 150)
		assert.Equal(t, c.refusal, refusal)
		assert.Equal(t, c.want, got)
	}
}

// TestContentRange lists valid and invalid values of Content-Range, independent
// of any comparison.
func TestContentRange(t *testing.T) {
	for value, want := range map[string][3]int64{
		"bytes 0-9/10": {0, 9, 10},
		"bytes 5-5/6":  {5, 5, 6},
		"bytes 5-5/*":  {5, 5, -1},
		"BYTES 0-0/1":  {0, 0, 1},
		"bytes 9223372036854775805-9223372036854775806/*": {1<<63 - 3, 1<<63 - 2, -1},
	} {
		first, last, total, ok := contentRange(http.Header{"Content-Range": {value}})
		assert.True(t, ok, value)
		assert.Equal(t, want, [3]int64{first, last, total}, value)
	}
	for _, value := range []string{
		"bytes 5-4/10", "bytes 0-10/10", "bytes 0-11/10", "bytes 0-0/0", "bytes 0-9", "bytes 09/10", "bytes /10", "bytes -9/10", "bytes 0-/10", "bytes 0-9/",
		"bytes 0-9/10/10", "bytes 0-9-9/10", "bytes  0-9/10", "bytes\t0-9/10", "bytes=0-9/10", "bytes 0-9/10 ", "bytes 0-9/**", "bytes 0-9/-1",
		"bytes 0-9223372036854775807/*", "bytes 0-9/9223372036854775807", "bytes 0-18446744073709551617/*", "bytes */10", "", "bytes", "bytes ",
		"items 0-9/10", "bytes +0-9/10", "bytes 0 - 9/10", "bytes 0-9/99999999999999999999", "bytes 0x0-9/10",
	} {
		_, _, _, ok := contentRange(http.Header{"Content-Range": {value}})
		assert.False(t, ok, value)
	}
	_, _, _, ok := contentRange(nil)
	assert.False(t, ok)
}

// An answer with a header of twice the size costs less than three times the time,
// whichever field is long, and however.
//
//retrip:promise P12
func TestOf_Growth(t *testing.T) {
	const date, later = "Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 09:49:37 GMT"
	byTag := http.Header{"Etag": {`"a"`}, "Content-Range": {"bytes 0-9/10"}}
	byDate := http.Header{"Last-Modified": {date}, "Date": {later}, "Age": {"0"}, "Vary": {"Accept"}, "Content-Range": {"bytes 0-9/10"}}
	parts := []string{"9", "0", " ", "\t", "-", "/", "*", `"`, `\`, "bytes ", "bytes 0-9/10,", date + ", ", "identity,", "multipart/", "none,", "é"}
	for _, field := range []string{
		"Content-Range", "Etag", "Last-Modified", "Date", "Age", "Vary", "Content-Encoding", "Content-Type", "Accept-Ranges", "Range",
	} {
		for _, part := range parts {
			t.Run(field+"/"+part, func(t *testing.T) {
				input := func(n int) (all []http.Header) {
					for _, values := range testenv.LongValues(n, part) {
						for _, h := range []http.Header{byTag, byDate} {
							changed := h.Clone()
							changed[field] = values
							all = append(all, changed)
						}
					}
					return all
				}
				testenv.Growth(t, 2_000, input, func(all []http.Header) {
					for _, h := range all {
						for _, status := range []int{http.StatusOK, http.StatusPartialContent} {
							resp := &http.Response{StatusCode: status, Header: h, ContentLength: 10}
							for _, asked := range []http.Header{{"Range": {"bytes=0-9"}}, h} {
								r, _ := Of(&http.Request{Method: http.MethodGet, Header: asked}, resp)
								_ = r.Ask(asked, 0)
							}
							for _, r := range []Representation{{etag: `"a"`, Last: 9, total: 10}, {date: date, Last: 9, total: 10}} {
								_, _ = r.Accept(resp, 5)
							}
						}
					}
				})
			})
		}
	}
}
