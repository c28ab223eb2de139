// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// BodyIdleTimeout also bounds the rest of a body that stalls before its reader gets
// it: while Classify looks at it, with WholeBody, and while an overlap is
// skipped.
func TestResume_RestStalls(t *testing.T) {
	data := randomBytes(300<<10, 1)
	whole := func(i int, resp *http.Response) {
		if i > 0 {
			resp.StatusCode, resp.ContentLength, resp.Body = 200, int64(len(data)), io.NopCloser(bytes.NewReader(data))
			resp.Header.Del("Content-Range")
		}
	}
	block := func(i int, resp *http.Response) {
		if i == 1 {
			resp.ContentLength, resp.Body = int64(len(data)-190_000), io.NopCloser(bytes.NewReader(data[190_000:]))
			resp.Header.Set("Content-Range", "bytes 190000-307199/307200")
		}
	}
	for name, c := range map[string]struct {
		policy retrip.Policy
		lie    func(int, *http.Response)
		broken bool
	}{
		"plain":                  {},
		"WholeBody":              {policy: retrip.Policy{WholeBody: 64 << 10}},
		"WholeBody of much":      {policy: retrip.Policy{WholeBody: 100 << 10}},
		"Peek":                   {policy: retrip.Policy{Classify: peeks}},
		"WholeBody and Peek":     {policy: retrip.Policy{WholeBody: 64 << 10, Classify: peeks}},
		"skip of a block":        {lie: block},
		"skip of a block, Peek":  {lie: block, policy: retrip.Policy{Classify: peeks}},
		"skip of all, only once": {lie: whole, broken: true},
	} {
		bubble(t, name, func(t *testing.T) {
			s := &store{etag: `"a"`, data: data, lie: c.lie, at: func(i int) (int, error) {
				switch i {
				case 0:
					return 200_000, io.ErrUnexpectedEOF
				case 1:
					return 50, nil
				}
				return -1, nil
			}}
			m := &retrip.Metrics{}
			p := c.policy
			p.Resume, p.BodyIdleTimeout, p.Backoff = time.Minute, time.Second, retrip.Backoff{Base: 1, Cap: 1}
			began := time.Now()
			got, err := fetch(t, &retrip.Transport{Base: s, Metrics: m, Policy: p})
			assert.LessOrEqual(t, time.Since(began), 1500*time.Millisecond+time.Millisecond)
			assert.EqualValues(t, 1, gather(t, m)["default"]["body_stalls_total"])
			assert.Len(t, s.asks, 3)
			if c.broken {
				assert.ErrorContains(t, err, "Policy.BodyIdleTimeout", "how it broke last")
				return
			}
			require.NoError(t, err)
			assert.True(t, bytes.Equal(data, got))
		})
	}
}

// A break that Peek sees within Classify is continued like any other.
func TestResume_PeekMeetsTheBreak(t *testing.T) {
	data := randomBytes(1000, 1)
	peek := func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
		if resp == nil {
			return retrip.ByRule
		}
		got, err := retrip.Peek(resp, 600)
		if resp.StatusCode == 200 {
			assert.Equal(t, data[:500], got)
			assert.Error(t, err)
		}
		return retrip.ByRule
	}
	synctest.Test(t, func(t *testing.T) {
		for _, ctx := range []context.Context{context.Background(), t.Context()} {
			for _, broken := range []error{io.ErrUnexpectedEOF, syscall.ECONNRESET, nil} {
				s := &store{etag: `"a"`, data: data, at: once(500, broken)}
				tr := &retrip.Transport{Base: s, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Second, Classify: peek}}
				resp := do(t, tr, play.Request(t, http.MethodGet, nil).WithContext(ctx))
				got, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				assert.True(t, bytes.Equal(data, got))
				require.NoError(t, resp.Body.Close())
				require.Len(t, s.asks, 2)
				assert.Equal(t, "bytes=500-999", s.asks[1].Header.Get("Range"))
			}
		}
	})
}

// If Base returns the same response twice, the body would have to continue
// itself.
func TestResume_SameResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ctx := range []context.Context{context.Background(), t.Context()} {
			for _, p := range []retrip.Policy{{AttemptTimeout: time.Second}, {BodyIdleTimeout: time.Second}, {BodyIdleTimeout: time.Second, Classify: peeks}, {WholeBody: 2}} {
				resp := &http.Response{StatusCode: 200, ContentLength: 10, Header: http.Header{"Etag": {`"a"`}},
					Body: io.NopCloser(io.MultiReader(bytes.NewReader([]byte("abc")), iotest.ErrReader(syscall.ECONNRESET)))}
				p.Resume = time.Minute
				tr := &retrip.Transport{Base: testenv.RoundTripper(func(*http.Request) (*http.Response, error) { return resp, nil }), Policy: p}
				resp = do(t, tr, play.Request(t, http.MethodGet, nil).WithContext(ctx))
				got, err := io.ReadAll(resp.Body)
				assert.ErrorIs(t, err, syscall.ECONNRESET)
				assert.Equal(t, "abc", string(got))
				require.NoError(t, resp.Body.Close())
			}
		}
	})
}

// A body that is longer than announced and then breaks is not whole.
func TestResume_StaleLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{etag: `"a"`, data: randomBytes(1000, 1), at: once(700, syscall.ECONNRESET), lie: func(_ int, resp *http.Response) { resp.ContentLength = 300 }}
		got, err := fetch(t, &retrip.Transport{Base: s, Policy: retrip.Policy{Resume: time.Minute}})
		assert.ErrorIs(t, err, syscall.ECONNRESET)
		assert.Len(t, got, 700)
		assert.Len(t, s.asks, 1)
	})
}

// A Read that returns a wrong count ends the body, and nothing panics.
func TestResume_WrongCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, wrong := range []int{-1, 1 << 20} {
			for part := range 2 {
				s := &store{etag: `"a"`, data: randomBytes(1000, 1), at: once(500, syscall.ECONNRESET)}
				s.lie = func(i int, resp *http.Response) {
					if i == part {
						resp.Body = io.NopCloser(testenv.Reader(func([]byte) (int, error) { return wrong, nil }))
					}
				}
				if part == 0 {
					s.at = nil
				}
				got, err := fetch(t, &retrip.Transport{Base: s, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Second}})
				assert.Error(t, err)
				assert.Len(t, got, 500*part)
			}
		}
	})
}

// If the caller goes while it reads, that is the reason, whether or not the
// body could have been continued. The caller gets the body's own error.
func TestResume_CallerGoesWhileReading(t *testing.T) {
	for _, etag := range []string{`"a"`, ""} {
		for _, want := range []retrip.Reason{retrip.ReasonCanceled, retrip.ReasonDeadline} {
			synctest.Test(t, func(t *testing.T) {
				s := &store{etag: etag, data: randomBytes(1000, 1), at: once(500, nil)}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if want == retrip.ReasonCanceled {
					time.AfterFunc(time.Second/2, cancel)
				}
				m := &retrip.Metrics{}
				tr := &retrip.Transport{Base: s, Metrics: m, Policy: retrip.Policy{Resume: time.Minute}}
				resp := do(t, tr, play.Request(t, http.MethodGet, nil).WithContext(ctx))
				_, err := io.ReadAll(resp.Body)
				assert.Equal(t, ctx.Err(), err)
				assert.EqualValues(t, 1, resumes(t, m, want))
				assert.Len(t, s.asks, 1)
			})
		}
	}
}

// A hook that panics during a continuation leaves no response open.
func TestResume_HookPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := func(retrip.Event) { panic("boom") }
		for name, trace := range map[string]*retrip.Trace{"Resume": {Resume: boom}, "Retry": {Retry: boom}, "Attempt": {Attempt: func(e retrip.Event) {
			if e.Attempt > 1 {
				boom(e)
			}
		}}} {
			s := &store{etag: `"a"`, data: randomBytes(1000, 1), at: func(int) (int, error) { return 500, syscall.ECONNRESET }}
			tr := &retrip.Transport{Base: s, Trace: trace, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Second}}
			resp := do(t, tr, play.Request(t, http.MethodGet, nil))
			assert.PanicsWithValue(t, "boom", func() { _, _ = io.ReadAll(resp.Body) }, name)
			for i, b := range s.given {
				assert.EqualValues(t, 1, b.Closed.Load(), "%s: %d", name, i)
				if i > 0 {
					assert.Error(t, s.asks[i].Context().Err(), name)
				}
			}
			_, err := resp.Body.Read(make([]byte, 10))
			assert.ErrorIs(t, err, syscall.ECONNRESET, name)
			require.NoError(t, resp.Body.Close())
		}
	})
}

// After Close, every Read returns what net/http returns, whatever happened
// before.
func TestResume_ReadAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := randomBytes(1000, 1)
		for name, c := range map[string]struct {
			at   func(int) (int, error)
			etag string
			read int64
		}{
			"unread":        {etag: `"a"`},
			"within":        {etag: `"a"`, read: 10},
			"at its end":    {etag: `"a"`, read: 2000},
			"continued":     {etag: `"a"`, at: once(500, io.ErrUnexpectedEOF), read: 700},
			"broken":        {at: once(500, io.ErrUnexpectedEOF), read: 2000},
			"just broken":   {at: once(500, io.ErrUnexpectedEOF), read: 500},
			"stalled":       {at: once(500, nil), read: 2000},
			"out of chance": {etag: `"a"`, at: func(int) (int, error) { return 0, syscall.ECONNRESET }, read: 2000},
		} {
			s := &store{etag: c.etag, data: data, at: c.at}
			tr := &retrip.Transport{Base: s, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Second, WholeBody: 5}}
			resp := do(t, tr, play.Request(t, http.MethodGet, nil))
			_, _ = io.CopyN(io.Discard, resp.Body, c.read)
			for range 3 {
				require.NoError(t, resp.Body.Close(), name)
				n, err := resp.Body.Read(make([]byte, 10))
				assert.Zero(t, n, name)
				assert.Equal(t, http.ErrBodyReadAfterClose, err, name)
			}
		}
	})
}

// After a Read that panicked, the next Read is watched as usual.
func TestBodyIdle_AfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, ContentLength: -1, Body: io.NopCloser(testenv.Reader(func(p []byte) (int, error) {
				if n++; n == 1 {
					panic("boom")
				}
				if n == 10 {
					<-req.Context().Done()
					return 0, req.Context().Err()
				}
				return 1, req.Context().Err()
			}))}, nil
		})
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{BodyIdleTimeout: time.Second}}
		resp, err := tr.RoundTrip(play.Request(t, http.MethodGet, nil))
		require.NoError(t, err)
		assert.Panics(t, func() { _, _ = resp.Body.Read(make([]byte, 1)) })
		for range 8 {
			_, err = resp.Body.Read(make([]byte, 1))
			require.NoError(t, err)
			time.Sleep(10 * time.Second)
		}
		began := time.Now()
		_, err = resp.Body.Read(make([]byte, 1))
		assert.ErrorContains(t, err, "Policy.BodyIdleTimeout")
		assert.LessOrEqual(t, time.Since(began), 1500*time.Millisecond)
		require.NoError(t, resp.Body.Close())
	})
}
