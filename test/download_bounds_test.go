// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/resume"
	"github.com/retrip/retrip/internal/testenv"
)

// Any progress starts the count of attempts and the time of Resume again, so a line
// that always breaks finishes. A host that answers and breaks without a byte is asked
// less and less often, until the time of Resume is over.
//
//retrip:promise P20
func TestResume_Attempts(t *testing.T) {
	for _, c := range []struct {
		name   string
		most   int
		size   int
		parts  []int // where each part breaks; the last one repeats
		down   int   // number of first responses that are 503
		asks   int   // at most
		got    int
		longer bool // than the time of Resume
	}{
		{name: "each byte", most: 2, size: 3000, parts: []int{1}, asks: 3000, got: 3000, longer: true},
		{name: "each KiB", most: 2, size: 256 << 10, parts: []int{1 << 10}, asks: 256, got: 256 << 10},
		{name: "each 64 KiB", most: 4, size: 4 << 20, parts: []int{64 << 10}, asks: 64, got: 4 << 20},
		{name: "attempts before the headers count", most: 3, size: 100, parts: []int{0, 10}, down: 1, asks: 11, got: 100},
		{name: "without a byte, then with", most: 10, size: 100, parts: []int{10, 0, 0, 0, 0, 0, 0, 100}, asks: 8, got: 100},
		{name: "never a byte", most: 4, size: 100, parts: []int{0}, asks: 17, got: 0},
		{name: "never a byte, many attempts", most: 1000, size: 100, parts: []int{0}, asks: 17, got: 0},
		{name: "no more bytes", most: 4, size: 100, parts: []int{10, 20, 0}, asks: 19, got: 30},
	} {
		bubble(t, c.name, func(t *testing.T) {
			s := &store{etag: `"a"`, data: randomBytes(c.size, 1), at: func(i int) (int, error) {
				return c.parts[min(i, len(c.parts)-1)], io.ErrUnexpectedEOF
			}, lie: func(i int, resp *http.Response) {
				if i < c.down {
					resp.StatusCode, resp.Body = 503, http.NoBody
				}
			}}
			m, began := &retrip.Metrics{}, time.Now()
			policy := retrip.Policy{Resume: time.Minute, MaxAttempts: c.most, Backoff: retrip.Backoff{Jitter: retrip.EqualJitter}}
			got, err := fetch(t, &retrip.Transport{Base: s, Metrics: m, Policy: policy})
			assert.Len(t, got, c.got)
			assert.True(t, bytes.HasPrefix(s.data, got))
			assert.LessOrEqual(t, len(s.asks), c.asks)
			took := time.Since(began)
			if c.got == c.size {
				require.NoError(t, err)
				assert.Equal(t, c.longer, took > time.Minute, took)
				return
			}
			assert.ErrorContains(t, err, ": no_progress, ")
			assert.ErrorContains(t, err, " after the last byte")
			assert.Equal(t, 1, resumes(t, m, resume.RefusedProgress))
			assert.Greater(t, took, 50*time.Second)
			assert.LessOrEqual(t, took, time.Minute+time.Second)
		})
	}
}

// A server may send the whole representation again only if nothing has been
// discarded before, so once. Over all continuations, at most as many bytes as
// the body has may be discarded.
//
//retrip:promise P20
func TestResume_Skips(t *testing.T) {
	type part struct {
		from   int64 // where the response begins; -1 means a 200
		breaks int   // after this many bytes of it
	}
	for _, c := range []struct {
		name, ranged string
		parts        []part
		refused      retrip.Reason
	}{
		{name: "all, once", parts: []part{{0, 100}, {-1, 200}, {200, 1000}}},
		{name: "all, twice", parts: []part{{0, 100}, {-1, 200}, {-1, 1000}}, refused: resume.RefusedRanges},
		{name: "all, twice, with nothing to skip", parts: []part{{0, 0}, {-1, 0}, {-1, 1000}}},
		{name: "all, then a block", parts: []part{{0, 100}, {-1, 200}, {150, 1000}}},
		{name: "a block, then all", parts: []part{{0, 100}, {50, 100}, {-1, 1000}}, refused: resume.RefusedRanges},
		{name: "as much as there is", parts: []part{{0, 600}, {0, 700}, {300, 1000}}},
		{name: "a byte more", parts: []part{{0, 600}, {0, 700}, {299, 1000}}, refused: resume.RefusedCost},
		{name: "as much as there is of a part", ranged: "bytes=1000-", parts: []part{{1000, 600}, {1000, 700}, {1300, 1000}}},
		{name: "a byte more than of a part", ranged: "bytes=1000-", parts: []part{{1000, 600}, {1000, 700}, {1299, 1000}}, refused: resume.RefusedCost},
	} {
		bubble(t, c.name, func(t *testing.T) {
			size := 1000
			var header []string
			if c.ranged != "" {
				size, header = 2000, []string{"Range", c.ranged}
			}
			data := randomBytes(size, 1)
			s := &store{etag: `"a"`, data: data}
			s.lie = func(i int, resp *http.Response) {
				p := c.parts[i]
				if from := max(0, p.from); i > 0 {
					resp.StatusCode, resp.ContentLength, resp.Body = 206, int64(size)-from, io.NopCloser(bytes.NewReader(data[from:]))
					resp.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, size-1, size))
					if p.from < 0 {
						resp.StatusCode = 200
					}
				}
				resp.Body = io.NopCloser(ending(t.Context(), io.LimitReader(resp.Body, int64(p.breaks)), io.ErrUnexpectedEOF))
			}
			m := &retrip.Metrics{}
			got, err := fetch(t, &retrip.Transport{Base: s, Metrics: m, Policy: retrip.Policy{Resume: time.Minute}}, header...)
			require.Len(t, s.asks, 3)
			for i, b := range s.given {
				assert.EqualValues(t, 1, b.Closed.Load(), "response %d", i)
			}
			if c.refused == "" {
				require.NoError(t, err)
				assert.True(t, bytes.Equal(data[size-1000:], got))
				return
			}
			assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
			assert.Equal(t, 1, resumes(t, m, c.refused))
		})
	}
}

// A body fails with its own error and that of the caller's context, each once,
// even if the caller's deadline passes while the break is handled.
func TestResume_ErrorHasBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s := &store{etag: `"a"`, data: randomBytes(1000, 1), at: once(500, context.Canceled)}
		slow := func(*http.Request) bool {
			time.Sleep(time.Duration(len(s.asks)) * time.Minute)
			return true
		}
		tr := &retrip.Transport{Base: s, Policy: retrip.Policy{Resume: time.Minute, Idempotent: slow}}
		resp := do(t, tr, play.Request(t, http.MethodGet, nil).WithContext(ctx))
		_, err := io.ReadAll(resp.Body)
		assert.ErrorIs(t, err, context.Canceled)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, resp.Body.Close())
	})
}

// With BodyIdleTimeout off, nothing is watched, wherever the body is read.
func TestBodyIdle_Off(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peek := func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
			if resp != nil {
				_, _ = retrip.Peek(resp, 10)
			}
			return retrip.ByRule
		}
		data := randomBytes(1000, 1)
		s := &store{etag: `"a"`, data: data, at: once(500, syscall.ECONNRESET), lie: func(_ int, resp *http.Response) {
			body := resp.Body
			resp.Body = io.NopCloser(testenv.Reader(func(p []byte) (int, error) {
				time.Sleep(time.Hour)
				return body.Read(p)
			}))
		}}
		tr := &retrip.Transport{Base: s, Policy: retrip.Policy{BodyIdleTimeout: time.Second}, Hosts: map[string]retrip.Policy{"example.com": {Resume: 24 * time.Hour, BodyIdleTimeout: retrip.Off, Classify: peek}}}
		got, err := fetch(t, tr)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(data, got))
	})
}

// If no attempt is left for a body that had to be whole, the caller gets the last response
// with the part that arrived, and the error that broke it. Its request has been given up,
// so nothing continues it.
//
//retrip:promise P20
func TestWholeBody_OutOfAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, p := range []retrip.Policy{{}, {Resume: time.Minute}} {
			s := &store{etag: `"a"`, data: randomBytes(1000, 1), at: func(int) (int, error) { return 500, syscall.ECONNRESET }}
			p.WholeBody, p.MaxAttempts = 2000, 3
			m := &retrip.Metrics{}
			got, err := fetch(t, &retrip.Transport{Base: s, Metrics: m, Policy: p})
			assert.Equal(t, syscall.ECONNRESET, err)
			assert.Equal(t, s.data[:500], got)
			assert.Len(t, s.asks, 3)
			assert.Zero(t, gather(t, m)["default"]["body_resumes_total"])
		}
	})
}

// A continuation obeys what its host has asked for and what the host's breaker
// and the caller's deadline allow, as any retry does.
//
//retrip:promise P20
func TestResume_ObeysItsHost(t *testing.T) {
	for _, c := range []struct {
		name     string
		policy   retrip.Policy
		status   int    // of the answers between the break and the rest, if there are any
		after    string // their Retry-After
		failures int
		paused   string // Retry-After that another request gets before the break
		deadline time.Duration
		reason   retrip.Reason
		took     time.Duration // at least
		most     time.Duration // if not 0
	}{
		{name: "429", status: 429, after: "7", failures: 1, reason: continued, took: 7 * time.Second},
		{name: "429 that names no time", status: 429, failures: 1, reason: continued},
		{name: "500", status: 500, failures: 2, reason: continued},
		{name: "a pause", paused: "20", reason: continued, took: 20 * time.Second},
		{name: "a pause at the gate", policy: retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}}, paused: "20", reason: continued, took: 20 * time.Second},
		{name: "a pause that is too long", policy: retrip.Policy{MaxWait: 5 * time.Second}, paused: "20", reason: retrip.ReasonHostPaused, most: time.Second},
		{name: "a breaker that opens", policy: retrip.Policy{Breaker: retrip.Breaker{Ratio: 0.5, MinVolume: 3, OpenFor: time.Hour}}, status: 503, failures: 10, reason: resume.RefusedProgress, took: 50 * time.Second},
		{name: "a breaker that closes", policy: retrip.Policy{Breaker: retrip.Breaker{Ratio: 0.5, MinVolume: 3, OpenFor: 7 * time.Second}}, status: 503, failures: 4, reason: continued, took: 7 * time.Second},
		{name: "no time left", status: 503, after: "7", failures: 1, deadline: 5 * time.Second, reason: retrip.ReasonDeadline, most: time.Second},
	} {
		bubble(t, c.name, func(t *testing.T) {
			s := &store{etag: `"a"`, data: randomBytes(1000, 1), at: once(500, syscall.ECONNRESET)}
			s.lie = func(i int, resp *http.Response) {
				if 1 <= i && i <= c.failures {
					resp.StatusCode, resp.Body, resp.Header = c.status, http.NoBody, http.Header{}
					if c.after != "" {
						resp.Header.Set("Retry-After", c.after)
					}
				}
			}
			base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				if req.URL.Path == "/other" {
					return &http.Response{StatusCode: 503, Header: http.Header{"Retry-After": {c.paused}}, Body: http.NoBody}, nil
				}
				return s.RoundTrip(req)
			})
			c.policy.Resume, c.policy.Budget, c.policy.MaxAttempts = time.Minute, retrip.Off, 10
			m := &retrip.Metrics{}
			tr := &retrip.Transport{Base: base, Metrics: m, Policy: c.policy}
			ctx, cancel := context.WithCancel(t.Context())
			if c.deadline > 0 {
				ctx, cancel = context.WithTimeout(ctx, c.deadline)
			}
			defer cancel()
			resp := do(t, tr, play.Request(t, http.MethodGet, nil).WithContext(ctx))
			defer resp.Body.Close()
			if c.paused != "" {
				ctx := retrip.WithPolicy(t.Context(), retrip.Policy{MaxAttempts: 1, MaxWait: time.Minute})
				other, err := tr.RoundTrip(play.Must(http.NewRequestWithContext(ctx, http.MethodGet, "http://example.com/other", nil)))
				require.NoError(t, err)
				require.NoError(t, other.Body.Close())
			}
			began := time.Now()
			got, err := io.ReadAll(resp.Body)
			took := time.Since(began)
			assert.Equal(t, 1, resumes(t, m, c.reason))
			assert.GreaterOrEqual(t, took, c.took)
			if c.most > 0 {
				assert.LessOrEqual(t, took, c.most)
			}
			if c.reason == continued {
				require.NoError(t, err)
				assert.True(t, bytes.Equal(s.data, got))
			} else {
				assert.ErrorIs(t, err, syscall.ECONNRESET)
			}
		})
	}
}

// WholeBody counts decoded bytes: what the reader would get.
//
//retrip:promise P20
func TestWholeBody_Decoded(t *testing.T) {
	document := strings.Repeat("a compressible document ", 200)
	for limit, asked := range map[int64]int32{1000: 1, 2000: 1, 2500: 2, 10_000: 2} {
		synctest.Test(t, func(t *testing.T) {
			var n atomic.Int32
			server := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Encoding", "gzip")
				z := gzip.NewWriter(w)
				_, _ = io.WriteString(z, document[:2400])
				_ = z.Flush()
				if n.Add(1) == 1 {
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				}
				_, _ = io.WriteString(z, document[2400:])
				_ = z.Close()
			}))
			got, err := fetch(t, &retrip.Transport{Base: server.Transport(), Policy: retrip.Policy{WholeBody: limit}})
			assert.Equal(t, asked, n.Load(), "%d", limit)
			if asked == 2 {
				require.NoError(t, err)
				assert.Equal(t, document, string(got))
			} else {
				assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
				assert.Equal(t, document[:2400], string(got))
			}
		})
	}
}

// While nothing breaks, no goroutine looks after a body.
func TestResume_NoGoroutine(t *testing.T) {
	tr := &retrip.Transport{Base: &zerosBase{size: 1 << 20}, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Minute}}
	before := runtime.NumGoroutine()
	resp := do(t, tr, play.Request(t, http.MethodGet, nil))
	for range 100 {
		_, err := resp.Body.Read(make([]byte, 100))
		require.NoError(t, err)
		require.LessOrEqual(t, runtime.NumGoroutine(), before)
	}
	require.NoError(t, resp.Body.Close())
}
