// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

func TestMain(m *testing.M) { testenv.RareGC(m) }

// The first byte isn't delayed, and nothing is read ahead of the server.
//
//retrip:promise P7
func TestReplay_FirstByte(t *testing.T) {
	play.EachProto(t, func(t *testing.T, proto memhttp.Proto) {
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
		tr := &retrip.Transport{Base: s.Transport(), Policy: play.Steady}
		play.Do(t, tr, play.MustRequest(t, "PUT", s.URL, pr))
	})
}

// If a base asks for n bytes, retrip asks the caller's body for n bytes.
//
//retrip:promise P7
func TestReplay_NeverReadsAhead(t *testing.T) {
	body := &countingBody{data: play.Pattern(10_000)}
	base := play.Base(func(r *http.Request) (*http.Response, error) {
		for want := 100; want <= 1000; want += 100 {
			_, err := io.ReadFull(r.Body, make([]byte, 100))
			assert.NoError(t, err)
			assert.Equal(t, want, body.pos)
		}
		_ = r.Body.Close()
		return play.Reply(200)(r)
	})
	base.Keep = true
	play.Do(t, &retrip.Transport{Base: base}, play.Request(t, "PUT", body))
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

//retrip:promise P7
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
		play.Bubble(t, tt.name, func(t *testing.T) {
			payload := play.Pattern(tt.size)
			base := play.Base(play.Reply(503), play.Reply(200))
			tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.MaxReplayBody = tt.bound })}
			body := &countingBody{data: payload}
			resp, _ := play.Do(t, tr, play.Request(t, "PUT", body))
			assert.Equal(t, tt.attempts, base.Attempts())
			for i, sent := range base.Sent {
				assert.True(t, sent == string(payload), "attempt %d got %d bytes", i+1, len(sent))
			}
			assert.Equal(t, 1, body.closed)
			if tt.attempts == 1 {
				assert.Equal(t, 503, resp.StatusCode)
			}
		})
	}
}

// A body that nobody has read from can be sent again, whatever its size.
//
//retrip:promise P7
func TestReplay_Untouched(t *testing.T) {
	play.EachProto(t, func(t *testing.T, proto memhttp.Proto) {
		payload := play.Pattern(1 << 20)
		s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(payload, got))
		}))
		s.Listener.Refuse(true)
		time.AfterFunc(1500*time.Millisecond, func() { s.Listener.Refuse(false) })
		attempts := 0
		tr := &retrip.Transport{Base: s.Transport(), Policy: play.With(func(p *retrip.Policy) { p.MaxReplayBody = retrip.Off }),
			Trace: &retrip.Trace{Attempt: func(e retrip.Event) { attempts = e.Attempt }}}
		// A refused dial proves that even a POST was not processed.
		play.Do(t, tr, play.MustRequest(t, "POST", s.URL, play.Stream(payload)))
		assert.Equal(t, 3, attempts)
	})
}

// A file with a wrong size, and something that is a file only by type.
//
//retrip:promise P7
func TestReplay_OddFiles(t *testing.T) {
	t.Run("size of zero", func(t *testing.T) {
		f, err := os.Open("/proc/self/status")
		if err != nil {
			t.Skip("no /proc here")
		}
		base := play.Base(play.Reply(503), play.Reply(200))
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}}
		play.Do(t, tr, play.Request(t, "PUT", f))
		require.Len(t, base.Sent, 2)
		for _, sent := range base.Sent {
			assert.Contains(t, sent, "Name:")
		}
	})
	t.Run("pipe", func(t *testing.T) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		_, err = w.WriteString("through a pipe")
		require.NoError(t, err)
		require.NoError(t, w.Close())
		base := play.Base(play.Reply(503), play.Reply(200))
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}}
		play.Do(t, tr, play.Request(t, "PUT", r))
		assert.Equal(t, []string{"through a pipe", "through a pipe"}, base.Sent)
		assert.ErrorIs(t, r.Close(), os.ErrClosed)
	})
	t.Run("closed already", func(t *testing.T) {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		require.NoError(t, err)
		require.NoError(t, f.Close())
		base := play.Base(play.Reply(200))
		_, err = (&retrip.Transport{Base: base}).RoundTrip(play.Request(t, "PUT", f))
		assert.ErrorIs(t, err, os.ErrClosed)
		assert.Equal(t, 1, base.Attempts())
	})
}

// The request for the base has a GetBody only if it may be sent twice and
// GetBody can't fail.
//
//retrip:promise P7
func TestReplay_GetBodyOfDerived(t *testing.T) {
	file := func() io.Reader { return io.NewSectionReader(strings.NewReader("abcd"), 0, 4) }
	text := func() io.Reader { return play.Stream([]byte("abcd")) }
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
		play.Bubble(t, tt.name, func(t *testing.T) {
			base := play.Base(func(r *http.Request) (*http.Response, error) {
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
				return play.Reply(200)(r)
			})
			base.Keep = true
			tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.MaxReplayBody = tt.kept })}
			req := play.Request(t, tt.method, tt.body())
			req.ContentLength = tt.length
			play.Do(t, tr, req)
		})
	}
}

// Errors while a body is prepared or read.
//
//retrip:promise P7 P17
func TestReplay_Errors(t *testing.T) {
	broken := errors.New("broken")
	play.Bubble(t, "Read fails, and Classify says to retry all the same", func(t *testing.T) {
		base := play.Base(play.Reply(200))
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Classify: func(_ *http.Request, _ *http.Response, err error) retrip.Verdict {
			if err != nil {
				return retrip.Retryable
			}
			return retrip.ByRule
		}}}
		body := &play.SendBody{Reader: io.MultiReader(strings.NewReader("x"), iotest.ErrReader(broken))}
		_, err := tr.RoundTrip(play.Request(t, "PUT", body))
		assert.Same(t, broken, err, "the kept part is not the whole body")
		assert.EqualValues(t, 1, body.Closed.Load())
	})
	play.Bubble(t, "GetBody fails after a response", func(t *testing.T) {
		base := play.Base(play.Reply(503))
		req := play.Request(t, "PUT", strings.NewReader("x"))
		req.GetBody = func() (io.ReadCloser, error) { return nil, broken }
		var reasons []retrip.Reason
		tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.Budget = 1 }),
			Trace: &retrip.Trace{GiveUp: func(e retrip.Event) { reasons = append(reasons, e.Reason) }}}
		for range 3 {
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			assert.Equal(t, 503, resp.StatusCode)
			assert.Equal(t, "ok", play.Finish(t, resp))
		}
		// Its token was returned each time.
		assert.Equal(t, []retrip.Reason{"body_not_replayable", "body_not_replayable", "body_not_replayable"}, reasons)
		assert.Empty(t, play.Held(tr))
	})
	play.Bubble(t, "a body had from GetBody for an attempt that is never made is closed", func(t *testing.T) {
		var made []*play.SendBody
		req := play.Request(t, "PUT", strings.NewReader("x"))
		req.GetBody = func() (io.ReadCloser, error) { made = append(made, play.NewSend("x")); return made[len(made)-1], nil }
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		time.AfterFunc(time.Second/2, cancel)
		_, err := (&retrip.Transport{Base: play.Base(play.Reply(503)), Policy: play.Steady}).RoundTrip(req.WithContext(ctx))
		require.Error(t, err)
		require.Len(t, made, 1)
		assert.EqualValues(t, 1, made[0].Closed.Load())
	})
}

// Body, attempt timeout and retry together: Content-Length matches the body on
// every attempt.
//
//retrip:promise P7 P11
func TestReplay_ContentLength(t *testing.T) {
	play.EachProto(t, func(t *testing.T, proto memhttp.Proto) {
		payload := play.Pattern(50 << 10)
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
		tr := &retrip.Transport{Base: s.Transport(), Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = time.Second })}
		for _, body := range []io.Reader{bytes.NewReader(payload), play.Stream(payload)} {
			req := play.MustRequest(t, "PUT", s.URL, body)
			req.ContentLength = int64(len(payload))
			resp, _ := play.Do(t, tr, req)
			assert.Equal(t, 200, resp.StatusCode)
		}
		assert.EqualValues(t, 6, seen.Load())
	})
}
