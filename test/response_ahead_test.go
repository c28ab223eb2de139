// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
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

// bodies is a Base whose response i has body i. The last body repeats.
type bodies struct {
	status  int
	header  http.Header
	length  int64 // announced length; 0 means none
	answers []func(ctx context.Context) io.ReadCloser
	asked   int
	given   []*breaking
}

func (b *bodies) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
		req.Body.Close()
	}
	answer := b.answers[min(b.asked, len(b.answers)-1)](req.Context())
	b.asked++
	if broken, ok := answer.(*breaking); ok {
		b.given = append(b.given, broken)
	}
	length := b.length
	if length == 0 {
		length = -1
	}
	return &http.Response{StatusCode: b.status, Header: b.header.Clone(), ContentLength: length, Body: answer, Request: req}, nil
}

func broken(content string, err error) func(context.Context) io.ReadCloser {
	return func(ctx context.Context) io.ReadCloser {
		return &breaking{r: strings.NewReader(content), err: err, ctx: ctx}
	}
}

const document = `{"id": 17, "items": ["a", "b"], "total": {"amount": "12.50", "currency": "EUR"}}`

// A document that breaks at any byte is fetched again.
//
//retrip:promise P20
func TestWholeBody_BrokenAnywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, failure := range []error{io.ErrUnexpectedEOF, syscall.ECONNRESET, errors.New("stream error: stream ID 1; INTERNAL_ERROR")} {
			for n := range len(document) {
				for _, length := range []int64{0, int64(len(document))} {
					b := &bodies{status: 200, length: length, answers: []func(context.Context) io.ReadCloser{broken(document[:n], failure), broken(document, io.EOF)}}
					m := retrip.NewMetrics()
					tr := &retrip.Transport{Base: b, Metrics: m, Policy: retrip.Policy{WholeBody: 64 << 10, Budget: retrip.Off}}
					got, err := fetch(t, tr)
					require.NoError(t, err)
					require.Equal(t, document, string(got))
					require.Equal(t, 2, b.asked)
					require.Equal(t, 1, b.given[0].closed)
					require.Equal(t, 1, b.given[1].closed)
				}
			}
		}
	})
}

// If no retry follows, the caller gets the response with the part of the body
// that arrived, followed by the error. Half a document never comes with a nil
// error.
//
//retrip:promise P20
func TestWholeBody_NoRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for n := range len(document) {
			b := &bodies{status: 201, answers: []func(context.Context) io.ReadCloser{broken(document[:n], io.ErrUnexpectedEOF)}}
			var ended []retrip.Event
			tr := &retrip.Transport{Base: b, Policy: retrip.Policy{WholeBody: 1000, AttemptTimeout: time.Second}, Trace: &retrip.Trace{Done: func(e retrip.Event) { ended = append(ended, e) }}}
			resp := do(t, tr, play.Must(http.NewRequest(http.MethodPost, "http://a.example/", strings.NewReader("x"))))
			assert.Equal(t, 201, resp.StatusCode)
			got, err := io.ReadAll(resp.Body)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			require.Equal(t, document[:n], string(got))
			require.NoError(t, resp.Body.Close())
			require.Equal(t, 1, b.asked)
			require.Equal(t, 1, b.given[0].closed)
			require.Len(t, ended, 1)
			require.Equal(t, retrip.ReasonNotIdempotent, ended[0].Reason)
			require.ErrorIs(t, ended[0].Err, io.ErrUnexpectedEOF)
			var v any
			require.Error(t, json.NewDecoder(io.MultiReader(bytes.NewReader(got), iotest.ErrReader(err))).Decode(&v))
		}
	})
}

// The body is read within the attempt up to the limit, and streams after it.
//
//retrip:promise P20
func TestWholeBody_Limit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			limit int64
			asked int // 2 if the attempt sees the break
		}{{retrip.Off, 1}, {0, 1}, {1, 1}, {9, 1}, {10, 1}, {11, 2}, {1 << 62, 2}, {1<<63 - 1, 2}} {
			b := &bodies{status: 200, answers: []func(context.Context) io.ReadCloser{broken(document[:10], io.ErrUnexpectedEOF), broken(document, io.EOF)}}
			got, err := fetch(t, &retrip.Transport{Base: b, Policy: retrip.Policy{WholeBody: c.limit}})
			assert.Equal(t, c.asked, b.asked, "%d", c.limit)
			if c.asked == 2 {
				assert.NoError(t, err)
				assert.Equal(t, document, string(got))
			} else {
				assert.Equal(t, io.ErrUnexpectedEOF, err)
				assert.Equal(t, document[:10], string(got))
			}
		}
	})
}

// A body with a huge announced length takes no memory before it arrives.
func TestWholeBody_AnnouncedLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bodies{status: 200, length: 1 << 60, answers: []func(context.Context) io.ReadCloser{broken("abc", io.ErrUnexpectedEOF)}}
		got, err := fetch(t, &retrip.Transport{Base: b, Policy: retrip.Policy{WholeBody: 1 << 62, MaxAttempts: 1}})
		assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
		assert.Equal(t, "abc", string(got))
	})
}

// AttemptTimeout runs until a short body is complete.
//
//retrip:promise P20
func TestWholeBody_Timeout(t *testing.T) {
	for name, p := range map[string]retrip.Policy{
		"AttemptTimeout":  {AttemptTimeout: time.Second},
		"Deadline":        {Deadline: time.Second},
		"BodyIdleTimeout": {BodyIdleTimeout: time.Second},
	} {
		bubble(t, name, func(t *testing.T) {
			p.WholeBody, p.Backoff = 1000, retrip.Backoff{Base: 1, Cap: 1}
			b := &bodies{status: 200, answers: []func(context.Context) io.ReadCloser{broken(document[:10], nil), broken(document, io.EOF)}}
			began := time.Now()
			got, err := fetch(t, &retrip.Transport{Base: b, Policy: p})
			assert.LessOrEqual(t, time.Since(began), 1500*time.Millisecond+1)
			if name == "Deadline" {
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				assert.Equal(t, document[:10], string(got))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, document, string(got))
			assert.Equal(t, 2, b.asked)
		})
	}
}

// If the time runs out just after the last byte, the body stays complete.
func TestWholeBody_WholeAsTimeRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bodies{status: 200, answers: []func(context.Context) io.ReadCloser{func(context.Context) io.ReadCloser {
			return io.NopCloser(testenv.Reader(func(p []byte) (int, error) {
				time.Sleep(2 * time.Second)
				return copy(p, document), io.EOF
			}))
		}}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tr := &retrip.Transport{Base: b, Policy: retrip.Policy{WholeBody: 1000, AttemptTimeout: time.Second}}
		resp := do(t, tr, play.Must(http.NewRequestWithContext(ctx, http.MethodGet, "http://a.example/", nil)))
		got, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Equal(t, document, string(got))
		assert.Equal(t, 1, b.asked)
	})
}

// If the caller goes during the reading ahead, it gets the part that arrived,
// and the reason why the body ended.
func TestWholeBody_CallerGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bodies{status: 200, answers: []func(context.Context) io.ReadCloser{broken(document[:10], nil)}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		resp := do(t, &retrip.Transport{Base: b, Policy: retrip.Policy{WholeBody: 1000}}, play.Must(http.NewRequestWithContext(ctx, http.MethodGet, "http://a.example/", nil)))
		got, err := io.ReadAll(resp.Body)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, document[:10], string(got))
		assert.Equal(t, 1, b.asked)
	})
}

// Streams are not read ahead.
//
//retrip:promise P20
func TestWholeBody_Streams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, kind := range []string{"text/event-stream", "Text/Event-Stream; charset=utf-8", "application/x-ndjson", "application/jsonl", "application/grpc", "application/grpc+proto",
			"application/grpc-web", "multipart/x-mixed-replace; boundary=x", "application/connect+json", "application/json-seq"} {
			b := &bodies{status: 200, header: http.Header{"Content-Type": {kind}}, answers: []func(context.Context) io.ReadCloser{broken("data", nil)}}
			ctx, cancel := context.WithCancel(t.Context())
			resp, err := (&retrip.Transport{Base: b, Policy: retrip.Policy{WholeBody: 1000}}).RoundTrip(play.Must(http.NewRequestWithContext(ctx, http.MethodGet, "http://a.example/", nil)))
			require.NoError(t, err, kind)
			got := make([]byte, 4)
			_, err = io.ReadFull(resp.Body, got)
			require.NoError(t, err, kind)
			cancel()
			_, err = resp.Body.Read(got)
			assert.ErrorIs(t, err, context.Canceled, kind)
		}
	})
}

// A response that arrives while the request body is still being sent isn't read
// ahead, because the caller may be waiting for it before it sends more.
//
//retrip:promise P20
func TestWholeBody_WhileSending(t *testing.T) {
	// The server echoes the body that it gets.
	for name, body := range map[string]func(*http.Request) (io.ReadCloser, error){
		"Body": func(req *http.Request) (io.ReadCloser, error) { return req.Body, nil },
		"GetBody": func(req *http.Request) (io.ReadCloser, error) {
			req.Body.Close()
			return req.GetBody()
		},
		"GetBody, then Body": func(req *http.Request) (io.ReadCloser, error) {
			b, err := req.GetBody()
			b.Close()
			return req.Body, err
		},
	} {
		bubble(t, name, func(t *testing.T) {
			r, w := io.Pipe()
			base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				b, err := body(req)
				return &http.Response{StatusCode: 200, Body: b, ContentLength: -1}, err
			})
			req := play.Must(http.NewRequest(http.MethodPut, "http://a.example/", io.NopCloser(r)))
			req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(r), nil }
			resp := do(t, &retrip.Transport{Base: base, Policy: retrip.Policy{WholeBody: 1000}}, req)
			go func() {
				_, _ = w.Write([]byte("ping"))
				w.Close()
			}()
			got, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			assert.Equal(t, "ping", string(got))
		})
	}
}

// A response that is retried isn't read ahead. If attempts run out, it is
// returned unread.
func TestWholeBody_Failures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bodies{status: 503, answers: []func(context.Context) io.ReadCloser{broken("down", io.ErrUnexpectedEOF)}}
		got, err := fetch(t, &retrip.Transport{Base: b, Policy: retrip.Policy{WholeBody: 1000, MaxAttempts: 1}})
		assert.Equal(t, io.ErrUnexpectedEOF, err)
		assert.Equal(t, "down", string(got))

		b = &bodies{status: 404, answers: []func(context.Context) io.ReadCloser{broken(document[:5], io.ErrUnexpectedEOF), broken(document, io.EOF)}}
		got, err = fetch(t, &retrip.Transport{Base: b, Policy: retrip.Policy{WholeBody: 1000}})
		require.NoError(t, err)
		assert.Equal(t, document, string(got))
	})
}

func TestPeek(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []int{-1, 0, 1, 5, len(document), len(document) + 1, 1 << 30} {
			for _, body := range []io.Reader{strings.NewReader(document), iotest.OneByteReader(strings.NewReader(document)), iotest.DataErrReader(strings.NewReader(document))} {
				resp := &http.Response{StatusCode: 200, Body: io.NopCloser(body), ContentLength: -1}
				for range 3 {
					got, err := retrip.Peek(resp, n)
					require.NoError(t, err)
					require.Equal(t, document[:max(0, min(n, len(document)))], string(got))
				}
				got, err := retrip.Peek(resp, 2)
				require.NoError(t, err)
				require.Equal(t, document[:2], string(got))
				all, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.Equal(t, document, string(all))
			}
		}
		for _, resp := range []*http.Response{nil, {}, {Body: http.NoBody}, {StatusCode: 101, Body: io.NopCloser(nil)}} {
			got, err := retrip.Peek(resp, 5)
			assert.NoError(t, err)
			assert.Empty(t, got)
		}
	})
}

// Classify finds an error inside a 200, which is retried.
//
//retrip:promise P20
func TestPeek_InClassify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, p := range []retrip.Policy{{}, {AttemptTimeout: time.Second}, {WholeBody: 10}, {WholeBody: 1000}, {BodyIdleTimeout: time.Second}, {Resume: time.Minute, BodyIdleTimeout: time.Second}} {
			const overloaded = "event: error\ndata: {\"type\":\"overloaded_error\"}\n\n"
			b := &bodies{status: 200, answers: []func(context.Context) io.ReadCloser{broken(overloaded, io.EOF), broken(document, io.EOF)}}
			p.Classify = func(_ *http.Request, resp *http.Response, err error) retrip.Verdict {
				if err != nil {
					return retrip.ByRule
				}
				if start, _ := retrip.Peek(resp, 100); bytes.Contains(start, []byte("overloaded_error")) {
					return retrip.Retryable
				}
				return retrip.ByRule
			}
			got, err := fetch(t, &retrip.Transport{Base: b, Policy: p})
			require.NoError(t, err)
			assert.Equal(t, document, string(got))
			assert.Equal(t, 2, b.asked)
			for _, given := range b.given {
				assert.Equal(t, 1, given.closed)
			}
		}
	})
}

// AttemptTimeout runs while Classify waits for bytes. Its verdict on a response
// that came too late doesn't count.
func TestPeek_Timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bodies{status: 200, length: int64(len(document)), answers: []func(context.Context) io.ReadCloser{broken("a", nil), broken(document, io.EOF)}}
		var asked []bool
		p := retrip.Policy{AttemptTimeout: time.Second, Backoff: retrip.Backoff{Base: 1, Cap: 1}, Classify: func(_ *http.Request, resp *http.Response, err error) retrip.Verdict {
			asked = append(asked, err != nil)
			if err == nil {
				if _, err := retrip.Peek(resp, 10); err != nil {
					return retrip.Final
				}
			}
			return retrip.ByRule
		}}
		began := time.Now()
		got, err := fetch(t, &retrip.Transport{Base: b, Policy: p})
		require.NoError(t, err)
		assert.Equal(t, document, string(got))
		assert.Equal(t, []bool{false, true, false}, asked)
		assert.LessOrEqual(t, time.Since(began), time.Second+time.Millisecond)
	})
}
