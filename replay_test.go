// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
)

var protos = []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2, memhttp.H2C}

func eachProto(t *testing.T, f func(t *testing.T, proto memhttp.Proto)) {
	t.Helper()
	for _, proto := range protos {
		bubbled(t, proto.String(), func(t *testing.T) { f(t, proto) })
	}
}

// The first byte isn't delayed, and nothing is read ahead of the server.
func TestReplay_FirstByte(t *testing.T) {
	eachProto(t, func(t *testing.T, proto memhttp.Proto) {
		saw := make(chan byte)
		s := memhttp.NewServer(t, proto, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			b := make([]byte, 1)
			_, err := io.ReadFull(r.Body, b)
			assert.NoError(t, err)
			saw <- b[0]
			rest, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.Equal(t, "last", string(rest))
		}))
		pr, pw := io.Pipe()
		go func() {
			_, _ = pw.Write([]byte{'1'})
			assert.Equal(t, byte('1'), <-saw)
			_, _ = io.WriteString(pw, "last")
			_ = pw.Close()
		}()
		tr := &retrip.Transport{Base: s.Transport(), Policy: steady}
		resp, err := tr.RoundTrip(mustRequest(t, "PUT", s.URL, pr))
		require.NoError(t, err)
		finish(t, resp)
	})
}

// A base that asks for n bytes makes the caller's body give n bytes.
func TestReplay_NeverReadsAhead(t *testing.T) {
	body := &countingBody{data: pattern(10_000)}
	base := plays(func(r *http.Request) (*http.Response, error) {
		for want := 100; want <= 1000; want += 100 {
			_, err := io.ReadFull(r.Body, make([]byte, 100))
			assert.NoError(t, err)
			assert.Equal(t, want, body.pos)
		}
		_ = r.Body.Close()
		return replies(200)(r)
	})
	base.keep = true
	resp, err := (&retrip.Transport{Base: base}).RoundTrip(request(t, "PUT", body))
	require.NoError(t, err)
	finish(t, resp)
	assert.Equal(t, 1, body.closed)
}

type countingBody struct {
	data        []byte
	pos, closed int
}

func (b *countingBody) Read(p []byte) (int, error) {
	if b.pos == len(b.data) {
		return 0, io.EOF
	}
	n := copy(p, b.data[b.pos:])
	b.pos += n
	return n, nil
}

func (b *countingBody) Close() error { b.closed++; return nil }

func TestReplay_Bound(t *testing.T) {
	for _, tt := range []struct {
		name     string
		size     int
		bound    int64
		attempts int
	}{
		{"empty", 0, 0, 2},
		{"default", 64 << 10, 0, 2},
		{"default and one byte", 64<<10 + 1, 0, 1},
		{"as large as the bound", 1000, 1000, 2},
		{"one byte", 1, 1, 2},
		{"one byte more", 1001, 1000, 1},
		{"nothing kept", 1, retrip.Off, 1},
		{"nothing kept of nothing", 0, retrip.Off, 2},
		{"large", 3 << 20, 4 << 20, 2},
	} {
		bubbled(t, tt.name, func(t *testing.T) {
			payload := pattern(tt.size)
			base := plays(replies(503), replies(200))
			tr := &retrip.Transport{Base: base, Policy: with(func(p *retrip.Policy) { p.MaxReplayBody = tt.bound })}
			body := &countingBody{data: payload}
			resp, err := tr.RoundTrip(request(t, "PUT", body))
			require.NoError(t, err)
			finish(t, resp)
			assert.Equal(t, tt.attempts, base.attempts())
			for i, sent := range base.sent {
				assert.True(t, sent == string(payload), "attempt %d got %d bytes", i+1, len(sent))
			}
			assert.Equal(t, 1, body.closed)
			if tt.attempts == 1 {
				assert.Equal(t, 503, resp.StatusCode)
			}
		})
	}
}

// What nobody has read from yet can be sent whatever its size.
func TestReplay_Untouched(t *testing.T) {
	eachProto(t, func(t *testing.T, proto memhttp.Proto) {
		payload := pattern(1 << 20)
		s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(payload, got))
		}))
		s.Listener.Refuse(true)
		time.AfterFunc(1500*time.Millisecond, func() { s.Listener.Refuse(false) })
		attempts := 0
		tr := &retrip.Transport{Base: s.Transport(), Policy: with(func(p *retrip.Policy) { p.MaxReplayBody = retrip.Off }),
			Trace: &retrip.Trace{Attempt: func(e retrip.Event) { attempts = e.Attempt }}}
		// A dial that is refused proves that even a POST was not processed.
		resp, err := tr.RoundTrip(mustRequest(t, "POST", s.URL, stream(payload)))
		require.NoError(t, err)
		finish(t, resp)
		assert.Equal(t, 3, attempts)
	})
}

func TestReplay_Sections(t *testing.T) {
	payload := pattern(300 << 10)
	file := filepath.Join(t.TempDir(), "body")
	require.NoError(t, os.WriteFile(file, append([]byte("skipped"), payload...), 0o600))
	open := func(t *testing.T) *os.File {
		f, err := os.Open(file)
		require.NoError(t, err)
		_, err = f.Seek(7, io.SeekStart)
		require.NoError(t, err)
		return f
	}
	for _, tt := range []struct {
		name string
		body func(t *testing.T) io.Reader
	}{
		{"file", func(t *testing.T) io.Reader { return open(t) }},
		{"file without its Close", func(t *testing.T) io.Reader { f := open(t); t.Cleanup(func() { f.Close() }); return io.NopCloser(f) }},
		{"section", func(t *testing.T) io.Reader {
			return io.NewSectionReader(strings.NewReader("--"+string(payload)+"--"), 2, int64(len(payload)))
		}},
		{"section, partly read", func(t *testing.T) io.Reader {
			s := io.NewSectionReader(strings.NewReader("--"+string(payload)+"--"), 0, int64(len(payload)+2))
			_, err := s.Seek(2, io.SeekStart)
			require.NoError(t, err)
			return s
		}},
	} {
		bubbled(t, tt.name, func(t *testing.T) {
			base := plays(replies(503), replies(503), replies(200))
			tr := &retrip.Transport{Base: base, Policy: with(func(p *retrip.Policy) { p.MaxReplayBody = retrip.Off })}
			req := request(t, "PUT", tt.body(t))
			req.ContentLength = int64(len(payload))
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			finish(t, resp)
			require.Equal(t, 3, base.attempts())
			for i, sent := range base.sent {
				assert.True(t, sent == string(payload), "attempt %d got %d bytes", i+1, len(sent))
				assert.EqualValues(t, len(payload), base.reqs[i].ContentLength)
			}
			if f, ok := req.Body.(*os.File); ok {
				assert.ErrorIs(t, f.Close(), os.ErrClosed)
			}
		})
	}
}

// A file that lies about its size, and what is a file in name only.
func TestReplay_OddFiles(t *testing.T) {
	t.Run("size of zero", func(t *testing.T) {
		f, err := os.Open("/proc/self/status")
		if err != nil {
			t.Skip("no /proc here")
		}
		base := plays(replies(503), replies(200))
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}}
		resp, err := tr.RoundTrip(request(t, "PUT", f))
		require.NoError(t, err)
		finish(t, resp)
		require.Len(t, base.sent, 2)
		for _, sent := range base.sent {
			assert.Contains(t, sent, "Name:")
		}
	})
	t.Run("pipe", func(t *testing.T) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		_, err = w.WriteString("through a pipe")
		require.NoError(t, err)
		require.NoError(t, w.Close())
		base := plays(replies(503), replies(200))
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}}
		resp, err := tr.RoundTrip(request(t, "PUT", r))
		require.NoError(t, err)
		finish(t, resp)
		assert.Equal(t, []string{"through a pipe", "through a pipe"}, base.sent)
		assert.ErrorIs(t, r.Close(), os.ErrClosed)
	})
	t.Run("closed already", func(t *testing.T) {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		require.NoError(t, err)
		require.NoError(t, f.Close())
		base := plays(replies(200))
		_, err = (&retrip.Transport{Base: base}).RoundTrip(request(t, "PUT", f))
		assert.ErrorIs(t, err, os.ErrClosed)
		assert.Equal(t, 1, base.attempts())
	})
}

// The server answers while the upload is under way; the third attempt is taken
// whole. Run it with the race detector.
func TestReplay_EarlyAnswer(t *testing.T) {
	payload := pattern(16 << 20)
	want := sha256.Sum256(payload)
	file := filepath.Join(t.TempDir(), "upload")
	require.NoError(t, os.WriteFile(file, payload, 0o600))
	for _, tt := range []struct {
		name string
		body func(t *testing.T) io.Reader
	}{
		{"GetBody", func(*testing.T) io.Reader { return bytes.NewReader(payload) }},
		{"file", func(t *testing.T) io.Reader {
			f, err := os.Open(file)
			require.NoError(t, err)
			return f
		}},
		{"stream", func(*testing.T) io.Reader { return stream(payload) }},
	} {
		for _, proto := range protos {
			bubbled(t, tt.name+"/"+proto.String(), func(t *testing.T) {
				var seen atomic.Int32
				s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if seen.Add(1) < 3 {
						_, _ = io.ReadFull(r.Body, make([]byte, 100_000))
						http.Error(w, "busy", http.StatusServiceUnavailable)
						return
					}
					h := sha256.New()
					n, err := io.Copy(h, r.Body)
					assert.NoError(t, err)
					assert.EqualValues(t, len(payload), n)
					fmt.Fprintf(w, "%x", h.Sum(nil))
				}))
				tr := &retrip.Transport{Base: s.Transport(), Policy: with(func(p *retrip.Policy) { p.MaxReplayBody = 32 << 20 })}
				req := mustRequest(t, "PUT", s.URL, tt.body(t))
				req.ContentLength = int64(len(payload))
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				assert.Equal(t, fmt.Sprintf("%x", want), finish(t, resp))
				assert.EqualValues(t, 3, seen.Load())
			})
		}
	}
}

// slowBody gives its bytes when told, and knows whether two read at once.
type slowBody struct {
	give    chan string
	reading atomic.Int32
	closed  atomic.Int32
	fail    error
}

func (b *slowBody) Read(p []byte) (int, error) {
	if b.reading.Add(1) > 1 {
		panic("two read at once")
	}
	defer b.reading.Add(-1)
	s, ok := <-b.give
	if !ok {
		if b.fail != nil {
			return 0, b.fail
		}
		return 0, io.EOF
	}
	return copy(p, s), nil
}

func (b *slowBody) Close() error { b.closed.Add(1); return nil }

// exclusiveBody can't be closed while it is read, as that of a server's request
// can't.
type exclusiveBody struct {
	slowBody
	lock chan struct{}
}

func (b *exclusiveBody) Read(p []byte) (int, error) {
	b.lock <- struct{}{}
	defer func() { <-b.lock }()
	return b.slowBody.Read(p)
}

func (b *exclusiveBody) Close() error {
	b.lock <- struct{}{}
	defer func() { <-b.lock }()
	return b.slowBody.Close()
}

// earlyStep answers 503 while a goroutine of the base still reads the body,
// as net/http does.
func earlyStep(read *sync.WaitGroup, got *error) step {
	return func(r *http.Request) (*http.Response, error) {
		first := make([]byte, 10)
		n, _ := r.Body.Read(first)
		read.Go(func() {
			if n2, err := r.Body.Read(make([]byte, 10)); n2 > 0 || err != nil {
				*got = err
			}
			_ = r.Body.Close()
		})
		_ = n
		synctest.Wait()
		return replies(503)(r)
	}
}

// An attempt that is blocked in the caller's Read meets the next one.
func TestReplay_OldAttemptReads(t *testing.T) {
	bubbled(t, "the next one gets what it read", func(t *testing.T) {
		body := &slowBody{give: make(chan string)}
		var wg sync.WaitGroup
		var oldErr error
		base := plays(earlyStep(&wg, &oldErr), func(r *http.Request) (*http.Response, error) {
			b, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.Equal(t, "onetwothree", string(b))
			_ = r.Body.Close()
			return replies(200)(r)
		})
		base.keep = true
		go func() {
			body.give <- "one"
			time.Sleep(time.Hour)
			body.give <- "two"
			body.give <- "three"
			close(body.give)
		}()
		resp, err := (&retrip.Transport{Base: base, Policy: steady}).RoundTrip(request(t, "PUT", body))
		require.NoError(t, err)
		finish(t, resp)
		wg.Wait()
		assert.ErrorContains(t, oldErr, "is over")
		assert.EqualValues(t, 1, body.closed.Load())
	})
	bubbled(t, "a read that fails meanwhile never becomes an empty body", func(t *testing.T) {
		broken := errors.New("disk on fire")
		body := &slowBody{give: make(chan string), fail: broken}
		var wg sync.WaitGroup
		var oldErr, newErr error
		var sent []byte
		base := plays(earlyStep(&wg, &oldErr), func(r *http.Request) (*http.Response, error) {
			if !assert.NotNil(t, r.Body) {
				return replies(200)(r)
			}
			sent, newErr = io.ReadAll(r.Body)
			_ = r.Body.Close()
			return nil, newErr
		})
		base.keep = true
		go func() {
			body.give <- "one"
			time.Sleep(500 * time.Millisecond)
			close(body.give)
		}()
		_, err := (&retrip.Transport{Base: base, Policy: steady}).RoundTrip(request(t, "PUT", body))
		wg.Wait()
		assert.ErrorIs(t, err, broken)
		assert.ErrorIs(t, newErr, broken)
		assert.Equal(t, "one", string(sent))
		assert.Empty(t, asError(t, err).Reason, "no retry heals it")
		assert.EqualValues(t, 1, body.closed.Load())
	})
	bubbled(t, "canceled in the wait, and closing waits for the read", func(t *testing.T) {
		body := &exclusiveBody{slowBody: slowBody{give: make(chan string)}, lock: make(chan struct{}, 1)}
		var wg sync.WaitGroup
		var oldErr error
		base := plays(earlyStep(&wg, &oldErr))
		base.keep = true
		go func() {
			body.give <- "one"
			time.Sleep(time.Minute)
			close(body.give)
		}()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(500*time.Millisecond, cancel)
		start := time.Now()
		_, err := (&retrip.Transport{Base: base, Policy: steady}).RoundTrip(request(t, "PUT", body).WithContext(ctx))
		assert.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 500*time.Millisecond, time.Since(start))
		wg.Wait()
		synctest.Wait()
		assert.EqualValues(t, 1, body.closed.Load())
	})
	bubbled(t, "canceled in the wait", func(t *testing.T) {
		body := &slowBody{give: make(chan string)}
		var wg sync.WaitGroup
		var oldErr error
		base := plays(earlyStep(&wg, &oldErr))
		base.keep = true
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			body.give <- "one"
			time.Sleep(500 * time.Millisecond)
			cancel()
			synctest.Wait()
			assert.EqualValues(t, 1, body.closed.Load())
			close(body.give)
		}()
		_, err := (&retrip.Transport{Base: base, Policy: steady}).RoundTrip(request(t, "PUT", body).WithContext(ctx))
		assert.ErrorIs(t, err, context.Canceled)
		wg.Wait()
		assert.EqualValues(t, 1, body.closed.Load())
	})
}

// A reader of an attempt that is over can't touch what later ones read.
func TestReplay_OldReaderIsDead(t *testing.T) {
	for _, body := range []io.Reader{stream([]byte("abcdef")), io.NewSectionReader(strings.NewReader("abcdef"), 0, 6)} {
		bubbled(t, fmt.Sprintf("%T", body), func(t *testing.T) {
			var old io.ReadCloser
			base := plays(func(r *http.Request) (*http.Response, error) {
				old = r.Body
				_, _ = old.Read(make([]byte, 2))
				return replies(503)(r)
			}, func(r *http.Request) (*http.Response, error) {
				n, err := old.Read(make([]byte, 2))
				assert.Zero(t, n)
				assert.Error(t, err)
				assert.NotErrorIs(t, err, io.EOF)
				assert.NoError(t, old.Close())
				b, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Equal(t, "abcdef", string(b))
				return replies(200)(r)
			})
			base.keep = true
			resp, err := (&retrip.Transport{Base: base, Policy: steady}).RoundTrip(request(t, "PUT", body))
			require.NoError(t, err)
			finish(t, resp)
			require.Equal(t, 2, base.attempts())
		})
	}
}

// The request that a base gets has a GetBody only where GetBody can't fail, and
// only if it may be sent twice.
func TestReplay_GetBodyOfDerived(t *testing.T) {
	file := func() io.Reader { return io.NewSectionReader(strings.NewReader("abcd"), 0, 4) }
	text := func() io.Reader { return stream([]byte("abcd")) }
	for _, tt := range []struct {
		name, method string
		body         func() io.Reader
		length       int64
		kept         int64
		want         bool
	}{
		{"section", "PUT", file, 0, 0, true},
		{"section, POST", "POST", file, 4, 0, false},
		{"stream that fits", "PUT", text, 4, 5, true},
		{"stream that fits, POST", "POST", text, 4, 5, false},
		{"stream that might not be kept to its end", "PUT", text, 4, 4, false},
		{"stream of an unknown length", "PUT", text, 0, 0, false},
		{"stream of an unknown length, -1", "PUT", text, -1, 0, false},
		{"stream that isn't kept", "PUT", text, 4, retrip.Off, false},
	} {
		bubbled(t, tt.name, func(t *testing.T) {
			base := plays(func(r *http.Request) (*http.Response, error) {
				b, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				assert.Equal(t, "abcd", string(b))
				if assert.Equal(t, tt.want, r.GetBody != nil) && tt.want {
					again, err := r.GetBody()
					require.NoError(t, err)
					b, err = io.ReadAll(again)
					require.NoError(t, err)
					assert.Equal(t, "abcd", string(b))
				}
				return replies(200)(r)
			})
			base.keep = true
			tr := &retrip.Transport{Base: base, Policy: with(func(p *retrip.Policy) { p.MaxReplayBody = tt.kept })}
			req := request(t, tt.method, tt.body())
			req.ContentLength = tt.length
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			finish(t, resp)
		})
	}
}

// Errors on the way to a body.
func TestReplay_Errors(t *testing.T) {
	broken := errors.New("broken")
	for _, kept := range []string{"", "some bytes"} {
		bubbled(t, "Read fails after "+kept, func(t *testing.T) {
			base := plays(replies(200))
			body := &slowBody{give: make(chan string, 1), fail: broken}
			if kept != "" {
				body.give <- kept
			}
			close(body.give)
			_, err := (&retrip.Transport{Base: base, Policy: steady}).RoundTrip(request(t, "PUT", body))
			assert.Same(t, broken, err)
			assert.Equal(t, 1, base.attempts())
			assert.EqualValues(t, 1, body.closed.Load())
		})
	}
	bubbled(t, "Read fails, which tells nothing about the host", func(t *testing.T) {
		tr := &retrip.Transport{Base: plays(replies(200)), Metrics: retrip.NewMetrics(), Policy: retrip.Policy{Breaker: retrip.Breaker{Ratio: 1, MinVolume: 2}}}
		for range 3 {
			_, err := tr.RoundTrip(request(t, "PUT", io.MultiReader(strings.NewReader("x"), iotest.ErrReader(broken))))
			assert.Same(t, broken, err)
		}
		assert.Empty(t, tr.HostStates())
		assert.Contains(t, counted(t, tr.Metrics), "requests_total{default,failed} 3")
	})
	bubbled(t, "Read fails, and Classify says to retry all the same", func(t *testing.T) {
		base := plays(replies(200))
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Classify: func(_ *http.Request, _ *http.Response, err error) retrip.Verdict {
			if err != nil {
				return retrip.Retryable
			}
			return retrip.ByRule
		}}}
		body := &sendBody{Reader: io.MultiReader(strings.NewReader("x"), iotest.ErrReader(broken))}
		_, err := tr.RoundTrip(request(t, "PUT", body))
		assert.Same(t, broken, err, "what was kept is not the body")
		assert.EqualValues(t, 1, body.closed.Load())
	})
	bubbled(t, "GetBody fails after a response", func(t *testing.T) {
		base := plays(replies(503))
		req := request(t, "PUT", strings.NewReader("x"))
		req.GetBody = func() (io.ReadCloser, error) { return nil, broken }
		var reasons []retrip.Reason
		tr := &retrip.Transport{Base: base, Policy: with(func(p *retrip.Policy) { p.Budget = retrip.Budget{Size: 1} }),
			Trace: &retrip.Trace{GiveUp: func(e retrip.Event) { reasons = append(reasons, e.Reason) }}}
		for range 3 {
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			assert.Equal(t, 503, resp.StatusCode)
			assert.Equal(t, "ok", finish(t, resp))
		}
		// Its token came back each time.
		assert.Equal(t, []retrip.Reason{"body_not_replayable", "body_not_replayable", "body_not_replayable"}, reasons)
		assert.Empty(t, tr.HostStates())
	})
	bubbled(t, "GetBody fails after an error", func(t *testing.T) {
		reset := errors.New("reset")
		req := request(t, "PUT", strings.NewReader("x"))
		req.GetBody = func() (io.ReadCloser, error) { return nil, broken }
		_, err := (&retrip.Transport{Base: plays(fails(reset)), Policy: steady}).RoundTrip(req)
		assert.ErrorIs(t, err, reset)
		assert.ErrorIs(t, err, broken)
		assert.Equal(t, retrip.ReasonBodyNotReplayable, asError(t, err).Reason)
	})
	bubbled(t, "a body had from GetBody for an attempt that is never made is closed", func(t *testing.T) {
		var made []*sendBody
		req := request(t, "PUT", strings.NewReader("x"))
		req.GetBody = func() (io.ReadCloser, error) { made = append(made, newSend("x")); return made[len(made)-1], nil }
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		time.AfterFunc(time.Second/2, cancel)
		_, err := (&retrip.Transport{Base: plays(replies(503)), Policy: steady}).RoundTrip(req.WithContext(ctx))
		require.Error(t, err)
		require.Len(t, made, 1)
		assert.EqualValues(t, 1, made[0].closed.Load())
	})
}

// The caller's body is closed once, whatever happens.
func TestReplay_ClosedOnce(t *testing.T) {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	fine := retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}, Budget: retrip.Unlimited}
	for _, tt := range []struct {
		name   string
		method string
		policy retrip.Policy
		ctx    context.Context
		steps  []step
	}{
		{"success", "PUT", fine, nil, []step{replies(200)}},
		{"recovered", "PUT", fine, nil, []step{replies(503), replies(200)}},
		{"used up", "PUT", fine, nil, []step{replies(503)}},
		{"one attempt", "PUT", retrip.Policy{MaxAttempts: 1}, nil, []step{replies(503)}},
		{"errors", "PUT", fine, nil, []step{fails(errors.New("reset"))}},
		{"not idempotent", "POST", fine, nil, []step{replies(503)}},
		{"context done", "PUT", fine, canceled, []step{replies(200)}},
		{"policy invalid", "PUT", retrip.Policy{MaxAttempts: -3}, nil, []step{replies(200)}},
		{"policy of the context invalid", "PUT", fine, retrip.WithPolicy(context.Background(), retrip.Policy{MaxAttempts: -3}), []step{replies(200)}},
		{"nothing from the base", "PUT", fine, nil, []step{fails(nil)}},
		{"with a key of ours", "POST", retrip.Policy{IdempotencyKey: retrip.On, Backoff: retrip.Backoff{Base: retrip.Off}}, nil, []step{replies(503), replies(200)}},
	} {
		for _, getBody := range []bool{false, true} {
			bubbled(t, fmt.Sprint(tt.name, " GetBody ", getBody), func(t *testing.T) {
				body := newSend("payload")
				req := request(t, tt.method, body)
				if tt.ctx != nil {
					req = req.WithContext(tt.ctx)
				}
				if getBody {
					req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("payload")), nil }
				}
				base := plays(tt.steps...)
				resp, err := (&retrip.Transport{Base: base, Policy: tt.policy}).RoundTrip(req)
				if err == nil {
					finish(t, resp)
				}
				assert.EqualValues(t, 1, body.closed.Load())
				for _, sent := range base.sent {
					assert.Equal(t, "payload", sent)
				}
				assert.Equal(t, len(base.bodies), base.closedBodies())
			})
		}
	}
}

// Body, attempt timeout and retry together: the Content-Length is that of the
// body on every attempt.
func TestReplay_ContentLength(t *testing.T) {
	eachProto(t, func(t *testing.T, proto memhttp.Proto) {
		payload := pattern(50 << 10)
		var seen atomic.Int32
		s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.EqualValues(t, len(payload), r.ContentLength)
			got, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(payload, got))
			switch seen.Add(1) % 3 {
			case 1:
				<-r.Context().Done()
			case 2:
				w.WriteHeader(503)
			}
		}))
		tr := &retrip.Transport{Base: s.Transport(), Policy: with(func(p *retrip.Policy) { p.AttemptTimeout = time.Second })}
		for _, body := range []io.Reader{bytes.NewReader(payload), stream(payload)} {
			req := mustRequest(t, "PUT", s.URL, body)
			req.ContentLength = int64(len(payload))
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			finish(t, resp)
			assert.Equal(t, 200, resp.StatusCode)
		}
		assert.EqualValues(t, 6, seen.Load())
	})
}

// net/http's HTTP/2 closes a body for which a connection turned out to be
// unusable, and hands the same body to another one.
func TestReplay_ClosedBeforeItIsRead(t *testing.T) {
	for name, body := range map[string]func() io.Reader{
		"stream":  func() io.Reader { return stream([]byte("payload")) },
		"section": func() io.Reader { return io.NewSectionReader(strings.NewReader("payload"), 0, 7) },
	} {
		bubbled(t, name, func(t *testing.T) {
			sent := newSend("")
			sent.Reader = body()
			var old io.ReadCloser
			base := plays(func(r *http.Request) (*http.Response, error) {
				assert.NoError(t, r.Body.Close())
				got, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Equal(t, "payload", string(got))
				assert.NoError(t, r.Body.Close())
				n, err := r.Body.Read(make([]byte, 1))
				assert.Zero(t, n)
				assert.Error(t, err, "closed after it was read")
				return replies(503)(r)
			}, func(r *http.Request) (*http.Response, error) {
				old = r.Body // neither read nor closed
				return replies(503)(r)
			}, func(r *http.Request) (*http.Response, error) {
				n, err := old.Read(make([]byte, 1))
				assert.Zero(t, n)
				assert.Error(t, err, "superseded")
				got, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Equal(t, "payload", string(got))
				assert.NoError(t, r.Body.Close())
				return replies(200)(r)
			})
			base.keep = true
			req := request(t, "PUT", nil)
			req.Body = sent
			if name == "section" {
				req.Body = io.NopCloser(body())
			}
			resp, err := (&retrip.Transport{Base: base, Policy: steady}).RoundTrip(req)
			require.NoError(t, err)
			finish(t, resp)
			if name == "stream" {
				assert.EqualValues(t, 1, sent.closed.Load())
			}
		})
	}
	bubbled(t, "and not closed again", func(t *testing.T) {
		// net/http closes a body once, whatever it does with it then.
		sent := newSend("payload")
		base := plays(func(r *http.Request) (*http.Response, error) {
			assert.NoError(t, r.Body.Close())
			got, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.Equal(t, "payload", string(got))
			return replies(200)(r)
		})
		base.keep = true
		resp, err := (&retrip.Transport{Base: base, Policy: steady}).RoundTrip(request(t, "PUT", sent))
		require.NoError(t, err)
		finish(t, resp)
		synctest.Wait()
		assert.EqualValues(t, 1, sent.closed.Load())
	})
	bubbled(t, "when nobody will send it any more", func(t *testing.T) {
		sent := newSend("payload")
		var last io.ReadCloser
		base := plays(func(r *http.Request) (*http.Response, error) {
			last = r.Body
			assert.NoError(t, r.Body.Close())
			return replies(200)(r)
		})
		base.keep = true
		resp, err := (&retrip.Transport{Base: base, Policy: steady}).RoundTrip(request(t, "PUT", sent))
		require.NoError(t, err)
		finish(t, resp)
		n, err := last.Read(make([]byte, 1))
		assert.Zero(t, n)
		assert.Error(t, err)
		assert.EqualValues(t, 1, sent.closed.Load())
	})
}
