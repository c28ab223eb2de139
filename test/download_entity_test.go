// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/resume"
)

// TestResume_LyingServers: whatever a server answers to the request for the
// rest, the reader gets the representation that it began with, or an error
// after a part of it. Package resume has more forms of each lie.
//
//retrip:promise P20
func TestResume_LyingServers(t *testing.T) {
	const size, at = 300_000, 100_000
	other := randomBytes(size, 2)
	ranges := func(format string, args ...any) change { return set("Content-Range", fmt.Sprintf(format, args...)) }
	rows := []download{
		{name: "honest", want: continued},
		{name: "another entity under another ETag", then: []change{all(set("ETag", `"b"`), content(other[at:]))}, want: resume.RefusedChanged},
		{name: "another entity, and no ETag", then: []change{all(del("ETag"), content(other[at:]))}, want: resume.RefusedValidator},
		{name: "another entity under a weak ETag", then: []change{all(set("ETag", `W/"a"`), content(other[at:]))}, want: resume.RefusedChanged},
		{name: "ETag of the same letters without quotes", then: []change{set("ETag", "a")}, want: resume.RefusedChanged},
		{name: "no Content-Range", then: []change{del("Content-Range")}, want: resume.RefusedContentRange},
		{name: "unknown total", then: []change{ranges("bytes %d-%d/*", at, size-1)}, want: continued},
		{name: "no unit", then: []change{ranges("%d-%d/%d", at, size-1, size)}, want: resume.RefusedContentRange},
		{name: "begins later", then: []change{part(at+1, size)}, want: resume.RefusedContentRange},
		{name: "begins far too early", then: []change{part(at-64<<10-1, size)}, want: resume.RefusedContentRange},
		{name: "begins at its block", then: []change{part(64<<10, size)}, want: continued},
		{name: "begins at 0", then: []change{part(0, size)}, want: resume.RefusedContentRange},
		{name: "ends before it helps", then: []change{all(ranges("bytes 0-%d/%d", at-1, size), content(file[:at]))}, want: resume.RefusedContentRange},
		{name: "shorter range", then: []change{all(ranges("bytes %d-%d/%d", at, 2*at-1, size), content(file[at:2*at]))}, want: continued},
		{name: "length unlike the range", then: []change{content(file[at+1 : size])}, want: resume.RefusedContentRange},
		{name: "length unknown", then: []change{length(-1)}, want: resume.RefusedLength},
		{name: "chunked, and all of it from the start", then: []change{all(content(file[:size]), length(-1))}, want: resume.RefusedLength},
		{name: "more bytes than announced", then: []change{reads(func(r io.Reader) io.Reader { return io.MultiReader(r, strings.NewReader("more")) })}, want: continued},
		{name: "gzip", then: []change{set("Content-Encoding", "gzip")}, want: resume.RefusedEncoded},
		{name: "identity", then: []change{set("Content-Encoding", "identity")}, want: continued},
		{name: "decoded on the way", then: []change{func(r *http.Response) { r.Uncompressed = true }}, want: resume.RefusedEncoded},
		{name: "multipart/byteranges", then: []change{set("Content-Type", "multipart/byteranges; boundary=x")}, want: resume.RefusedMultipart},
		{name: "200 of another entity", then: []change{all(whole(size), set("ETag", `"b"`), content(other))}, want: resume.RefusedChanged},
		{name: "200 that is gzip", then: []change{all(whole(size), set("Content-Encoding", "gzip"))}, want: resume.RefusedEncoded},
		{name: "200 of the same, little to skip", then: []change{whole(size)}, want: continued},
		{name: "200 of the same, much to skip", size: 4 << 20, first: cut(1<<20 + 1), got: 1<<20 + 1, then: []change{whole(4 << 20)}, want: resume.RefusedRanges},
		{name: "206 of nothing", then: []change{func(r *http.Response) { r.Body = http.NoBody }}, want: resume.RefusedContentRange},
		{name: "no body at all", then: []change{func(r *http.Response) { r.Body = nil }}, want: resume.RefusedContentRange},
		{name: "204", then: []change{all(code(204), content(nil))}, want: resume.RefusedStatus},
		{name: "302", then: []change{all(code(302), set("Location", "/other"), content(other[at:]))}, want: resume.RefusedStatus},
		{name: "404", then: []change{all(code(404), content(other[at:]))}, want: resume.RefusedStatus},
		{name: "416", then: []change{all(code(416), ranges("bytes */%d", size), content(nil))}, want: resume.RefusedStatus},
	}
	for i := range rows {
		if d := &rows[i]; d.first == nil {
			d.size, d.first, d.got = size, cut(at), at
		}
	}
	runDownloads(t, rows)
}

// If nothing continues a body, its error ends with the word that hooks, metrics and log have.
//
//retrip:promise P20
func TestResume_ErrorNamesReason(t *testing.T) {
	noLength, final := length(-1), func(*http.Request) bool { return false }
	first := func(reason retrip.Reason, changes ...change) download {
		return download{first: all(append(changes, cut(500))...), asks: 1, want: reason}
	}
	rest := func(reason retrip.Reason, status int, changes ...change) download {
		return download{then: []change{all(changes...)}, want: reason, asks: 2, text: fmt.Sprintf("at byte 500: %s, in a response with status %d", reason, status)}
	}
	runDownloads(t, []download{
		{method: http.MethodPost, asks: 1, want: resume.RefusedMethod},
		first(resume.RefusedStatus, code(203)),
		first(resume.RefusedEncoded, set("Content-Encoding", "gzip")),
		first(resume.RefusedEncoded, func(r *http.Response) { r.Uncompressed = true }),
		first(resume.RefusedMultipart, set("Content-Type", "multipart/mixed")),
		first(resume.RefusedTrailers, func(r *http.Response) { r.Trailer = http.Header{"X": nil} }),
		first(resume.RefusedLength, noLength),
		first(resume.RefusedRanges, set("Accept-Ranges", "none")),
		first(resume.RefusedValidator, set("ETag", `W/"a"`)),
		first(resume.RefusedContentRange, set("Content-Range", "bytes 0-999/2000")),
		rest(resume.RefusedStatus, 404, code(404)),
		rest(resume.RefusedEncoded, 206, set("Content-Encoding", "gzip")),
		rest(resume.RefusedMultipart, 206, set("Content-Type", "multipart/byteranges")),
		rest(resume.RefusedLength, 206, noLength),
		rest(resume.RefusedValidator, 206, del("ETag")),
		rest(resume.RefusedContentRange, 206, set("Content-Range", "bytes 11-999/1000")),
		rest(resume.RefusedChanged, 206, set("ETag", `"b"`)),
		rest(retrip.ReasonWaitTooLong, 503, answer(503, "Retry-After: 86400")),
		{policy: retrip.Policy{MaxAttempts: 9, Budget: retrip.Off}, first: cut(0), again: true, got: -1, want: resume.RefusedProgress, text: "at byte 0: no_progress, 5"},
		{policy: retrip.Policy{MaxAttempts: 1}, want: retrip.ReasonMaxAttempts},
		{policy: retrip.Policy{Idempotent: final}, want: retrip.ReasonNotIdempotent},
		{policy: retrip.Policy{Idempotent: final, IdempotencyKey: retrip.On}, want: retrip.ReasonNotIdempotent},
	})
}
