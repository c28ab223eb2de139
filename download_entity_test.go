// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestResume_LyingServers: whatever a server answers to the request for the
// rest, the reader gets the representation that it began with, or an error
// after a part of it.
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
		{name: "two ETags", lie: func(r *http.Response) { r.Header.Add("ETag", `"b"`) }},
		{name: "ETag of the same letters without quotes", lie: set("ETag", "a")},
		{name: "no Content-Range", lie: del("Content-Range")},
		{name: "two Content-Ranges", lie: func(r *http.Response) { r.Header.Add("Content-Range", "bytes 0-1/2") }},
		{name: "Content-Range without total", lie: cr("bytes %d-%d", cut, size-1)},
		{name: "unknown total", lie: cr("bytes %d-%d/*", cut, size-1), good: true},
		{name: "another total", lie: cr("bytes %d-%d/%d", cut, size-1, size+1)},
		{name: "total smaller than the range", lie: cr("bytes %d-%d/%d", cut, size-1, cut)},
		{name: "another unit", lie: cr("pages %d-%d/%d", cut, size-1, size)},
		{name: "no unit", lie: cr("%d-%d/%d", cut, size-1, size)},
		{name: "signs", lie: cr("bytes +%d-%d/%d", cut, size-1, size)},
		{name: "spaces", lie: cr("bytes %d - %d / %d", cut, size-1, size)},
		{name: "leading zeros", lie: cr("bytes 0%d-%d/%d", cut, size-1, size)},
		{name: "overflow", lie: cr("bytes %d-99999999999999999999/%d", cut, size)},
		{name: "backwards", lie: cr("bytes %d-%d/%d", size-1, cut, size)},
		{name: "unsatisfied", lie: cr("bytes */%d", size)},
		{name: "empty Content-Range", lie: cr("")},
		{name: "begins later", lie: all(cr("bytes %d-%d/%d", cut+1, size-1, size), content(data[cut+1:]))},
		{name: "begins far too early", lie: all(cr("bytes %d-%d/%d", cut-64<<10-1, size-1, size), content(data[cut-64<<10-1:]))},
		{name: "begins at its block", lie: all(cr("bytes %d-%d/%d", 64<<10, size-1, size), content(data[64<<10:])), good: true},
		{name: "begins at 0", lie: all(cr("bytes 0-%d/%d", size-1, size), content(data))},
		{name: "ends before it helps", lie: all(cr("bytes 0-%d/%d", cut-1, size), content(data[:cut]))},
		{name: "ends beyond the end", lie: all(cr("bytes %d-%d/*", cut, size), content(append(bytes.Clone(data[cut:]), 0)))},
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
		{name: "200 of another entity without ETag", lie: all(whole, del("ETag"), content(other))},
		{name: "200 of another length", lie: all(whole, content(append(bytes.Clone(data), 0)))},
		{name: "200 of unknown length", lie: all(whole, func(r *http.Response) { r.ContentLength = -1 })},
		{name: "200 that is gzip", lie: all(whole, set("Content-Encoding", "gzip"))},
		{name: "200 of the same, little to skip", lie: whole, good: true},
		{name: "200 of the same, much to skip", lie: whole, at: 1<<20 + 1},
		{name: "206 of nothing", lie: func(r *http.Response) { r.Body = http.NoBody }},
		{name: "no body at all", lie: func(r *http.Response) { r.Body = nil }},
		{name: "204", lie: all(status(204), content(nil))},
		{name: "304", lie: all(status(304), content(nil))},
		{name: "302", lie: all(status(302), set("Location", "/other"), content(other[cut:]))},
		{name: "404", lie: all(status(404), content(other[cut:]))},
		{name: "412", lie: all(status(412), content(nil))},
		{name: "416", lie: all(status(416), cr("bytes */%d", size), content(nil))},
		{name: "416 that says that all is there", lie: all(status(416), cr("bytes */%d", cut), content(nil))},
		{name: "203", lie: all(status(203), content(other[cut:]))},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				at := cut
				if c.at > 0 {
					at = c.at
				}
				s := &store{etag: `"a"`, data: data, at: once(at, io.ErrUnexpectedEOF), lie: func(i int, resp *http.Response) {
					if i == 1 {
						c.lie(resp)
					}
				}}
				got, err := fetch(t, &Transport{Base: s, Policy: Policy{Resume: On}})
				if c.good {
					require.NoError(t, err)
					require.True(t, bytes.Equal(data, got))
					return
				}
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				require.True(t, bytes.Equal(data[:at], got), "%d bytes", len(got))
				require.LessOrEqual(t, len(s.asks), 2)
			})
		})
	}
}

// TestResume_EntityChanges replaces the entity at a random moment, on servers
// that understand If-Range and on servers that don't.
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
			base := roundTripperFunc(func(req *http.Request) (*http.Response, error) {
				if len(s.asks) == changes {
					s.etag, s.data = `"1"`, entities[1]
				}
				if deaf {
					req = req.Clone(req.Context())
					req.Header.Del("If-Range")
				}
				return s.RoundTrip(req)
			})
			got, err := fetch(t, &Transport{Base: base, Policy: Policy{Resume: On, Budget: Unlimited, MaxAttempts: 8}})
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
