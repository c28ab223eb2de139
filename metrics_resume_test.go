// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// cuts is a base whose entity changes now and then, and whose bodies break,
// stall and lie. It counts for itself what happens.
type cuts struct {
	*traffic
	version atomic.Int64
}

// entity returns the content of a version. No two versions have the same byte
// at the same offset.
func entity(version int64) []byte {
	b := make([]byte, 3000)
	for i := range b {
		b[i] = byte(int64(i)*7 + version)
	}
	return b
}

func (c *cuts) RoundTrip(req *http.Request) (*http.Response, error) {
	r := req.Context().Value(rideKey{}).(*ride)
	if r.attempts++; r.attempts > 1 {
		c.count(r.policy, "retries_total", 1)
	}
	c.count(r.policy, "attempts_total", 1)
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
		req.Body.Close()
	}
	time.Sleep(time.Duration(r.random.IntN(100)) * time.Millisecond)
	switch r.random.IntN(24) {
	case 0:
		return nil, syscall.ECONNREFUSED
	case 1:
		return nil, http.ErrSchemeMismatch
	case 2:
		<-req.Context().Done()
		return nil, req.Context().Err()
	case 3:
		if r.random.IntN(3) == 0 {
			panic(errPanic)
		}
		return nil, nil
	}
	version := c.version.Load()
	if r.random.IntN(200) == 0 {
		version = c.version.Add(1)
	}
	rec := httptest.NewRecorder()
	rec.Header().Set("ETag", fmt.Sprintf(`"%d"`, version))
	if r.random.IntN(8) == 0 {
		rec.Header().Del("ETag")
	}
	rec.Header().Set("Content-Type", "application/octet-stream")
	asked := req
	if r.random.IntN(4) == 0 {
		// The server ignores If-Range, and perhaps Range.
		asked = req.Clone(req.Context())
		asked.Header.Del("If-Range")
		if r.random.IntN(2) == 0 {
			asked.Header.Del("Range")
		}
	}
	http.ServeContent(rec, asked, "", time.Time{}, bytes.NewReader(entity(version)))
	resp := rec.Result()
	resp.Header.Set("Version", strconv.FormatInt(version, 10))
	resp.ContentLength, _ = strconv.ParseInt(resp.Header.Get("Content-Length"), 10, 64)
	switch r.random.IntN(16) {
	case 0:
		resp.StatusCode = 503
		resp.Header.Set("Retry-After", fmt.Sprint(r.random.IntN(3)))
	case 1:
		resp.StatusCode = 429
	case 2:
		resp.StatusCode = 404
	case 3:
		resp.Header.Del("Content-Range")
	case 4:
		resp.ContentLength = -1
	}
	resp.Body = &cutBody{
		Reader: io.LimitReader(resp.Body, r.random.Int64N(4000)), ctx: req.Context(), closed: make(chan struct{}),
		err: []error{nil, io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET}[r.random.IntN(4)],
	}
	return resp, nil
}

// cutBody is a body that ends with an error, or stalls if there is none.
type cutBody struct {
	io.Reader
	ctx    context.Context
	err    error
	once   sync.Once
	closed chan struct{}
}

func (b *cutBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p[:min(len(p), 500)])
	if err != io.EOF {
		return n, err
	}
	if b.err == nil {
		select {
		case <-b.ctx.Done():
			return n, b.ctx.Err()
		case <-b.closed:
			return n, http.ErrBodyReadAfterClose
		}
	}
	return n, b.err
}

func (b *cutBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// settings returns a random policy.
func (c *cuts) settings(random *rand.Rand) retrip.Policy {
	p := c.policy(random)
	p.Backoff = retrip.Backoff{Base: time.Millisecond, Cap: 5 * time.Millisecond}
	if random.IntN(4) > 0 {
		p.Breaker, p.Gate, p.Budget = retrip.Breaker{}, retrip.Gate{}, retrip.Unlimited
	}
	if random.IntN(4) > 0 {
		p.Resume = time.Minute
	}
	if random.IntN(3) > 0 {
		p.BodyIdleTimeout = 200 * time.Millisecond
	}
	if random.IntN(3) == 0 {
		p.WholeBody = random.Int64N(4000)
	}
	if random.IntN(3) == 0 {
		p.Classify = func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
			if resp != nil {
				_, _ = retrip.Peek(resp, 100)
			}
			return retrip.ByRule
		}
	}
	return p
}

// fetch makes a request and reads its body to the end, or until the reader has
// enough. Meanwhile the caller may go and the body may be closed at any time.
func (c *cuts) fetch(t *testing.T, tr *retrip.Transport, host, policy string, random *rand.Rand) {
	r := &ride{traffic: c.traffic, policy: policy, random: rand.New(rand.NewPCG(random.Uint64(), 1))}
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), rideKey{}, r), 20*time.Second)
	defer cancel()
	if random.IntN(5) == 0 {
		time.AfterFunc(time.Duration(random.IntN(2000))*time.Millisecond, cancel)
	}
	if random.IntN(30) == 0 {
		boom := func(retrip.Event) { panic(errPanic) }
		ctx = retrip.WithTrace(ctx, []*retrip.Trace{{Attempt: boom}, {Retry: boom}, {GiveUp: boom}, {Resume: boom}}[random.IntN(4)])
	}
	method, body := http.MethodGet, io.Reader(nil)
	if random.IntN(8) == 0 {
		method, body = http.MethodPut, strings.NewReader("x")
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+host+"/", body)
	if !assert.NoError(t, err) {
		return
	}
	if random.IntN(6) == 0 {
		req.Header.Set("Range", []string{"bytes=100-2000", "bytes=-700", "bytes=5-", "bytes=0-9,20-29"}[random.IntN(4)])
	}
	survives := func(f func()) {
		defer func() {
			if v := recover(); v != nil && v != errPanic {
				panic(v)
			}
		}()
		f()
	}
	var resp *http.Response
	survives(func() { resp, err = tr.RoundTrip(req) })
	c.count(policy, "requests_total", 1)
	if r.attempts == 0 {
		c.count(policy, "unattempted_requests_total", 1)
	}
	if resp == nil {
		return
	}
	defer func() { assert.NoError(t, resp.Body.Close()) }()
	if random.IntN(4) == 0 {
		var wg sync.WaitGroup
		defer wg.Wait()
		wait := time.Duration(random.IntN(1000)) * time.Millisecond
		wg.Go(func() {
			time.Sleep(wait)
			assert.NoError(t, resp.Body.Close())
		})
	}
	var got bytes.Buffer
	limit := int64(5000)
	if random.IntN(4) == 0 {
		limit = random.Int64N(3000)
	}
	survives(func() { _, err = io.CopyN(&got, resp.Body, limit) })
	if resp.Header.Get("Etag") == "" || resp.StatusCode != 200 {
		return
	}
	version, _ := strconv.ParseInt(resp.Header.Get("Version"), 10, 64)
	assert.True(t, bytes.HasPrefix(entity(version), got.Bytes()), "bytes of another entity")
	if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		c.count("all", "whole", 1)
	}
}

// TestMetrics_IdentitiesOfContinuations checks the identities of
// docs/metrics.md, and the counts themselves, while bodies break, stall and are
// continued, callers go and close bodies at any time, policies change, and
// bases and hooks panic. No reader gets bytes of two entities.
func TestMetrics_IdentitiesOfContinuations(t *testing.T) {
	const rounds, workers, requests = 5, 8, 100
	synctest.Test(t, func(t *testing.T) {
		m := retrip.NewMetrics()
		c := &cuts{traffic: &traffic{truth: map[string]sums{}}}
		policies := func(random *rand.Rand) (retrip.Policy, map[string]retrip.Policy) {
			return c.settings(random), map[string]retrip.Policy{"a.test": c.settings(random), "*.b.test": c.settings(random)}
		}
		trace := &retrip.Trace{Resume: func(e retrip.Event) {
			c.count(e.Policy, "body_resumes_total", 1)
			c.count(e.Policy, "body_resumes_total "+string(e.Reason), 1)
		}}
		policy, hosts := policies(rand.New(rand.NewPCG(1, 2)))
		transports := []*retrip.Transport{
			{Base: c, Metrics: m, Policy: policy, Hosts: hosts, Trace: trace},
			{Base: c, Metrics: m, Policy: policy, Hosts: hosts, Trace: trace},
		}
		for round := range rounds {
			var wg sync.WaitGroup
			for worker := range workers {
				wg.Go(func() {
					random := rand.New(rand.NewPCG(uint64(round), uint64(worker)))
					for range requests {
						i := random.IntN(2)
						c.fetch(t, transports[random.IntN(2)], []string{"a.test", "x.b.test"}[i], []string{"a.test", "*.b.test"}[i], random)
					}
				})
			}
			wg.Go(func() {
				random := rand.New(rand.NewPCG(uint64(round), 99))
				for range 20 {
					policy, hosts := policies(random)
					assert.NoError(t, transports[random.IntN(2)].SetPolicies(policy, hosts))
					time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
				}
			})
			wg.Wait()
			synctest.Wait()
			reported := gather(t, m)
			for _, policy := range []string{"a.test", "*.b.test"} {
				s := reported[policy]
				checkIdentities(t, policy, s)
				for what, want := range c.truth[policy] {
					require.Equal(t, want, s[what], "%s: %s", policy, what)
				}
				assert.Less(t, s["body_resumed_bytes_total"], 1e9, policy)
			}
		}
		for _, policy := range []string{"a.test", "*.b.test"} {
			s := gather(t, m)[policy]
			for _, what := range []string{
				"continued", "method", "status", "no_validator", "unknown_length", "changed", "content_range",
				"canceled", "deadline", "max_attempts", "error",
			} {
				assert.Positive(t, s["body_resumes_total "+what], "%s: %s didn't happen", policy, what)
			}
			assert.Positive(t, s["body_resumed_bytes_total"])
			assert.Positive(t, s["body_stalls_total"])
		}
		assert.Greater(t, c.truth["all"]["whole"], 100.0)
		runtime.KeepAlive(transports)
	})
}
