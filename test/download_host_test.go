// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"compress/gzip"
	"context"
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
			m := retrip.NewMetrics()
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

// A body that ends with its connection has no end that could be missing: net/http
// returns no error for half of it, and so nobody can tell.
func TestWholeBody_EndsWithItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		server := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked++
			conn, _, err := http.NewResponseController(w).Hijack()
			if !assert.NoError(t, err) {
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"+document[:20])
			conn.Close()
		}))
		got, err := fetch(t, &retrip.Transport{Base: server.Transport(), Policy: retrip.Policy{WholeBody: 1000, Resume: time.Minute}})
		require.NoError(t, err)
		assert.Equal(t, document[:20], string(got))
		assert.Equal(t, 1, asked)
	})
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
