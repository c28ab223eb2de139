// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
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

// A body follows the policy of its request, whatever SetPolicies does while it
// is read.
//
//retrip:promise P20
func TestResume_SetPolicies(t *testing.T) {
	off, on := retrip.Policy{MaxAttempts: 1}, retrip.Policy{Resume: time.Minute, MaxAttempts: 8, BodyIdleTimeout: time.Second, Budget: retrip.Off}
	for _, c := range []struct {
		before, after retrip.Policy
		whole         bool
	}{{on, off, true}, {off, on, false}} {
		synctest.Test(t, func(t *testing.T) {
			data := randomBytes(1000, 1)
			s := &store{etag: `"a"`, data: data, at: func(i int) (int, error) {
				return 200, []error{syscall.ECONNRESET, nil}[i%2] // every other one stalls
			}}
			tr := &retrip.Transport{Base: s, Hosts: map[string]retrip.Policy{"example.com": c.before}, Metrics: &retrip.Metrics{}}
			resp := do(t, tr, play.Request(t, http.MethodGet, nil))
			got := make([]byte, 300)
			n, err := io.ReadFull(resp.Body, got)
			require.Equal(t, c.whole, err == nil)
			require.NoError(t, tr.SetPolicies(c.after, nil))
			rest, err := io.ReadAll(resp.Body)
			require.NoError(t, resp.Body.Close())
			if !c.whole {
				assert.Equal(t, 200, n)
				assert.ErrorIs(t, err, syscall.ECONNRESET)
				assert.Len(t, s.asks, 1)
				return
			}
			require.NoError(t, err)
			assert.True(t, bytes.Equal(data, slices.Concat(got, rest)))
			s.at = func(int) (int, error) { return 200, syscall.ECONNRESET }
			_, err = fetch(t, tr)
			assert.Equal(t, syscall.ECONNRESET, err, "the next request has the new policy")
		})
	}
}

// Classify also judges the response to the request for the rest.
func TestResume_Classify(t *testing.T) {
	for _, c := range []struct {
		verdict retrip.Verdict
		asks    int
		whole   bool
	}{{retrip.Retryable, 3, true}, {retrip.Final, 2, true}, {retrip.ByRule, 2, true}} {
		synctest.Test(t, func(t *testing.T) {
			data := randomBytes(1000, 1)
			s := &store{etag: `"a"`, data: data, at: once(500, syscall.ECONNRESET)}
			var seen []string
			classify := func(req *http.Request, resp *http.Response, err error) retrip.Verdict {
				if resp == nil {
					seen = append(seen, "error")
					return retrip.ByRule
				}
				seen = append(seen, fmt.Sprint(req.Header.Get("Range"), resp.StatusCode))
				if resp.StatusCode == 206 && len(s.asks) == 2 {
					return c.verdict
				}
				return retrip.ByRule
			}
			got, err := fetch(t, &retrip.Transport{Base: s, Policy: retrip.Policy{Resume: time.Minute, Classify: classify}})
			require.NoError(t, err)
			assert.True(t, bytes.Equal(data, got))
			assert.Len(t, s.asks, c.asks)
			assert.Equal(t, []string{"200", "error", "bytes=500-999206", "bytes=500-999206"}[:1+c.asks], seen)
		})
	}
}

// The hooks of the Transport and of the request and the log report each broken
// body, continued or not.
func TestResume_Told(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, etag := range []string{`"a"`, ""} {
			var own, asked []string
			record := func(to *[]string) *retrip.Trace {
				return &retrip.Trace{Resume: func(e retrip.Event) {
					*to = append(*to, fmt.Sprintf("%s %d %d %v %s %v", e.Reason, e.Offset, e.Attempt, e.Err, e.Policy, e.Request.Header))
				}}
			}
			var log bytes.Buffer
			m := &retrip.Metrics{}
			s := &store{etag: etag, data: randomBytes(1000, 1), at: once(500, syscall.ECONNRESET)}
			policy := retrip.Policy{Resume: time.Minute}
			tr := &retrip.Transport{Base: s, Metrics: m, Trace: record(&own), Logger: slog.New(slog.NewTextHandler(&log, nil)), Policy: policy}
			ctx := retrip.WithTrace(t.Context(), record(&asked))
			resp := do(t, tr, play.Request(t, http.MethodGet, nil).WithContext(ctx))
			_, _ = io.Copy(io.Discard, resp.Body)
			require.NoError(t, resp.Body.Close())
			want, spared := "continued 500 2 ", 500
			if etag == "" {
				want, spared = "no_validator 500 1 ", 0
			}
			want += "connection reset by peer default map[]"
			assert.Equal(t, []string{want}, own)
			assert.Equal(t, own, asked)
			assert.Equal(t, 1, strings.Count(log.String(), "level=INFO msg=\"retrip: response body broke\""))
			assert.Contains(t, log.String(), "offset=500")
			assert.Contains(t, log.String(), "error=\"connection reset by peer\"")
			assert.EqualValues(t, spared, gather(t, m)["default"]["body_resumed_bytes_total"])
		}
	})
}

// A caller that goes between two breaks gets the error of its body, and no more
// requests are sent.
func TestResume_CallerGoesBetweenBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, at := range []int64{600, 700} { // within the second part, and at its end
			s := &store{etag: `"a"`, data: randomBytes(1000, 1), at: func(i int) (int, error) {
				return []int{500, 200}[i], []error{syscall.ECONNRESET, nil}[i]
			}}
			ctx, cancel := context.WithCancelCause(t.Context())
			m := &retrip.Metrics{}
			tr := &retrip.Transport{Base: s, Metrics: m, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Second}}
			resp := do(t, tr, play.Request(t, http.MethodGet, nil).WithContext(ctx))
			_, err := io.CopyN(io.Discard, resp.Body, at)
			require.NoError(t, err)
			time.Sleep(time.Hour)
			enough := errors.New("enough")
			cancel(enough)
			began := time.Now()
			_, err = readAll(t, resp)
			assert.ErrorIs(t, err, enough)
			assert.Zero(t, time.Since(began))
			assert.Len(t, s.asks, 2)
			assert.Equal(t, 1, resumes(t, m, retrip.ReasonCanceled))
		}
	})
}

// A server that sends a byte now and then is slow, not stalled, if each byte
// comes in time. If none does, the body ends after three continuations.
func TestBodyIdle_Dribble(t *testing.T) {
	for _, every := range []time.Duration{time.Second - time.Millisecond, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			data := randomBytes(1000, 1)
			s := &store{etag: `"a"`, data: data, lie: func(_ int, resp *http.Response) {
				body, ctx := resp.Body, resp.Request.Context()
				resp.Body = io.NopCloser(testenv.Reader(func(p []byte) (int, error) {
					select {
					case <-time.After(every):
						return body.Read(p[:1])
					case <-ctx.Done():
						return 0, ctx.Err()
					}
				}))
			}}
			m := &retrip.Metrics{}
			began := time.Now()
			policy := retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Second, MaxAttempts: 10, Budget: retrip.Off}
			got, err := fetch(t, &retrip.Transport{Base: s, Metrics: m, Policy: policy})
			if every < time.Second {
				require.NoError(t, err)
				assert.True(t, bytes.Equal(data, got))
				assert.Len(t, s.asks, 1)
				return
			}
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Empty(t, got)
			assert.LessOrEqual(t, len(s.asks), 14)
			assert.Equal(t, 1, resumes(t, m, resume.RefusedProgress))
			assert.EqualValues(t, len(s.asks), gather(t, m)["default"]["body_stalls_total"])
			assert.Less(t, time.Since(began), time.Minute+3*time.Second)
		})
	}
}

// With any Base, a body is whole or fails.
func TestResume_Bases(t *testing.T) {
	data := randomBytes(1000, 1)
	breaks := func(resp *http.Response) {
		resp.Body = io.NopCloser(io.MultiReader(io.LimitReader(resp.Body, 300), iotest.ErrReader(syscall.ECONNRESET)))
	}
	for name, c := range map[string]struct {
		lie  func(i int, resp *http.Response)
		want retrip.Reason // empty if the body arrives whole
		got  int
	}{
		"the error comes with the last bytes": {lie: func(i int, resp *http.Response) {
			if i < 2 {
				breaks(resp)
				resp.Body = io.NopCloser(iotest.DataErrReader(resp.Body))
			}
		}},
		"one byte at a time": {lie: func(i int, resp *http.Response) {
			if i < 2 {
				breaks(resp)
				resp.Body = io.NopCloser(iotest.OneByteReader(resp.Body))
			}
		}},
		"Reads of nothing": {lie: func(i int, resp *http.Response) {
			n, body := 0, io.LimitReader(resp.Body, 300)
			resp.Body = io.NopCloser(testenv.Reader(func(p []byte) (int, error) {
				if n++; n%3 != 0 {
					return 0, nil
				}
				return body.Read(p)
			}))
		}},
		"more is announced than there is": {lie: func(i int, resp *http.Response) {
			resp.ContentLength += 10
			if i > 0 {
				resp.Header = http.Header{"Etag": {`"a"`}, "Content-Range": {"bytes 1000-1009/1010"}}
				resp.ContentLength, resp.StatusCode, resp.Body = 10, 206, io.NopCloser(strings.NewReader(""))
			}
		}, want: resume.RefusedProgress, got: 1000},
		"a negative length": {lie: func(_ int, resp *http.Response) {
			resp.ContentLength = -5
			breaks(resp)
		}, want: resume.RefusedLength, got: 300},
		"the smallest length": {lie: func(_ int, resp *http.Response) {
			resp.ContentLength = math.MinInt64
			breaks(resp)
		}, want: resume.RefusedLength, got: 300},
		"no header at all": {lie: func(_ int, resp *http.Response) {
			resp.Header = nil
			breaks(resp)
		}, want: resume.RefusedValidator, got: 300},
		"the rest has no header": {lie: func(i int, resp *http.Response) {
			if i > 0 {
				resp.Header = nil
			}
			breaks(resp)
		}, want: resume.RefusedValidator, got: 300},
	} {
		bubble(t, name, func(t *testing.T) {
			s := &store{etag: `"a"`, data: data, lie: c.lie}
			m := &retrip.Metrics{}
			policy := retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Second, Budget: retrip.Off, MaxAttempts: 10}
			got, err := fetch(t, &retrip.Transport{Base: s, Metrics: m, Policy: policy})
			if c.want == "" {
				require.NoError(t, err)
				assert.True(t, bytes.Equal(data, got))
				return
			}
			require.Error(t, err)
			assert.True(t, bytes.Equal(data[:c.got], got))
			assert.Equal(t, 1, resumes(t, m, c.want))
		})
	}
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
					resp := &http.Response{StatusCode: 206, ContentLength: total - from, Request: req, Header: http.Header{
						"Etag": {`"a"`}, "Content-Range": {fmt.Sprintf("bytes %d-%d/%d", from, total-1, total)},
					}}
					if len(asks) == 1 && first == 0 {
						resp.StatusCode = 200
					}
					resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(make([]byte, 100)), iotest.ErrReader(syscall.ECONNRESET)))
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
				if total == math.MaxInt64 {
					// The offset after the last byte must fit into an int64
					// too.
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

// A request that waits for 100 Continue is repeated like any other if its short
// response body breaks. If the server responds without asking for the request
// body, the response may arrive broken, but never looks whole.
func TestWholeBody_ExpectContinue(t *testing.T) {
	for _, reads := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var bodies []string
			server := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, "100-continue", r.Header.Get("Expect"))
				if reads {
					got, err := io.ReadAll(r.Body)
					assert.NoError(t, err)
					bodies = append(bodies, string(got))
				} else {
					bodies = append(bodies, "")
				}
				w.Header().Set("Content-Length", fmt.Sprint(len(document)))
				if len(bodies) == 1 {
					_, _ = io.WriteString(w, document[:20])
					_ = http.NewResponseController(w).Flush()
					memhttp.RequestConn(r).Reset()
					return
				}
				_, _ = io.WriteString(w, document)
			}))
			base := server.Transport()
			base.ExpectContinueTimeout = time.Minute
			req := play.Must(http.NewRequest(http.MethodPut, server.URL, io.MultiReader(strings.NewReader("upload"))))
			req.Header.Set("Expect", "100-continue")
			resp := do(t, &retrip.Transport{Base: base, Policy: retrip.Policy{WholeBody: 1000}}, req)
			got, err := readAll(t, resp)
			if err != nil {
				assert.False(t, reads)
				assert.Equal(t, document[:20], string(got))
				return
			}
			assert.Equal(t, document, string(got))
			if reads {
				assert.Equal(t, []string{"upload", "upload"}, bodies)
			}
		})
	}
}
