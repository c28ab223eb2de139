// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"
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
	const size, cut = 4 << 20, 100_000
	data, other := randomBytes(size, 1), randomBytes(size, 2)
	set := func(name, value string) func(*http.Response) {
		return func(resp *http.Response) { resp.Header.Set(name, value) }
	}
	content := func(b []byte) func(*http.Response) {
		return func(resp *http.Response) {
			resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		}
	}
	all := func(lies ...func(*http.Response)) func(*http.Response) {
		return func(resp *http.Response) {
			for _, lie := range lies {
				lie(resp)
			}
		}
	}
	status := func(n int) func(*http.Response) {
		return func(resp *http.Response) { resp.StatusCode, resp.Status = n, strconv.Itoa(n) }
	}
	del := func(name string) func(*http.Response) { return func(resp *http.Response) { resp.Header.Del(name) } }
	cr := func(format string, args ...any) func(*http.Response) {
		return set("Content-Range", fmt.Sprintf(format, args...))
	}
	whole := all(status(200), del("Content-Range"), content(data))
	for _, c := range []struct {
		name string
		lie  func(*http.Response)
		good bool // the body arrives whole nevertheless
		at   int  // offset at which the first response breaks, instead of cut
	}{
		{name: "honest", lie: func(*http.Response) {}, good: true},
		{name: "another entity under another ETag", lie: all(set("ETag", `"b"`), content(other[cut:]))},
		{name: "another entity, and no ETag", lie: all(del("ETag"), content(other[cut:]))},
		{name: "another entity under a weak ETag", lie: all(set("ETag", `W/"a"`), content(other[cut:]))},
		{name: "ETag of the same letters without quotes", lie: set("ETag", "a")},
		{name: "no Content-Range", lie: del("Content-Range")},
		{name: "unknown total", lie: cr("bytes %d-%d/*", cut, size-1), good: true},
		{name: "no unit", lie: cr("%d-%d/%d", cut, size-1, size)},
		{name: "begins later", lie: all(cr("bytes %d-%d/%d", cut+1, size-1, size), content(data[cut+1:]))},
		{name: "begins far too early", lie: all(cr("bytes %d-%d/%d", cut-64<<10-1, size-1, size), content(data[cut-64<<10-1:]))},
		{name: "begins at its block", lie: all(cr("bytes %d-%d/%d", 64<<10, size-1, size), content(data[64<<10:])), good: true},
		{name: "begins at 0", lie: all(cr("bytes 0-%d/%d", size-1, size), content(data))},
		{name: "ends before it helps", lie: all(cr("bytes 0-%d/%d", cut-1, size), content(data[:cut]))},
		{name: "shorter range", lie: all(cr("bytes %d-%d/%d", cut, 2*cut-1, size), content(data[cut:2*cut])), good: true},
		{name: "length unlike the range", lie: content(data[cut+1:])},
		{name: "length unknown", lie: func(r *http.Response) { r.ContentLength = -1 }},
		{name: "chunked, and all of it from the start", lie: all(content(data), func(r *http.Response) { r.ContentLength = -1 })},
		{name: "more bytes than announced", lie: func(r *http.Response) {
			r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(data[cut:]), strings.NewReader("more")))
		}, good: true},
		{name: "gzip", lie: set("Content-Encoding", "gzip")},
		{name: "identity", lie: set("Content-Encoding", "identity"), good: true},
		{name: "decoded on the way", lie: func(r *http.Response) { r.Uncompressed = true }},
		{name: "multipart/byteranges", lie: set("Content-Type", "multipart/byteranges; boundary=x")},
		{name: "200 of another entity", lie: all(whole, set("ETag", `"b"`), content(other))},
		{name: "200 that is gzip", lie: all(whole, set("Content-Encoding", "gzip"))},
		{name: "200 of the same, little to skip", lie: whole, good: true},
		{name: "200 of the same, much to skip", lie: whole, at: 1<<20 + 1},
		{name: "206 of nothing", lie: func(r *http.Response) { r.Body = http.NoBody }},
		{name: "no body at all", lie: func(r *http.Response) { r.Body = nil }},
		{name: "204", lie: all(status(204), content(nil))},
		{name: "302", lie: all(status(302), set("Location", "/other"), content(other[cut:]))},
		{name: "404", lie: all(status(404), content(other[cut:]))},
		{name: "416", lie: all(status(416), cr("bytes */%d", size), content(nil))},
	} {
		bubble(t, c.name, func(t *testing.T) {
			at := cut
			if c.at > 0 {
				at = c.at
			}
			s := &store{etag: `"a"`, data: data, at: once(at, io.ErrUnexpectedEOF), lie: func(i int, resp *http.Response) {
				if i == 1 {
					c.lie(resp)
				}
			}}
			got, err := fetch(t, &retrip.Transport{Base: s, Policy: retrip.Policy{Resume: time.Minute}})
			if c.good {
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, got))
				return
			}
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			require.True(t, bytes.Equal(data[:at], got), "%d bytes", len(got))
			require.LessOrEqual(t, len(s.asks), 2)
		})
	}
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
			s := &store{etag: `"0"`, data: entities[0]}
			s.at = func(i int) (int, error) {
				if random.IntN(3) == 0 {
					return -1, nil
				}
				return random.IntN(size), []error{io.ErrUnexpectedEOF, syscall.ECONNRESET}[random.IntN(2)]
			}
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
			if err == nil {
				whole++
				require.True(t, bytes.Equal(first, got), "seed %d", seed)
			} else {
				broken++
				require.True(t, bytes.HasPrefix(first, got), "seed %d", seed)
			}
		}
		assert.Greater(t, whole, runs/4)
		assert.Greater(t, broken, runs/20)
	})
}

// TestResume_ErrorNamesReason: if nothing continues a body, its error ends with
// the word that hooks, metrics and log have.
//
//retrip:promise P20
func TestResume_ErrorNamesReason(t *testing.T) {
	set := func(name, value string) func(*http.Response) {
		return func(resp *http.Response) { resp.Header.Set(name, value) }
	}
	status := func(n int) func(*http.Response) { return func(resp *http.Response) { resp.StatusCode = n } }
	often := func(int) (int, error) { return 0, io.ErrUnexpectedEOF }
	at10 := "unexpected EOF; retrip: the response body can't be continued at byte 10: "
	for _, c := range []struct {
		reason retrip.Reason
		policy retrip.Policy
		method string
		at     func(int) (int, error)
		first  func(*http.Response) // changes the first response
		lie    func(*http.Response) // changes the others
		fails  error                // instead of other responses
		text   string
	}{
		{reason: resume.RefusedMethod, method: http.MethodPost, text: at10 + "method"},
		{reason: resume.RefusedStatus, first: status(203), text: at10 + "status"},
		{reason: resume.RefusedEncoded, first: set("Content-Encoding", "gzip"), text: at10 + "encoded"},
		{reason: resume.RefusedEncoded, first: func(r *http.Response) { r.Uncompressed = true }, text: at10 + "encoded"},
		{reason: resume.RefusedMultipart, first: set("Content-Type", "multipart/mixed"), text: at10 + "multipart"},
		{reason: resume.RefusedTrailers, first: func(r *http.Response) { r.Trailer = http.Header{"X": nil} }, text: at10 + "trailers"},
		{reason: resume.RefusedLength, first: func(r *http.Response) { r.ContentLength = -1 }, text: at10 + "unknown_length"},
		{reason: resume.RefusedRanges, first: set("Accept-Ranges", "none"), text: at10 + "no_ranges"},
		{reason: resume.RefusedValidator, first: set("ETag", `W/"a"`), text: at10 + "no_validator"},
		{reason: resume.RefusedValidator, first: func(r *http.Response) { r.Header.Del("ETag") }, text: at10 + "no_validator"},
		{reason: resume.RefusedContentRange, first: set("Content-Range", "bytes 0-999/2000"), text: at10 + "content_range"},

		{reason: resume.RefusedStatus, lie: status(404), text: at10 + "status, in a response with status 404"},
		{reason: resume.RefusedEncoded, lie: set("Content-Encoding", "gzip"), text: at10 + "encoded, in a response with status 206"},
		{reason: resume.RefusedMultipart, lie: set("Content-Type", "multipart/byteranges"), text: at10 + "multipart, in a response with status 206"},
		{reason: resume.RefusedLength, lie: func(r *http.Response) { r.ContentLength = -1 }, text: at10 + "unknown_length, in a response with status 206"},
		{reason: resume.RefusedValidator, lie: func(r *http.Response) { r.Header.Del("ETag") }, text: at10 + "no_validator, in a response with status 206"},
		{reason: resume.RefusedContentRange, lie: set("Content-Range", "bytes 11-999/1000"), text: at10 + "content_range, in a response with status 206"},
		{reason: resume.RefusedChanged, lie: set("ETag", `"b"`), text: at10 + "changed, in a response with status 206"},

		{reason: resume.RefusedProgress, policy: retrip.Policy{MaxAttempts: 9, Budget: retrip.Off}, at: often, text: "unexpected EOF; retrip: the response body can't be continued at byte 0: no_progress, 50s after the last byte"},
		{reason: resume.RefusedError, fails: errors.New("x509: certificate has expired"), policy: retrip.Policy{Classify: finalError},
			text: "retrip: gave up after 2 attempts: x509: certificate has expired; before that: unexpected EOF; retrip: the response body can't be continued at byte 10: error"},
		{reason: retrip.ReasonMaxAttempts, policy: retrip.Policy{MaxAttempts: 1}, text: at10 + "max_attempts"},
		{reason: retrip.ReasonNotIdempotent, policy: retrip.Policy{Idempotent: func(*http.Request) bool { return false }}, text: at10 + "not_idempotent"},
		{reason: retrip.ReasonNotIdempotent, policy: retrip.Policy{Idempotent: func(*http.Request) bool { return false }, IdempotencyKey: retrip.On}, text: at10 + "not_idempotent"},
		{reason: retrip.ReasonWaitTooLong, lie: func(r *http.Response) { r.StatusCode = 503; r.Header.Set("Retry-After", "86400") }, text: at10 + "wait_too_long, in a response with status 503"},
	} {
		bubble(t, c.text, func(t *testing.T) {
			s := &store{etag: `"a"`, data: randomBytes(1000, 1), at: c.at, lie: func(i int, resp *http.Response) {
				switch {
				case i == 0 && c.first != nil:
					c.first(resp)
				case i > 0 && c.lie != nil:
					c.lie(resp)
				}
			}}
			if s.at == nil {
				s.at = once(10, io.ErrUnexpectedEOF)
			}
			base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				if c.fails != nil && len(s.asks) > 0 {
					return nil, c.fails
				}
				return s.RoundTrip(req)
			})
			var log bytes.Buffer
			var told []retrip.Reason
			m := &retrip.Metrics{}
			c.policy.Resume = time.Minute
			tr := &retrip.Transport{Base: base, Metrics: m, Policy: c.policy, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				Trace: &retrip.Trace{Resume: func(e retrip.Event) { told = append(told, e.Reason) }}}
			resp := do(t, tr, play.Must(http.NewRequest(cmp.Or(c.method, http.MethodGet), "http://example.com/", nil)))
			got, err := readAll(t, resp)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			assert.True(t, bytes.HasPrefix(s.data, got))
			if c.lie == nil && c.at == nil {
				assert.Len(t, got, 10)
				assert.Len(t, s.asks, 1)
			}
			assert.Equal(t, c.text, waited.ReplaceAllString(err.Error(), ", 50s after"))
			assert.Equal(t, c.reason, told[len(told)-1])
			assert.Equal(t, 1, resumes(t, m, c.reason))
			assert.Contains(t, log.String(), "reason="+string(c.reason)+" ")
		})
	}
}

// waited matches how long a body waited that gave up within the last seconds of Resume.
var waited = regexp.MustCompile(`, 5\d[.\d]*s after`)

// finalError forbids a retry after an error that isn't the break of a body.
func finalError(_ *http.Request, _ *http.Response, err error) retrip.Verdict {
	if err != nil && err != io.ErrUnexpectedEOF {
		return retrip.Final
	}
	return retrip.ByRule
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
		const size = 1000
		data := randomBytes(size, 1)
		whole, cut := 0, 0
		for i := range runs {
			begins, served := 0, 0
			base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				from, to := 0, size
				if asked, ok := strings.CutPrefix(req.Header.Get("Range"), "bytes="); ok && random.IntN(3) > 0 {
					_, err := fmt.Sscanf(asked, "%d-%d", &from, &to)
					require.NoError(t, err)
					to++
				}
				if random.IntN(2) == 0 {
					from = random.IntN(min(from+1, size-1) + 1)
					to = from + 1 + random.IntN(size-from)
				}
				resp := &http.Response{StatusCode: []int{200, 200, 206, 206, 203, 226}[random.IntN(6)], Header: http.Header{"Etag": {`"a"`}}, Request: req, ContentLength: int64(to - from)}
				if resp.StatusCode != 200 || to-from < size || random.IntN(2) == 0 {
					resp.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%s", from, to-1, []string{"1000", "*"}[random.IntN(2)]))
				}
				if served++; served == 1 {
					begins = from
				}
				resp.Body = io.NopCloser(bytes.NewReader(data[from:to]))
				if random.IntN(2) == 0 {
					resp.Body = io.NopCloser(ending(req.Context(), bytes.NewReader(data[from:from+random.IntN(to-from)]), io.ErrUnexpectedEOF))
				}
				return resp, nil
			})
			var header []string
			if random.IntN(2) == 0 {
				first := random.IntN(size)
				header = []string{"Range", fmt.Sprintf("bytes=%d-%d", first, first+random.IntN(size-first))}
			}
			got, err := fetch(t, &retrip.Transport{Base: base, Policy: retrip.Policy{Resume: time.Minute, Budget: retrip.Off, MaxAttempts: 8}}, header...)
			require.True(t, bytes.HasPrefix(data[begins:], got), "run %d: another byte than that of its offset", i)
			if err == nil {
				whole++
			} else {
				cut++
			}
		}
		assert.Greater(t, whole, runs/10)
		assert.Greater(t, cut, runs/10)
	})
}
