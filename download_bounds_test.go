// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/resume"
)

// The count of attempts includes those before the headers. It starts again
// after exactly 1 MiB of progress, counted from where it last started.
func TestResume_Attempts(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name   string
		ranged string
		most   int
		parts  []int // where each part breaks; the last one repeats
		down   int   // number of first responses that are 503
		asks   int
		got    int
	}{
		{name: "attempts before the headers count", most: 3, parts: []int{0, 10}, down: 1, asks: 3, got: 20},
		{name: "each MiB", most: 2, parts: []int{mib}, asks: 4, got: 4 * mib},
		{name: "a MiB in two parts", most: 2, parts: []int{10, mib - 10, mib}, asks: 5, got: 4 * mib},
		{name: "a byte less", most: 2, parts: []int{10, mib - 11, mib}, asks: 2, got: mib - 1},
		{name: "counted from the last start", most: 2, parts: []int{mib, 10, mib}, asks: 2, got: mib + 10},
		{name: "counted from the first byte of a part", ranged: "bytes=2097152-", most: 3, parts: []int{0, 10}, down: 1, asks: 3, got: 20},
		{name: "three without a byte", most: 10, parts: []int{10, 0}, asks: 4, got: 10},
		{name: "three without a byte, after others", most: 10, parts: []int{10, 10, 10, 10, 0}, asks: 7, got: 40},
		{name: "three without a byte, but not in a row", most: 10, parts: []int{10, 0, 10, 0}, asks: 6, got: 20},
		{name: "none yet without a byte", most: 10, parts: []int{0, 0, 0, 0, 0, 4 * mib}, down: 4, asks: 6, got: 4 * mib},
		{name: "many with a byte", most: 10, parts: []int{1}, asks: 10, got: 10},
		{name: "without a byte, after a MiB", most: 10, parts: []int{10, 10, 10, mib, 0, 0, mib, mib, 4 * mib}, asks: 9, got: 4 * mib},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{etag: `"a"`, data: randomBytes(4*mib, 1), at: func(i int) (int, error) {
					return c.parts[min(i, len(c.parts)-1)], io.ErrUnexpectedEOF
				}, lie: func(i int, resp *http.Response) {
					if i < c.down {
						resp.StatusCode, resp.Body = 503, http.NoBody
					}
				}}
				var header []string
				if c.ranged != "" {
					header = []string{"Range", c.ranged}
				}
				got, err := fetch(t, &Transport{Base: s, Policy: Policy{Resume: On, MaxAttempts: c.most, Budget: Unlimited}}, header...)
				assert.Len(t, got, c.got)
				assert.Equal(t, c.got < 4*mib, err != nil)
				assert.Len(t, s.asks, c.asks)
			})
		})
	}
}

// A server may send the whole representation again only if nothing has been
// discarded before, so once. Over all continuations, at most as many bytes as
// the body has may be discarded.
func TestResume_Skips(t *testing.T) {
	type part struct {
		from   int64 // where the response begins; -1 means a 200
		breaks int   // after this many bytes of it
	}
	for _, c := range []struct {
		name, ranged string
		parts        []part
		refused      Reason
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
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				size := 1000
				var header []string
				if c.ranged != "" {
					size, header = 2000, []string{"Range", c.ranged}
				}
				data := randomBytes(size, 1)
				var given []*breaking
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
					b := &breaking{r: io.LimitReader(resp.Body, int64(p.breaks)), err: io.ErrUnexpectedEOF}
					given = append(given, b)
					resp.Body = b
				}
				m := NewMetrics()
				got, err := fetch(t, &Transport{Base: s, Metrics: m, Policy: Policy{Resume: On}}, header...)
				require.Len(t, s.asks, 3)
				for i, b := range given {
					assert.Equal(t, 1, b.closed, "response %d", i)
				}
				if c.refused == "" {
					require.NoError(t, err)
					assert.True(t, bytes.Equal(data[size-1000:], got))
					return
				}
				assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
				assert.Equal(t, 1, resumes(m, c.refused))
			})
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
		tr := &Transport{Base: s, Policy: Policy{Resume: On, Idempotent: slow}}
		resp, err := tr.RoundTrip(must(http.NewRequestWithContext(ctx, http.MethodGet, "http://a.example/", nil)))
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		assert.ErrorIs(t, err, context.Canceled)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, resp.Body.Close())

		s = &store{etag: `"a"`, data: randomBytes(1000, 1), at: once(500, syscall.ECONNRESET)}
		_, err = fetch(t, &Transport{Base: s, Policy: Policy{Resume: On, MaxAttempts: 1}})
		assert.Equal(t, syscall.ECONNRESET, err)
	})
}

// With BodyIdleTimeout off, nothing is watched, wherever the body is read.
func TestBodyIdle_Off(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peek := func(_ *http.Request, resp *http.Response, _ error) Verdict {
			if resp != nil {
				_, _ = Peek(resp, 10)
			}
			return ByRule
		}
		data := randomBytes(1000, 1)
		s := &store{etag: `"a"`, data: data, at: once(500, syscall.ECONNRESET), lie: func(_ int, resp *http.Response) {
			body := resp.Body
			resp.Body = io.NopCloser(readerFunc(func(p []byte) (int, error) {
				time.Sleep(time.Hour)
				return body.Read(p)
			}))
		}}
		tr := &Transport{Base: s, Policy: Policy{BodyIdleTimeout: time.Second}, Hosts: map[string]Policy{"a.example": {Resume: On, BodyIdleTimeout: Off, Classify: peek}}}
		got, err := fetch(t, tr)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(data, got))
	})
}

// If no attempt is left for a body that had to be whole, it ends with the error
// that broke it. Its request has been given up, so nothing continues it.
func TestWholeBody_OutOfAttemptsWithResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{etag: `"a"`, data: randomBytes(1000, 1), at: func(int) (int, error) { return 500, syscall.ECONNRESET }}
		m := NewMetrics()
		got, err := fetch(t, &Transport{Base: s, Metrics: m, Policy: Policy{Resume: On, WholeBody: 2000, MaxAttempts: 3}})
		assert.Equal(t, syscall.ECONNRESET, err)
		assert.Len(t, got, 500)
		assert.Len(t, s.asks, 3)
		for _, result := range resumeResults {
			assert.Zero(t, resumes(m, result), result)
		}
	})
}

// If the last attempt that the policy allows brings no byte, the request gives up as
// others do: hooks, the reader and the state of the host learn why.
func TestResume_LastAttemptWithoutAByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{etag: `"a"`, data: randomBytes(10, 1), at: func(i int) (int, error) {
			return []int{0, 0, 5, 0}[min(i, 3)], io.ErrUnexpectedEOF
		}, lie: func(i int, resp *http.Response) {
			if i < 2 {
				resp.StatusCode, resp.Body = 503, http.NoBody
			}
		}}
		var gave Reason
		tr := &Transport{Base: s, Policy: Policy{Resume: On}, Trace: &Trace{GiveUp: func(e Event) { gave = e.Reason }}}
		got, err := fetch(t, tr)
		assert.Len(t, got, 5)
		var e *Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, ReasonMaxAttempts, e.Reason)
		assert.Equal(t, ReasonMaxAttempts, gave)
		assert.Len(t, s.asks, 4)
		assert.Equal(t, ReasonMaxAttempts, tr.HostStates()[0].LastGiveUp)
	})
}
