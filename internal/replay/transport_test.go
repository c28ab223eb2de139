// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

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

// kinds returns bodies of each kind that hold payload.
func kinds(t *testing.T, payload []byte) map[string]func() io.Reader {
	t.Helper()
	file := filepath.Join(t.TempDir(), "upload")
	require.NoError(t, os.WriteFile(file, payload, 0o600))
	around := bytes.NewReader(append(append([]byte("--"), payload...), "--"...))
	return map[string]func() io.Reader{
		"GetBody": func() io.Reader { return bytes.NewReader(payload) },
		"section": func() io.Reader { return io.NewSectionReader(around, 2, int64(len(payload))) },
		"stream":  func() io.Reader { return play.Stream(payload) },
		"file":    func() io.Reader { return play.Must(os.Open(file)) },
	}
}

// again returns a GetBody for payload.
func again(payload string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(payload)), nil }
}

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
			assert.Equal(t, "last", play.ReadAll(t, r.Body))
		}))
		pr, pw := io.Pipe()
		go func() {
			_, _ = pw.Write([]byte{'1'})
			assert.Equal(t, byte('1'), <-saw)
			_, _ = io.WriteString(pw, "last")
			_ = pw.Close()
		}()
		play.Do(t, &retrip.Transport{Base: s.Transport(), Policy: play.Steady}, play.MustRequest(t, "PUT", s.URL, pr))
	})
}

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
			payload := string(play.Pattern(tt.size))
			base := play.Base(play.Reply(503), play.Reply(200))
			tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.MaxReplayBody = tt.bound })}
			body := play.NewSend(payload)
			resp, _ := play.Do(t, tr, play.Request(t, "PUT", body))
			assert.Equal(t, tt.attempts, base.Attempts())
			assert.Equal(t, tt.attempts == 1, resp.StatusCode == 503)
			for i, sent := range base.Sent {
				assert.True(t, sent == payload, "attempt %d got %d bytes", i+1, len(sent))
			}
			assert.EqualValues(t, 1, body.Closed.Load())
		})
	}
}

// A body that nobody has read from can be sent again, whatever its size.
//
//retrip:promise P7
func TestReplay_Untouched(t *testing.T) {
	play.EachProto(t, func(t *testing.T, proto memhttp.Proto) {
		payload := play.Pattern(1 << 20)
		s := memhttp.NewServer(t, proto, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			assert.True(t, string(payload) == play.ReadAll(t, r.Body))
		}))
		s.Listener.Refuse(true)
		time.AfterFunc(1500*time.Millisecond, func() { s.Listener.Refuse(false) })
		base := play.Keep(s.Transport().RoundTrip)
		tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.MaxReplayBody = retrip.Off })}
		// A refused dial proves that even a POST was not processed.
		play.Do(t, tr, play.MustRequest(t, "POST", s.URL, play.Stream(payload)))
		assert.Equal(t, 3, base.Attempts())
	})
}

// A file with a wrong size, and something that is a file only by type.
//
//retrip:promise P7
func TestReplay_OddFiles(t *testing.T) {
	send := func(t *testing.T, f *os.File) (base *play.Script, err error) {
		base = play.Base(play.Reply(503), play.Reply(200))
		_, err = (&retrip.Transport{Base: base, Policy: play.AtOnce}).RoundTrip(play.Request(t, "PUT", f))
		assert.ErrorIs(t, f.Close(), os.ErrClosed)
		return base, err
	}
	t.Run("size of zero", func(t *testing.T) {
		f, err := os.Open("/proc/version")
		if err != nil {
			t.Skip("no /proc here")
		}
		base, err := send(t, f)
		require.NoError(t, err)
		require.Len(t, base.Sent, 2)
		for _, sent := range base.Sent {
			assert.Contains(t, sent, "version")
		}
	})
	t.Run("pipe", func(t *testing.T) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		_, err = w.WriteString("through a pipe")
		require.NoError(t, err)
		require.NoError(t, w.Close())
		base, err := send(t, r)
		require.NoError(t, err)
		assert.Equal(t, []string{"through a pipe", "through a pipe"}, base.Sent)
	})
	t.Run("cut in between", func(t *testing.T) {
		f := payloadFile(t, os.O_RDONLY)
		policy := play.AtOnce
		policy.Classify = func(*http.Request, *http.Response, error) retrip.Verdict {
			require.NoError(t, os.Truncate(f.Name(), 3))
			return retrip.ByRule
		}
		base := play.Base(play.Reply(503), play.Reply(200))
		_, err := (&retrip.Transport{Base: base, Policy: policy}).RoundTrip(play.Request(t, "PUT", f))
		assert.ErrorContains(t, err, "ends earlier")
		assert.Equal(t, 2, base.Attempts())
	})
	t.Run("closed already", func(t *testing.T) {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		require.NoError(t, err)
		require.NoError(t, f.Close())
		base, err := send(t, f)
		assert.ErrorIs(t, err, os.ErrClosed)
		assert.Equal(t, 1, base.Attempts())
	})
}

// If Classify wants a retry after the body has failed, the kept part is still not the
// whole body.
//
//retrip:promise P7
func TestReplay_ClassifyOfABrokenBody(t *testing.T) {
	play.Bubble(t, "", func(t *testing.T) {
		broken := errors.New("broken")
		tr := &retrip.Transport{Base: play.Base(play.Reply(200)), Policy: retrip.Policy{
			Classify: func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.Retryable },
		}}
		body := &play.SendBody{Reader: io.MultiReader(strings.NewReader("x"), iotest.ErrReader(broken))}
		_, err := tr.RoundTrip(play.Request(t, "PUT", body))
		assert.Same(t, broken, err)
		assert.EqualValues(t, 1, body.Closed.Load())
	})
}

func signature(content string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(content))) }

// yieldsNothing fails t unless a Read of r fails without a byte.
func yieldsNothing(t *testing.T, r io.Reader) {
	t.Helper()
	n, err := r.Read(make([]byte, 1))
	assert.Zero(t, n)
	assert.Error(t, err)
}

// The caller's body is closed once, whatever happens.
//
//retrip:promise P2
func TestReplay_ClosedOnce(t *testing.T) {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	invalid := retrip.Policy{MaxAttempts: -3}
	wrong := retrip.WithPolicy(context.Background(), invalid)
	for _, tt := range []struct {
		name   string
		method string
		policy retrip.Policy
		ctx    context.Context
		steps  []play.Step
	}{
		{"success", "PUT", play.AtOnce, nil, []play.Step{play.Reply(200)}},
		{"recovered", "PUT", play.AtOnce, nil, []play.Step{play.Reply(503), play.Reply(200)}},
		{"used up", "PUT", play.AtOnce, nil, []play.Step{play.Reply(503)}},
		{"one attempt", "PUT", retrip.Policy{MaxAttempts: 1}, nil, []play.Step{play.Reply(503)}},
		{"errors", "PUT", play.AtOnce, nil, []play.Step{play.Err(errors.New("reset"))}},
		{"not idempotent", "POST", play.AtOnce, nil, []play.Step{play.Reply(503)}},
		{"context done", "PUT", play.AtOnce, canceled, []play.Step{play.Reply(200)}},
		{"policy invalid", "PUT", invalid, nil, []play.Step{play.Reply(200)}},
		{"policy of the context invalid", "PUT", play.AtOnce, wrong, []play.Step{play.Reply(200)}},
		{"nothing from the base", "PUT", play.AtOnce, nil, []play.Step{play.Err(nil)}},
		{"with a key of ours", "POST", play.With(func(p *retrip.Policy) { p.IdempotencyKey = retrip.On }), nil, []play.Step{play.Reply(503), play.Reply(200)}},
	} {
		for _, getBody := range []bool{false, true} {
			play.Bubble(t, fmt.Sprint(tt.name, " GetBody ", getBody), func(t *testing.T) {
				body := play.NewSend("payload")
				req := play.Request(t, tt.method, body)
				if tt.ctx != nil {
					req = req.WithContext(tt.ctx)
				}
				if getBody {
					req.GetBody = again("payload")
				}
				base := play.Base(tt.steps...)
				if resp, err := (&retrip.Transport{Base: base, Policy: tt.policy}).RoundTrip(req); err == nil {
					play.Finish(t, resp)
				}
				assert.EqualValues(t, 1, body.Closed.Load())
				for _, sent := range base.Sent {
					assert.Equal(t, "payload", sent)
				}
				assert.Equal(t, len(base.Bodies), base.ClosedBodies())
			})
		}
	}
}
