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

func TestOf(t *testing.T) {
	get := func(lines ...string) *http.Request {
		req, err := http.NewRequest(http.MethodGet, "http://a.example/", nil)
		require.NoError(t, err)
		req.Header = fielded(0, lines...).Header
		return req
	}
	post, err := http.NewRequest(http.MethodPost, "http://a.example/", nil)
	require.NoError(t, err)
	withBody, err := http.NewRequest(http.MethodGet, "http://a.example/", strings.NewReader("x"))
	require.NoError(t, err)
	noMethod := get()
	noMethod.Method = ""
	noBody := get()
	noBody.Body = http.NoBody
	uncompressed := fielded(200, `ETag: "a"`, "Content-Length: 10")
	uncompressed.Uncompressed = true
	trailers := fielded(200, `ETag: "a"`, "Content-Length: 10")
	trailers.Trailer = http.Header{"X": nil}
	whole := Representation{etag: `"a"`, Last: 9, total: 10}
	for _, c := range []struct {
		name    string
		req     *http.Request
		resp    *http.Response
		refusal Refusal
		want    Representation
	}{
		{"200", get(), fielded(200, `ETag: "a"`, "Content-Length: 10"), "", whole},
		{"no method is GET", noMethod, fielded(200, `ETag: "a"`, "Content-Length: 10"), "", whole},
		{"NoBody", noBody, fielded(200, `ETag: "a"`, "Content-Length: 10"), "", whole},
		{"206 of one byte without Content-Range", get("Range: bytes=0-0"), fielded(206, `ETag: "a"`, "Content-Length: 1"), "content_range", Representation{}},
		{"200, although a range was asked for", get("Range: bytes=5-"), fielded(200, `ETag: "a"`, "Content-Length: 10"), "", whole},
		{"identity", get(), fielded(200, `ETag: "a"`, "Content-Length: 10", "Content-Encoding: identity"), "", whole},
		{"empty", get(), fielded(200, `ETag: "a"`, "Content-Length: 0"), "", Representation{etag: `"a"`, Last: -1}},
		{"206", get("Range: bytes=5-"), fielded(206, `ETag: "a"`, "Content-Length: 5", "Content-Range: bytes 5-9/10"), "", Representation{etag: `"a"`, First: 5, Last: 9, total: 10}},
		{"206 of unknown length", get("Range: bytes=5-"), fielded(206, `ETag: "a"`, "Content-Length: 5", "Content-Range: bytes 5-9/*"), "", Representation{etag: `"a"`, First: 5, Last: 9, total: -1}},
		{"206 nobody asked for", get(), fielded(206, `ETag: "a"`, "Content-Length: 5", "Content-Range: bytes 5-9/10"), "status", Representation{}},
		{"206 of two ranges", get("Range: bytes=0-1,4-5"), fielded(206, `ETag: "a"`, "Content-Length: 5", "Content-Range: bytes 5-9/10"), "status", Representation{}},
		{"206 of another length than its range", get("Range: bytes=5-"), fielded(206, `ETag: "a"`, "Content-Length: 4", "Content-Range: bytes 5-9/10"), "content_range", Representation{}},
		{"POST", post, fielded(200, `ETag: "a"`, "Content-Length: 10"), "method", Representation{}},
		{"GET with a body", withBody, fielded(200, `ETag: "a"`, "Content-Length: 10"), "method", Representation{}},
		{"203", get(), fielded(203, `ETag: "a"`, "Content-Length: 10"), "status", Representation{}},
		{"404", get(), fielded(404, `ETag: "a"`, "Content-Length: 10"), "status", Representation{}},
		{"101", get(), fielded(101, `ETag: "a"`, "Content-Length: 10"), "status", Representation{}},
		{"gunzipped by net/http", get(), uncompressed, "encoded", Representation{}},
		{"gzip", get(), fielded(200, `ETag: "a"`, "Content-Length: 10", "Content-Encoding: gzip"), "encoded", Representation{}},
		{"multipart", get(), fielded(200, `ETag: "a"`, "Content-Length: 10", "Content-Type: Multipart/Mixed; boundary=x"), "multipart", Representation{}},
		{"trailers", get(), trailers, "trailers", Representation{}},
		{"chunked", get(), fielded(200, `ETag: "a"`), "unknown_length", Representation{}},
		{"Accept-Ranges: none", get(), fielded(200, `ETag: "a"`, "Content-Length: 10", "Accept-Ranges: none"), "no_ranges", Representation{}},
		{"no ETag", get(), fielded(200, "Content-Length: 10", "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT"), "no_validator", Representation{}},
		{"weak ETag", get(), fielded(200, `ETag: W/"a"`, "Content-Length: 10"), "no_validator", Representation{}},
		{"empty ETag", get(), fielded(200, `ETag: ""`, "Content-Length: 10"), "no_validator", Representation{}},
		{"ETag without quotes", get(), fielded(200, `ETag: abc`, "Content-Length: 10"), "no_validator", Representation{}},
		{"ETag with a quote inside", get(), fielded(200, `ETag: "a"b"`, "Content-Length: 10"), "no_validator", Representation{}},
		{"two ETags", get(), fielded(200, `ETag: "a"`, `ETag: "b"`, "Content-Length: 10"), "no_validator", Representation{}},
	} {
		got, refusal := Of(c.req, c.resp)
		assert.EqualValues(t, c.refusal, refusal, c.name)
		if refusal == "" {
			assert.Equal(t, c.want, got, c.name)
		}
	}
}

// A 200 with a Content-Range is whole only if the field says so, both when it
// begins a body and when it continues one.
//
//retrip:promise P20
func TestContentRangeOfA200(t *testing.T) {
	req, err := http.NewRequest(http.MethodGet, "http://a.example/", nil)
	require.NoError(t, err)
	r := Representation{etag: `"a"`, Last: 9, total: 10}
	both := func(want Refusal, lines ...string) {
		resp := fielded(200, append(lines, `ETag: "a"`, "Content-Length: 10")...)
		_, refusal := Of(req, resp)
		assert.Equal(t, want, refusal, "%q", lines)
		_, refusal = r.Accept(resp, 5)
		assert.Equal(t, want, refusal, "%q", lines)
	}
	both("")
	both("", "Content-Range: bytes 0-9/10")
	both("", "Content-Range: BYTES 0-9/10")
	for _, v := range []string{
		"bytes 5-14/20", "bytes 5-14/*", "bytes 0-9/*", "bytes 0-9/11", "bytes 0-9/20", "bytes 0-8/10", "bytes 0-8/9", "bytes 1-9/10", "bytes 0-10/11", "bytes */10", "", " ",
		"items 0-9/10", "bytes 00-9/10", "bytes 0-9/10, bytes 0-9/10", "bytes 0-18446744073709551625/18446744073709551626", "bytes -10--1/10",
	} {
		both(RefusedContentRange, "Content-Range: "+v)
	}
	both(RefusedContentRange, "Content-Range: bytes 0-9/10", "Content-Range: bytes 0-9/10")
}

func TestAsk(t *testing.T) {
	callers := http.Header{"Range": {"bytes=0-"}, "If-Range": {"x"}, "Accept-Encoding": {"br"}, "X": {"y"}}
	r := Representation{etag: `"a"`, First: 0, Last: 99, total: 100}
	assert.Equal(t, http.Header{"Range": {"bytes=7-99"}, "If-Range": {`"a"`}, "Accept-Encoding": {"br"}, "X": {"y"}}, r.Ask(callers, 7))
	assert.Equal(t, http.Header{"Range": {"bytes=0-"}, "If-Range": {"x"}, "Accept-Encoding": {"br"}, "X": {"y"}}, callers, "the caller's")
	assert.Equal(t, http.Header{"Range": {"bytes=7-99"}, "If-Range": {`"a"`}, "Accept-Encoding": {"identity"}}, r.Ask(nil, 7))
	odd := http.Header{"range": {"bytes=0-"}, "RANGE": {"bytes=1-"}, "if-Range": {"x"}, "accept-encoding": {"br"}}
	assert.Equal(t, http.Header{"Range": {"bytes=7-99"}, "If-Range": {`"a"`}, "accept-encoding": {"br"}}, r.Ask(odd, 7), "net/http sends every spelling")
}

// TestAccept has a wrong response for each rule. Each differs in
// one header field from a response that is accepted.
//
//retrip:promise P20
func TestAccept(t *testing.T) {
	const mib = 1 << 20
	r := Representation{etag: `"a"`, Last: 4*mib - 1, total: 4 * mib}
	part := func(first, last int64) []string {
		return []string{`ETag: "a"`, fmt.Sprintf("Content-Length: %d", last-first+1), fmt.Sprintf("Content-Range: bytes %d-%d/%d", first, last, 4*mib)}
	}
	with := func(lines []string, more ...string) []string { return append(append([]string{}, lines...), more...) }
	end := r.Last
	for _, c := range []struct {
		name    string
		at      int64
		resp    *http.Response
		refusal Refusal
		want    Landing
	}{
		{"exact", mib, fielded(206, part(mib, end)...), "", Landing{Until: 4 * mib}},
		{"shorter", mib, fielded(206, part(mib, 2*mib-1)...), "", Landing{Until: 2 * mib}},
		{"block cache", mib, fielded(206, part(mib-64<<10, end)...), "", Landing{Skip: 64 << 10, Until: 4 * mib}},
		{"block cache, too far", mib, fielded(206, part(mib-64<<10-1, end)...), "content_range", Landing{}},
		{"later start", mib, fielded(206, part(mib+1, end)...), "content_range", Landing{}},
		{"ends before it begins to help", mib, fielded(206, part(mib-10, mib-1)...), "content_range", Landing{}},
		{"unknown length", mib, fielded(206, part(mib, end)[0], part(mib, end)[2]), "unknown_length", Landing{}},
		{"empty", mib, fielded(206, `ETag: "a"`, "Content-Length: 0", part(mib, end)[2]), "content_range", Landing{}},
		{"unknown total", mib, fielded(206, `ETag: "a"`, "Content-Length: 3145728", fmt.Sprintf("Content-Range: bytes %d-%d/*", mib, end)), "", Landing{Until: 4 * mib}},
		{"unit in capitals", mib, fielded(206, `ETag: "a"`, "Content-Length: 3145728", fmt.Sprintf("Content-Range: Bytes %d-%d/*", mib, end)), "", Landing{Until: 4 * mib}},
		{"other total", mib, fielded(206, `ETag: "a"`, fmt.Sprintf("Content-Range: bytes %d-%d/%d", mib, end, 4*mib+1)), "changed", Landing{}},
		{"beyond the end", mib, fielded(206, `ETag: "a"`, fmt.Sprintf("Content-Range: bytes %d-%d/*", mib, end+1)), "content_range", Landing{}},
		{"last behind total", mib, fielded(206, `ETag: "a"`, fmt.Sprintf("Content-Range: bytes %d-%d/%d", mib, 4*mib, 4*mib)), "content_range", Landing{}},
		{"no Content-Range", mib, fielded(206, `ETag: "a"`, "Content-Length: 3145728"), "content_range", Landing{}},
		{"two Content-Ranges", mib, fielded(206, with(part(mib, end), fmt.Sprintf("Content-Range: bytes %d-%d/%d", mib, end, 4*mib))...), "content_range", Landing{}},
		{"other unit", mib, fielded(206, `ETag: "a"`, fmt.Sprintf("Content-Range: items %d-%d/%d", mib, end, 4*mib)), "content_range", Landing{}},
		{"unsatisfied form", mib, fielded(206, `ETag: "a"`, "Content-Range: bytes */4194304"), "content_range", Landing{}},
		{"sign", mib, fielded(206, `ETag: "a"`, fmt.Sprintf("Content-Range: bytes +%d-%d/%d", mib, end, 4*mib)), "content_range", Landing{}},
		{"spaces", mib, fielded(206, `ETag: "a"`, fmt.Sprintf("Content-Range: bytes %d - %d/%d", mib, end, 4*mib)), "content_range", Landing{}},
		{"two spaces", mib, fielded(206, `ETag: "a"`, fmt.Sprintf("Content-Range: bytes  %d-%d/%d", mib, end, 4*mib)), "content_range", Landing{}},
		{"overflow", mib, fielded(206, `ETag: "a"`, fmt.Sprintf("Content-Range: bytes %d-%d/99999999999999999999", mib, end)), "content_range", Landing{}},
		{"hexadecimal", mib, fielded(206, `ETag: "a"`, "Content-Range: bytes 0x100000-4194303/4194304"), "content_range", Landing{}},
		{"no last", mib, fielded(206, `ETag: "a"`, "Content-Range: bytes 1048576-/4194304"), "content_range", Landing{}},
		{"no total", mib, fielded(206, `ETag: "a"`, "Content-Range: bytes 1048576-4194303"), "content_range", Landing{}},
		{"backwards", mib, fielded(206, `ETag: "a"`, "Content-Range: bytes 4194303-1048576/4194304"), "content_range", Landing{}},
		{"length not that of the range", mib, fielded(206, `ETag: "a"`, "Content-Length: 5", fmt.Sprintf("Content-Range: bytes %d-%d/%d", mib, end, 4*mib)), "content_range", Landing{}},
		{"other ETag", mib, fielded(206, `ETag: "b"`, part(mib, end)[1], part(mib, end)[2]), "changed", Landing{}},
		{"weak ETag", mib, fielded(206, `ETag: W/"a"`, part(mib, end)[1], part(mib, end)[2]), "changed", Landing{}},
		{"ETag in other letters", mib, fielded(206, `ETag: "A"`, part(mib, end)[1], part(mib, end)[2]), "changed", Landing{}},
		{"two ETags", mib, fielded(206, with(part(mib, end), `ETag: "b"`)...), "changed", Landing{}},
		{"no ETag", mib, fielded(206, part(mib, end)[1:]...), "no_validator", Landing{}},
		{"encoded", mib, fielded(206, with(part(mib, end), "Content-Encoding: gzip")...), "encoded", Landing{}},
		{"multipart", mib, fielded(206, with(part(mib, end), "Content-Type: multipart/byteranges; boundary=x")...), "multipart", Landing{}},
		{"whole", mib, fielded(200, `ETag: "a"`, "Content-Length: 4194304"), "", Landing{Skip: mib, Until: 4 * mib, Whole: true}},
		{"whole, too much to skip", mib + 1, fielded(200, `ETag: "a"`, "Content-Length: 4194304"), "no_ranges", Landing{}},
		{"whole, other length", mib, fielded(200, `ETag: "a"`, "Content-Length: 4194305"), "changed", Landing{}},
		{"whole, unknown length", mib, fielded(200, `ETag: "a"`), "changed", Landing{}},
		{"whole, other ETag", mib, fielded(200, `ETag: "b"`, "Content-Length: 4194304"), "changed", Landing{}},
		{"whole, weak ETag", mib, fielded(200, `ETag: W/"a"`, "Content-Length: 4194304"), "changed", Landing{}},
		{"whole, no ETag", mib, fielded(200, "Content-Length: 4194304"), "changed", Landing{}},
		{"whole, encoded", mib, fielded(200, `ETag: "a"`, "Content-Length: 4194304", "Content-Encoding: br"), "encoded", Landing{}},
		{"203", mib, fielded(203, `ETag: "a"`, "Content-Length: 4194304"), "status", Landing{}},
		{"204", mib, fielded(204, `ETag: "a"`), "status", Landing{}},
		{"302", mib, fielded(302, `ETag: "a"`), "status", Landing{}},
		{"304", mib, fielded(304, `ETag: "a"`), "status", Landing{}},
		{"412", mib, fielded(412), "status", Landing{}},
		{"416", mib, fielded(416, "Content-Range: bytes */4194304"), "status", Landing{}},
	} {
		got, refusal := r.Accept(c.resp, c.at)
		assert.EqualValues(t, c.refusal, refusal, c.name)
		if refusal == "" {
			assert.Equal(t, c.want, got, c.name)
		}
	}

	// If the caller asked for a part, the representation ends where that part
	// ends.
	r = Representation{etag: `"a"`, First: 100, Last: 199, total: 1000}
	got, refusal := r.Accept(fielded(200, `ETag: "a"`, "Content-Length: 1000"), 150)
	assert.Empty(t, refusal)
	assert.Equal(t, Landing{Skip: 150, Until: 200, Whole: true}, got)
	_, refusal = r.Accept(fielded(206, `ETag: "a"`, "Content-Length: 100", "Content-Range: bytes 150-249/1000"), 150)
	assert.EqualValues(t, "content_range", refusal)

	r.total = -1
	_, refusal = r.Accept(fielded(206, `ETag: "a"`, "Content-Length: 50", "Content-Range: bytes 150-199/1000"), 150)
	assert.Empty(t, refusal)
	got, refusal = r.Accept(fielded(200, `ETag: "a"`, "Content-Length: 200"), 150)
	assert.Empty(t, refusal)
	assert.Equal(t, Landing{Skip: 150, Until: 200, Whole: true}, got)
	_, refusal = r.Accept(fielded(200, `ETag: "a"`, "Content-Length: 199"), 150)
	assert.EqualValues(t, "changed", refusal, "shorter than announced")
}

// FuzzAccept lets a server send any header fields. An accepted
// response must be exactly what was requested, by a reading of Content-Range
// other than the code's.
//
//retrip:promise P20
func FuzzAccept(f *testing.F) {
	f.Add(206, "bytes 10-99/100", `"a"`, "", "", int64(90), int64(10))
	f.Add(206, "bytes 0-99/*", `"a"`, "", "", int64(-1), int64(10))
	f.Add(200, "", `"a"`, "", "", int64(100), int64(10))
	f.Add(206, "bytes 10-99/100\x00", `W/"a"`, "gzip", "multipart/byteranges", int64(90), int64(99))
	f.Add(206, "bytes 9223372036854775807-9223372036854775807/*", `"a"`, "", "", int64(1), int64(99))
	f.Fuzz(func(t *testing.T, status int, contentRange, etag, encoding, contentType string, length, at int64) {
		r := Representation{etag: `"a"`, Last: 99, total: 100}
		at = min(max(at, 0), r.Last)
		resp := &http.Response{StatusCode: status, Header: http.Header{}, ContentLength: length}
		for name, v := range map[string]string{"Content-Range": contentRange, "Etag": etag, "Content-Encoding": encoding, "Content-Type": contentType} {
			if v != "" {
				resp.Header.Set(name, v)
			}
		}
		l, refusal := r.Accept(resp, at)
		if refusal != "" {
			return
		}
		require.Equal(t, `"a"`, etag)
		require.True(t, encoding == "" || strings.EqualFold(encoding, "identity"))
		require.False(t, strings.HasPrefix(strings.ToLower(contentType), "multipart/"))
		require.True(t, l.Skip >= 0 && l.Until > at && l.Until <= 100, "%+v", l)
		if status == 200 {
			require.Equal(t, Landing{Skip: at, Until: 100, Whole: true}, l)
			require.EqualValues(t, 100, length)
			return
		}
		require.Equal(t, 206, status)
		first := at - l.Skip
		require.Contains(t, []string{fmt.Sprintf("bytes %d-%d/100", first, l.Until-1), fmt.Sprintf("bytes %d-%d/*", first, l.Until-1)},
			strings.ToLower(contentRange))
		require.Equal(t, l.Until-first, length)
	})
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
	} {
		_, _, _, ok := contentRange(http.Header{"Content-Range": {value}})
		assert.False(t, ok, value)
	}
	_, _, _, ok := contentRange(nil)
	assert.False(t, ok)
}
