// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// store is a Base that serves one entity as http.ServeContent does, and breaks
// its bodies.
type store struct {
	etag string
	data []byte
	asks []*http.Request

	// at returns after how many bytes the body of the i-th answer breaks, and
	// how; a negative number is never.
	at func(i int) (int, error)

	// lie changes the i-th answer.
	lie func(i int, resp *http.Response)
}

func (s *store) RoundTrip(req *http.Request) (*http.Response, error) {
	i := len(s.asks)
	s.asks = append(s.asks, req)
	rec := httptest.NewRecorder()
	rec.Header().Set("ETag", s.etag)
	rec.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(rec, req, "", time.Time{}, bytes.NewReader(s.data))
	resp := rec.Result()
	resp.Request = req
	if n, err := strconv.ParseInt(resp.Header.Get("Content-Length"), 10, 64); err == nil {
		resp.ContentLength = n
	}
	if s.lie != nil {
		s.lie(i, resp)
	}
	if s.at != nil {
		if n, err := s.at(i); n >= 0 {
			resp.Body = &breaking{r: io.LimitReader(resp.Body, int64(n)), err: err, ctx: req.Context()}
		}
	}
	return resp, nil
}

// breaking is a body that ends in an error, or hangs if there is none.
type breaking struct {
	r      io.Reader
	err    error
	ctx    context.Context
	closed int
}

func (b *breaking) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err == io.EOF {
		if b.err == nil {
			<-b.ctx.Done()
			return n, b.ctx.Err()
		}
		err = b.err
	}
	return n, err
}

func (b *breaking) Close() error { b.closed++; return nil }

func randomBytes(n int, seed uint64) []byte {
	random := rand.New(rand.NewPCG(seed, 7))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

func once(n int, err error) func(int) (int, error) {
	return func(i int) (int, error) {
		if i > 0 {
			return -1, nil
		}
		return n, err
	}
}

// fetch reads all of a GET.
func fetch(t *testing.T, tr *Transport, headers ...string) ([]byte, error) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a.example/file", nil)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := randomBytes(300<<10, 1)
		for _, broken := range []error{io.ErrUnexpectedEOF, io.EOF, syscall.ECONNRESET, errors.New("stream error")} {
			s := &store{etag: `"a"`, data: data, at: once(100_000, broken)}
			got, err := fetch(t, &Transport{Base: s, Policy: Policy{Resume: On}}, "Accept-Encoding", "br", "X", "y")
			require.NoError(t, err)
			assert.True(t, bytes.Equal(data, got))
			require.Len(t, s.asks, 2)
			assert.Equal(t, http.Header{"Range": {"bytes=100000-307199"}, "If-Range": {`"a"`}, "Accept-Encoding": {"br"}, "X": {"y"}}, s.asks[1].Header)
			assert.Equal(t, http.Header{"Accept-Encoding": {"br"}, "X": {"y"}}, s.asks[0].Header, "the caller's")
		}
	})
}

// A part that the caller asked for is continued within itself.
func TestResume_CallersRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := randomBytes(1000, 1)
		s := &store{etag: `"a"`, data: data, at: once(100, io.ErrUnexpectedEOF)}
		got, err := fetch(t, &Transport{Base: s, Policy: Policy{Resume: On}}, "Range", "bytes=300-899", "If-Range", `"a"`)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(data[300:900], got))
		require.Len(t, s.asks, 2)
		assert.Equal(t, "bytes=400-899", s.asks[1].Header.Get("Range"))
	})
}

// Everything that happens after the last byte is no one's business.
func TestResume_BreaksBehindTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := randomBytes(1000, 1)
		s := &store{etag: `"a"`, data: data, at: once(1000, syscall.ECONNRESET)}
		got, err := fetch(t, &Transport{Base: s, Policy: Policy{Resume: On}})
		require.NoError(t, err)
		assert.True(t, bytes.Equal(data, got))
		assert.Len(t, s.asks, 1)
	})
}

// TestResume_LyingServers: whatever a server answers to the request for the
// rest, the reader gets the one representation that it began with, or an error
// after the part that it has.
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
		good bool // the body comes whole all the same
		at   int  // where the first answer breaks, instead of cut
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
// that understand If-Range and on such that don't.
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

// A body that stands still is continued, over a connection that isn't the one
// that froze.
func TestResume_Stall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := randomBytes(5000, 1)
		s := &store{etag: `"a"`, data: data, at: func(i int) (int, error) { return []int{1000, 2000, -1}[i], nil }}
		m := NewMetrics()
		var told []string
		trace := &Trace{Resume: func(e Event) {
			told = append(told, fmt.Sprint(e.Reason, " ", e.Offset, " ", isTimeout(e.Err)))
		}}
		began := time.Now()
		got, err := fetch(t, &Transport{Base: s, Metrics: m, Trace: trace, Policy: Policy{Resume: On, BodyIdle: time.Second, Backoff: Backoff{Base: 1, Cap: 1}}})
		require.NoError(t, err)
		assert.True(t, bytes.Equal(data, got))
		assert.LessOrEqual(t, time.Since(began), 2*1500*time.Millisecond+time.Millisecond)
		assert.Equal(t, []string{"continued 1000 true", "continued 3000 true"}, told)
		p := m.policies["default"]
		assert.EqualValues(t, 2, p.stalls.Load())
		assert.EqualValues(t, 4000, p.resumedBytes.Load())
		assert.EqualValues(t, 1, p.outcomes[outcomeAnswered].Load()+p.plain[2].value(), "the request was counted when its headers came")
		assert.EqualValues(t, 3, p.results[2].Load())
		assert.EqualValues(t, 2, p.retries[3].Load(), "timeout")
	})
}

// Without Resume a stall is an error, and a timeout; a consumer that takes its
// time is no stall.
func TestBodyIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := randomBytes(5000, 1)
		s := &store{etag: `"a"`, data: data, at: func(int) (int, error) { return 3000, nil }}
		tr := &Transport{Base: s, Policy: Policy{BodyIdle: time.Second}}
		resp, err := tr.RoundTrip(must(http.NewRequest(http.MethodGet, "http://a.example/", nil)))
		require.NoError(t, err)
		for range 30 {
			time.Sleep(10 * time.Second)
			_, err := io.ReadFull(resp.Body, make([]byte, 100))
			require.NoError(t, err)
		}
		began := time.Now()
		_, err = resp.Body.Read(make([]byte, 1))
		require.Error(t, err)
		assert.True(t, isTimeout(err))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.LessOrEqual(t, time.Since(began), 1500*time.Millisecond)
		require.NoError(t, resp.Body.Close())
	})
}

// The reasons not to continue a body are told, and the body ends in its own
// error.
func TestResume_NotEligible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for want, lie := range map[Reason]func(*http.Response){
			refusedValidator: func(r *http.Response) { r.Header.Del("ETag") },
			refusedLength:    func(r *http.Response) { r.ContentLength = -1 },
			refusedEncoded:   func(r *http.Response) { r.Uncompressed = true },
			refusedMultipart: func(r *http.Response) { r.Header.Set("Content-Type", "multipart/mixed") },
			refusedTrailers:  func(r *http.Response) { r.Trailer = http.Header{"X": nil} },
			refusedRanges:    func(r *http.Response) { r.Header.Set("Accept-Ranges", "none") },
			refusedStatus:    func(r *http.Response) { r.StatusCode = 404 },
		} {
			s := &store{etag: `"a"`, data: randomBytes(1000, 1), at: once(500, syscall.ECONNRESET), lie: func(_ int, r *http.Response) { lie(r) }}
			m := NewMetrics()
			got, err := fetch(t, &Transport{Base: s, Metrics: m, Policy: Policy{Resume: On}})
			assert.Equal(t, syscall.ECONNRESET, err, want)
			assert.Len(t, got, 500, want)
			assert.Len(t, s.asks, 1, want)
			assert.EqualValues(t, 1, m.policies["default"].resumes[slices.Index(resumeResults, want)].Load(), want)
		}
		// A body that ends as it should is no matter for any of this.
		s := &store{data: randomBytes(1000, 1), lie: func(_ int, r *http.Response) { r.ContentLength = -1 }}
		got, err := fetch(t, &Transport{Base: s, Policy: Policy{Resume: On}})
		require.NoError(t, err)
		assert.Len(t, got, 1000)
	})
}

// Each continuation is a retry: it waits, asks the budget, obeys Retry-After and
// the deadline, and counts as an attempt until there has been much progress.
func TestResume_IsRetry(t *testing.T) {
	data := randomBytes(4<<20, 1)
	down := func(from, to int, retryAfter string) func(int, *http.Response) {
		return func(i int, resp *http.Response) {
			if from <= i && i < to {
				resp.StatusCode, resp.Body = 503, http.NoBody
				resp.Header.Set("Retry-After", retryAfter)
			}
		}
	}
	for _, c := range []struct {
		name   string
		policy Policy
		at     func(i int) (int, error)
		lie    func(i int, resp *http.Response)
		reason Reason
		asks   int
		took   time.Duration // at least
	}{
		{name: "attempts", at: func(int) (int, error) { return 10, io.ErrUnexpectedEOF }, reason: ReasonMaxAttempts, asks: 4},
		{name: "attempts, switched off", policy: Policy{MaxAttempts: 1}, at: func(int) (int, error) { return 10, io.ErrUnexpectedEOF }, reason: ReasonMaxAttempts, asks: 1},
		{name: "attempts anew after much progress", at: func(int) (int, error) { return 1 << 20, io.ErrUnexpectedEOF }, reason: resumeContinued, asks: 4},
		{name: "but not before", at: func(int) (int, error) { return 200 << 10, io.ErrUnexpectedEOF }, reason: ReasonMaxAttempts, asks: 4},
		{name: "no progress", policy: Policy{MaxAttempts: 10}, at: func(int) (int, error) { return 0, io.ErrUnexpectedEOF }, reason: refusedProgress, asks: 4},
		{name: "budget", policy: Policy{MaxAttempts: 10, Budget: Budget{Size: 1}}, at: once(10, io.ErrUnexpectedEOF), lie: down(1, 100, "0"), reason: ReasonBudgetExhausted, asks: 3},
		{name: "Retry-After", at: once(10, io.ErrUnexpectedEOF), lie: down(1, 2, "7"), reason: resumeContinued, asks: 3, took: 7 * time.Second},
		{name: "Retry-After beyond MaxWait", at: once(10, io.ErrUnexpectedEOF), lie: down(1, 2, "70"), reason: ReasonWaitTooLong, asks: 2},
		{name: "Policy.Deadline is none of a body's", policy: Policy{Deadline: time.Second}, at: once(10, io.ErrUnexpectedEOF), lie: down(1, 2, "7"), reason: resumeContinued, asks: 3, took: 7 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{etag: `"a"`, data: data, at: c.at, lie: c.lie}
				m := NewMetrics()
				c.policy.Resume = On
				began := time.Now()
				got, err := fetch(t, &Transport{Base: s, Metrics: m, Policy: c.policy})
				assert.True(t, bytes.HasPrefix(data, got))
				if c.reason == resumeContinued {
					require.NoError(t, err)
					assert.Len(t, got, len(data))
				} else {
					require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				}
				assert.Len(t, s.asks, c.asks)
				assert.GreaterOrEqual(t, time.Since(began), c.took)
				assert.NotZero(t, m.policies["default"].resumes[slices.Index(resumeResults, c.reason)].Load(), "%v", c.reason)
			})
		})
	}
}

// Close while a continuation waits, or its request is under way, returns at once
// and ends it.
func TestResume_Close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, hang := range []bool{false, true} {
			s := &store{etag: `"a"`, data: randomBytes(1000, 1), at: once(500, io.ErrUnexpectedEOF)}
			base := roundTripperFunc(func(req *http.Request) (*http.Response, error) {
				if len(s.asks) > 0 && hang {
					<-req.Context().Done()
					return nil, req.Context().Err()
				}
				return s.RoundTrip(req)
			})
			tr := &Transport{Base: base, Policy: Policy{Resume: On, Backoff: Backoff{Base: time.Hour, Cap: time.Hour, Jitter: NoJitter}}}
			if hang {
				tr.Policy.Backoff = Backoff{Base: 1, Cap: 1}
			}
			resp, err := tr.RoundTrip(must(http.NewRequest(http.MethodGet, "http://a.example/", nil)))
			require.NoError(t, err)
			began := time.Now()
			time.AfterFunc(time.Minute, func() {
				closing := time.Now()
				assert.NoError(t, resp.Body.Close())
				assert.Zero(t, time.Since(closing))
			})
			got, err := io.ReadAll(resp.Body)
			assert.Len(t, got, 500)
			assert.Equal(t, http.ErrBodyReadAfterClose, err)
			assert.Equal(t, time.Minute, time.Since(began))
		}
	})
}

// The caller's context ends a continuation, and the body then has both errors.
func TestResume_CallerGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{etag: `"a"`, data: randomBytes(1000, 1), at: once(500, syscall.ECONNRESET)}
		ctx, cancel := context.WithCancel(t.Context())
		tr := &Transport{Base: s, Policy: Policy{Resume: On, Backoff: Backoff{Base: time.Hour, Cap: time.Hour, Jitter: NoJitter}}}
		resp, err := tr.RoundTrip(must(http.NewRequestWithContext(ctx, http.MethodGet, "http://a.example/", nil)))
		require.NoError(t, err)
		time.AfterFunc(time.Second, cancel)
		_, err = io.ReadAll(resp.Body)
		assert.ErrorIs(t, err, syscall.ECONNRESET)
		assert.ErrorIs(t, err, context.Canceled)
		assert.Len(t, s.asks, 1)
	})
}
