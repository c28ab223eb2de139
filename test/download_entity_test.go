// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/resume"
	"github.com/retrip/retrip/internal/testenv"
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

// An error that a retry can't fix ends a body, and says so with both errors.
//
//retrip:promise P20
func TestResume_ErrorOfTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1000, cut(10))
		final := func(_ *http.Request, _ *http.Response, err error) retrip.Verdict {
			if err != nil && err != io.ErrUnexpectedEOF {
				return retrip.Final
			}
			return retrip.ByRule
		}
		told := toldBodies{t: t}
		tr := told.transport()
		tr.Policy, tr.Metrics = retrip.Policy{Resume: time.Minute, Classify: final}, &retrip.Metrics{}
		tr.Base = outOf(s, 1, play.Err(errors.New("x509: certificate has expired")))
		_, err := fetchIn(t, retrip.WithTrace(t.Context(), tr.Trace), tr)
		assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
		assert.EqualError(t, err, "retrip: gave up after 2 attempts: x509: certificate has expired; before that: unexpected EOF; retrip: the response body can't be continued at byte 10: error")
		told.check(download{want: resume.RefusedError}, tr)
	})
}

// TestResume_EntityChanges replaces the entity at a random moment, on servers
// that understand If-Range and on servers that don't.
//
//retrip:promise P20
func TestResume_EntityChanges(t *testing.T) {
	runs := 10_000
	if testing.Short() {
		runs = 500
	}
	synctest.Test(t, func(t *testing.T) {
		var whole, broken int
		for seed := range uint64(runs) {
			random := rand.New(rand.NewPCG(seed, 3))
			size := 1 + random.IntN(3000)
			entities := [][]byte{randomBytes(size, 2*seed), randomBytes(size, 2*seed+1)}
			changes, deaf := random.IntN(5), random.IntN(2) == 0
			s := &store{etag: `"0"`, data: entities[0], again: true, parts: []change{func(resp *http.Response) {
				if random.IntN(3) > 0 {
					breaks(int64(random.IntN(size)), []error{io.ErrUnexpectedEOF, reset}[random.IntN(2)])(resp)
				}
			}}}
			base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				if len(s.asks) == changes {
					s.etag, s.data = `"1"`, entities[1]
				}
				if deaf {
					req = req.Clone(req.Context())
					req.Header.Del("If-Range")
				}
				return s.RoundTrip(req)
			})
			got, err := fetch(t, &retrip.Transport{Base: base, Policy: retrip.Policy{Resume: time.Minute, Budget: retrip.Off, MaxAttempts: 8}})
			first := entities[0]
			if changes == 0 {
				first = entities[1]
			}
			require.True(t, bytes.HasPrefix(first, got), "seed %d", seed)
			if err == nil {
				whole++
				require.Len(t, got, size, "seed %d", seed)
			} else {
				broken++
			}
		}
		assert.Greater(t, whole, runs/4)
		assert.Greater(t, broken, runs/20)
	})
}

// TestResume_TrueRanges: a server answers every request with any part of a file,
// under any status. If its Content-Range says which part that is, no body is
// spliced.
//
//retrip:promise P20
func TestResume_TrueRanges(t *testing.T) {
	runs := 20_000
	if testing.Short() || testenv.Race {
		runs = 2000
	}
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(18, 206))
		coin := func() bool { return random.IntN(2) == 0 }
		const size = 1000
		data := file[:size]
		whole, broken := 0, 0
		for i := range runs {
			begins, served := 0, 0
			base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				from, to := 0, size
				if asked, ok := strings.CutPrefix(req.Header.Get("Range"), "bytes="); ok && random.IntN(3) > 0 {
					_, err := fmt.Sscanf(asked, "%d-%d", &from, &to)
					require.NoError(t, err)
					to++
				}
				if coin() {
					from = random.IntN(min(from+1, size-1) + 1)
					to = from + 1 + random.IntN(size-from)
				}
				resp := &http.Response{StatusCode: []int{200, 200, 206, 206, 203, 226}[random.IntN(6)], Header: http.Header{"Etag": {`"a"`}}, Request: req}
				if resp.StatusCode != 200 || to-from < size || coin() {
					resp.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%s", from, to-1, []string{"1000", "*"}[random.IntN(2)]))
				}
				if served++; served == 1 {
					begins = from
				}
				if content(data[from:to])(resp); coin() {
					cut(int64(random.IntN(to - from)))(resp)
				}
				return resp, nil
			})
			var header []string
			if coin() {
				first := random.IntN(size)
				header = []string{"Range", fmt.Sprintf("bytes=%d-%d", first, first+random.IntN(size-first))}
			}
			got, err := fetch(t, &retrip.Transport{Base: base, Policy: retrip.Policy{Resume: time.Minute, Budget: retrip.Off, MaxAttempts: 8}}, header...)
			require.True(t, bytes.HasPrefix(data[begins:], got), "run %d: another byte than that of its offset", i)
			if err == nil {
				whole++
			} else {
				broken++
			}
		}
		assert.Greater(t, whole, runs/10)
		assert.Greater(t, broken, runs/10)
	})
}

// Lengths that a float64 can't represent exactly, up to the largest: no number
// overflows, and the offsets are exact.
//
//retrip:promise P20
func TestResume_HugeLengths(t *testing.T) {
	for _, total := range []int64{1<<31 + 1, 1<<53 + 1, math.MaxInt64 - 1, math.MaxInt64} {
		for _, first := range []int64{0, total - 3000} {
			synctest.Test(t, func(t *testing.T) {
				var asks []string
				base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
					asks = append(asks, req.Header.Get("Range"))
					from := first + 100*int64(len(asks)-1)
					resp := &http.Response{StatusCode: 206, Request: req, Header: http.Header{
						"Etag": {`"a"`}, "Content-Range": {fmt.Sprintf("bytes %d-%d/%d", from, total-1, total)},
					}}
					if len(asks) == 1 && first == 0 {
						resp.StatusCode = 200
					}
					all(content(make([]byte, 101)), length(total-from), cut(100))(resp)
					return resp, nil
				})
				req := play.Request(t, http.MethodGet, nil)
				if first > 0 {
					req.Header.Set("Range", fmt.Sprintf("bytes=%d-", first))
				}
				m := &retrip.Metrics{}
				resp := do(t, &retrip.Transport{Base: base, Metrics: m, Policy: retrip.Policy{Resume: time.Minute}}, req)
				n, err := io.CopyN(io.Discard, resp.Body, 250)
				require.NoError(t, resp.Body.Close())
				if total == math.MaxInt64 { // the offset after the last byte must fit into an int64, too
					assert.EqualValues(t, 100, n)
					assert.Equal(t, 1, resumes(t, m, resume.RefusedContentRange))
					return
				}
				require.NoError(t, err)
				require.Len(t, asks, 3)
				assert.Equal(t, fmt.Sprintf("bytes=%d-%d", first+200, total-1), asks[2])
			})
		}
	}
}
