// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/resume"
	"github.com/retrip/retrip/internal/testenv"
)

// store is a Base that serves one entity like http.ServeContent, and breaks its
// bodies.
type store struct {
	etag  string
	data  []byte
	asks  []*http.Request
	given []*play.ReplyBody

	// at returns the number of bytes after which the body of response i breaks,
	// and the error. A negative number means never.
	at func(i int) (int, error)

	// lie changes response i.
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
			resp.Body = io.NopCloser(ending(req.Context(), io.LimitReader(resp.Body, int64(n)), err))
		}
	}
	if resp.Body != nil && resp.Body != http.NoBody {
		s.given = append(s.given, play.NewReply(resp.Body))
		resp.Body = s.given[len(s.given)-1]
	}
	return resp, nil
}

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

// owe makes n requests to the host of fetch whose retries fail.
func owe(t *testing.T, tr *retrip.Transport, n int) {
	ctx := retrip.WithPolicy(t.Context(), retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}})
	for range n {
		drop(t, tr, play.Must(http.NewRequestWithContext(ctx, http.MethodGet, "http://example.com/busy", nil)))
	}
}

//retrip:promise P20
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := randomBytes(300<<10, 1)
		for _, broken := range []error{io.ErrUnexpectedEOF, io.EOF, syscall.ECONNRESET, errors.New("stream error")} {
			s := &store{etag: `"a"`, data: data, at: once(100_000, broken)}
			got, err := fetch(t, &retrip.Transport{Base: s, Policy: retrip.Policy{Resume: time.Minute}}, "Accept-Encoding", "br", "X", "y")
			require.NoError(t, err)
			assert.True(t, bytes.Equal(data, got))
			require.Len(t, s.asks, 2)
			assert.Equal(t, http.Header{"Range": {"bytes=100000-307199"}, "If-Range": {`"a"`}, "Accept-Encoding": {"br"}, "X": {"y"}}, s.asks[1].Header)
			assert.Equal(t, http.Header{"Accept-Encoding": {"br"}, "X": {"y"}}, s.asks[0].Header, "the caller's")
			assert.Equal(t, s.asks[0].URL, s.asks[1].URL)
		}
	})
}

// A body that stalls is continued over another connection.
//
//retrip:promise P20
func TestResume_Stall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := randomBytes(5000, 1)
		s := &store{etag: `"a"`, data: data, at: func(i int) (int, error) { return []int{1000, 2000, -1}[i], nil }}
		m := &retrip.Metrics{}
		var told []string
		trace := &retrip.Trace{Resume: func(e retrip.Event) {
			told = append(told, fmt.Sprint(e.Reason, " ", e.Offset, " ", fault.Timeout(e.Err)))
		}}
		began := time.Now()
		policy := retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Second, Backoff: retrip.Backoff{Base: 1, Cap: 1}}
		got, err := fetch(t, &retrip.Transport{Base: s, Metrics: m, Trace: trace, Policy: policy})
		require.NoError(t, err)
		assert.True(t, bytes.Equal(data, got))
		assert.LessOrEqual(t, time.Since(began), 2*1500*time.Millisecond+time.Millisecond)
		assert.Equal(t, []string{"continued 1000 true", "continued 3000 true"}, told)
		p := gather(t, m)["default"]
		assert.EqualValues(t, 2, p["body_stalls_total"])
		assert.EqualValues(t, 4000, p["body_resumed_bytes_total"])
		assert.EqualValues(t, 1, p["requests_total answered"], "the request was counted when its headers arrived")
		assert.EqualValues(t, 3, p["attempts_total 2xx"])
		assert.EqualValues(t, 2, p["retries_total timeout"])
	})
}

// Without Resume, a stall is a timeout error. A slow reader is not a stall.
//
//retrip:promise P20
func TestBodyIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := randomBytes(5000, 1)
		s := &store{etag: `"a"`, data: data, at: func(int) (int, error) { return 3000, nil }}
		tr := &retrip.Transport{Base: s, Policy: retrip.Policy{BodyIdleTimeout: time.Second}}
		resp := do(t, tr, play.Request(t, http.MethodGet, nil))
		for range 30 {
			time.Sleep(10 * time.Second)
			_, err := io.ReadFull(resp.Body, make([]byte, 100))
			require.NoError(t, err)
		}
		began := time.Now()
		_, err := resp.Body.Read(make([]byte, 1))
		require.Error(t, err)
		assert.True(t, fault.Timeout(err))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.LessOrEqual(t, time.Since(began), 1500*time.Millisecond)
		require.NoError(t, resp.Body.Close())
	})
}

// Each continuation is a retry. It waits, asks the budget, obeys Retry-After
// and the deadline, and counts as an attempt until there has been
// progress.
//
//retrip:promise P20
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
		policy retrip.Policy
		at     func(i int) (int, error)
		lie    func(i int, resp *http.Response)
		reason retrip.Reason
		failed int // requests before whose retries failed
		asks   int
		took   time.Duration // minimum
	}{
		{name: "attempts, switched off", policy: retrip.Policy{MaxAttempts: 1}, at: func(int) (int, error) { return 10, io.ErrUnexpectedEOF }, reason: retrip.ReasonMaxAttempts, asks: 1},
		{name: "attempts anew after progress", at: func(int) (int, error) { return 1 << 20, io.ErrUnexpectedEOF }, reason: continued, asks: 4},
		{name: "budget", policy: retrip.Policy{MaxAttempts: 10, Budget: 1}, failed: 2, at: once(10, io.ErrUnexpectedEOF), reason: continued, asks: 2, took: 1250 * time.Millisecond},
		{name: "attempts", policy: retrip.Policy{MaxAttempts: 2}, at: once(10, io.ErrUnexpectedEOF), lie: down(1, 2, "7"), reason: continued, asks: 3, took: 7 * time.Second},
		{name: "Retry-After in a turn", policy: retrip.Policy{MaxAttempts: 2}, at: once(10, io.ErrUnexpectedEOF), lie: down(1, 3, "17"), reason: continued, asks: 4, took: 34 * time.Second},
		{name: "Retry-After of a 429 in a turn", policy: retrip.Policy{MaxAttempts: 2}, at: once(10, io.ErrUnexpectedEOF), lie: func(i int, resp *http.Response) {
			if down(1, 3, "17")(i, resp); i == 1 || i == 2 {
				resp.StatusCode = 429
			}
		}, reason: continued, asks: 4, took: 34 * time.Second},
		{name: "Retry-After beyond Resume", policy: retrip.Policy{Resume: 10 * time.Second, MaxAttempts: 2}, at: once(10, io.ErrUnexpectedEOF), lie: down(1, 2, "17"), reason: resume.RefusedProgress, asks: 2},
		{name: "Retry-After beyond MaxWait in a turn", policy: retrip.Policy{MaxAttempts: 2}, at: once(10, io.ErrUnexpectedEOF), lie: down(1, 2, "70"), reason: retrip.ReasonWaitTooLong, asks: 2},
		{name: "Retry-After", at: once(10, io.ErrUnexpectedEOF), lie: down(1, 2, "7"), reason: continued, asks: 3, took: 7 * time.Second},
		{name: "Retry-After beyond MaxWait", at: once(10, io.ErrUnexpectedEOF), lie: down(1, 2, "70"), reason: retrip.ReasonWaitTooLong, asks: 2},
		{name: "Policy.Deadline is none of a body's", policy: retrip.Policy{Deadline: time.Second}, at: once(10, io.ErrUnexpectedEOF), lie: down(1, 2, "7"), reason: continued, asks: 3, took: 7 * time.Second},
	} {
		bubble(t, c.name, func(t *testing.T) {
			s := &store{etag: `"a"`, data: data, at: c.at, lie: c.lie}
			m := &retrip.Metrics{}
			c.policy.Resume = cmp.Or(c.policy.Resume, time.Minute)
			tr := &retrip.Transport{Metrics: m, Policy: c.policy, Base: testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				if req.URL.Path == "/busy" {
					return testenv.Status(503).RoundTrip(req)
				}
				return s.RoundTrip(req)
			})}
			owe(t, tr, c.failed)
			time.Sleep(time.Second) // or else the retry may wait for tokens
			began := time.Now()
			got, err := fetch(t, tr)
			assert.True(t, bytes.HasPrefix(data, got))
			if c.reason == continued {
				require.NoError(t, err)
				assert.Len(t, got, len(data))
			} else {
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			}
			assert.Len(t, s.asks, c.asks)
			assert.GreaterOrEqual(t, time.Since(began), c.took)
			assert.NotZero(t, resumes(t, m, c.reason), "%v", c.reason)
		})
	}
}

// Close returns at once and ends a continuation, during its wait and during its
// request. So does the caller's context; the body then has both errors.
//
//retrip:promise P20
func TestResume_Close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i := range 4 {
			hang, closes := i%2 == 0, i < 2
			s := &store{etag: `"a"`, data: randomBytes(1000, 1), at: once(500, io.ErrUnexpectedEOF)}
			base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				if len(s.asks) > 0 && hang {
					<-req.Context().Done()
					return nil, req.Context().Err()
				}
				return s.RoundTrip(req)
			})
			policy := retrip.Policy{Resume: 24 * time.Hour, Backoff: retrip.Backoff{Base: time.Hour, Cap: time.Hour, Jitter: retrip.NoJitter}}
			tr := &retrip.Transport{Base: base, Policy: policy}
			if hang {
				tr.Policy.Backoff = retrip.Backoff{Base: 1, Cap: 1}
			}
			ctx, cancel := context.WithCancel(t.Context())
			resp := do(t, tr, play.Request(t, http.MethodGet, nil).WithContext(ctx))
			began := time.Now()
			time.AfterFunc(time.Minute, func() {
				closing := time.Now()
				if closes {
					assert.NoError(t, resp.Body.Close())
				} else {
					cancel()
				}
				assert.Zero(t, time.Since(closing))
			})
			got, err := readAll(t, resp)
			assert.Len(t, got, 500)
			if closes {
				assert.Equal(t, http.ErrBodyReadAfterClose, err)
			} else {
				assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
				assert.ErrorIs(t, err, context.Canceled)
			}
			assert.Equal(t, time.Minute, time.Since(began))
			assert.Len(t, s.asks, 1)
			cancel()
		}
	})
}

// A server that sends the reader's bytes again has spared nothing.
func TestResume_SparedBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := randomBytes(1000, 1)
		for _, c := range []struct {
			name, asked string
			from        int64 // the rest comes from here
			spared      int
		}{
			{"the rest", "", 400, 400},
			{"a block", "", 300, 300},
			{"all", "", -1, 0},
			{"a block, of a part", "bytes=300-", 600, 300},
			{"a block from before the part", "bytes=300-", 200, 0},
			{"all, of a part", "bytes=300-", -1, 0},
		} {
			s := &store{etag: `"a"`, data: data, at: once(400, io.ErrUnexpectedEOF), lie: func(i int, resp *http.Response) {
				switch {
				case i == 0:
				case c.from < 0:
					resp.Header.Del("Content-Range")
					resp.StatusCode, resp.ContentLength, resp.Body = 200, 1000, io.NopCloser(bytes.NewReader(data))
				default:
					resp.Header.Set("Content-Range", fmt.Sprintf("bytes %d-999/1000", c.from))
					resp.ContentLength, resp.Body = 1000-c.from, io.NopCloser(bytes.NewReader(data[c.from:]))
				}
			}}
			m := &retrip.Metrics{}
			header := []string{"Range", c.asked}
			if c.asked == "" {
				header = nil
			}
			_, err := fetch(t, &retrip.Transport{Base: s, Metrics: m, Policy: retrip.Policy{Resume: time.Minute}}, header...)
			require.NoError(t, err)
			assert.EqualValues(t, c.spared, gather(t, m)["default"]["body_resumed_bytes_total"], c.name)
		}
	})
}
