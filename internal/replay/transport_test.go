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
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
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

// If a base asks for n bytes, retrip asks the caller's body for n bytes.
//
//retrip:promise P7
func TestReplay_NeverReadsAhead(t *testing.T) {
	play.Bubble(t, "", func(t *testing.T) {
		data := bytes.NewReader(play.Pattern(10_000))
		body := &play.SendBody{Reader: data}
		base := play.Keep(func(r *http.Request) (*http.Response, error) {
			for left := 9900; left >= 9000; left -= 100 {
				_, err := io.ReadFull(r.Body, make([]byte, 100))
				assert.NoError(t, err)
				assert.Equal(t, left, data.Len())
			}
			_ = r.Body.Close()
			return play.Reply(200)(r)
		})
		play.Do(t, &retrip.Transport{Base: base}, play.Request(t, "PUT", body))
		assert.EqualValues(t, 1, body.Closed.Load())
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
		f, err := os.Open("/proc/self/status")
		if err != nil {
			t.Skip("no /proc here")
		}
		base, err := send(t, f)
		require.NoError(t, err)
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
		base, err := send(t, r)
		require.NoError(t, err)
		assert.Equal(t, []string{"through a pipe", "through a pipe"}, base.Sent)
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

// The request for the base has a GetBody only if it may be sent twice and
// GetBody can't fail.
//
//retrip:promise P7
func TestReplay_GetBodyOfDerived(t *testing.T) {
	bodies := kinds(t, []byte("abcd"))
	for _, tt := range []struct {
		name, method, kind string
		length, kept       int64
		want               bool
	}{
		{"section", "PUT", "section", 0, 0, true},
		{"section, POST", "POST", "section", 4, 0, false},
		{"stream that fits", "PUT", "stream", 4, 5, true},
		{"stream that fits, POST", "POST", "stream", 4, 5, false},
		{"stream that might not be kept to its end", "PUT", "stream", 4, 4, false},
		{"stream of an unknown length", "PUT", "stream", 0, 0, false},
		{"stream of an unknown length, -1", "PUT", "stream", -1, 0, false},
		{"stream that isn't kept", "PUT", "stream", 4, retrip.Off, false},
	} {
		play.Bubble(t, tt.name, func(t *testing.T) {
			base := play.Keep(func(r *http.Request) (*http.Response, error) {
				assert.Equal(t, "abcd", play.ReadAll(t, r.Body))
				if assert.Equal(t, tt.want, r.GetBody != nil) && tt.want {
					assert.Equal(t, "abcd", play.ReadAll(t, play.Must(r.GetBody())))
				}
				return play.Reply(200)(r)
			})
			tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.MaxReplayBody = tt.kept })}
			req := play.Request(t, tt.method, bodies[tt.kind]())
			req.ContentLength = tt.length
			play.Do(t, tr, req)
		})
	}
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

// A body had from GetBody for an attempt that is never made is closed.
//
//retrip:promise P7
func TestReplay_BodyForNoAttempt(t *testing.T) {
	play.Bubble(t, "", func(t *testing.T) {
		var made []*play.SendBody
		req := play.Request(t, "PUT", strings.NewReader("x"))
		req.GetBody = func() (io.ReadCloser, error) {
			made = append(made, play.NewSend("x"))
			return made[len(made)-1], nil
		}
		ctx, cancel := context.WithCancel(t.Context())
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
	payload := play.Pattern(50 << 10)
	bodies := kinds(t, payload)
	play.EachProto(t, func(t *testing.T, proto memhttp.Proto) {
		var seen atomic.Int32
		s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.EqualValues(t, len(payload), r.ContentLength)
			assert.True(t, string(payload) == play.ReadAll(t, r.Body))
			switch seen.Add(1) % 3 {
			case 1:
				<-r.Context().Done()
			case 2:
				w.WriteHeader(503)
			}
		}))
		tr := &retrip.Transport{Base: s.Transport(), Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = time.Second })}
		for _, kind := range []string{"GetBody", "stream"} {
			req := play.MustRequest(t, "PUT", s.URL, bodies[kind]())
			req.ContentLength = int64(len(payload))
			resp, _ := play.Do(t, tr, req)
			assert.Equal(t, 200, resp.StatusCode)
		}
		assert.EqualValues(t, 6, seen.Load())
	})
}

// A base that signs requests may read the body from GetBody first and send the
// body after that. It also may read the body and send another.
//
//retrip:promise P4
func TestReplay_SigningBase(t *testing.T) {
	for kind, open := range kinds(t, []byte("payload")) {
		for _, closes := range []bool{false, true} {
			for _, method := range []string{"PUT", "POST"} {
				play.Bubble(t, fmt.Sprint(kind, " closes ", closes, " ", method), func(t *testing.T) {
					var seen atomic.Int32
					s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						got := play.ReadAll(t, r.Body)
						assert.Equal(t, "payload", got)
						assert.Equal(t, signature(got), r.Header.Get("Signature"))
						if seen.Add(1) < 3 {
							w.WriteHeader(http.StatusTooManyRequests)
						}
					}))
					inner := s.Transport()
					signer := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
						r = r.Clone(r.Context())
						var content string
						if r.GetBody != nil {
							b := play.Must(r.GetBody())
							content = play.ReadAll(t, b)
							if closes {
								b.Close()
							}
						} else {
							content = play.ReadAll(t, r.Body)
							r.Body.Close()
							r.Body = io.NopCloser(strings.NewReader(content))
						}
						r.Header.Set("Signature", signature(content))
						return inner.RoundTrip(r)
					})
					transport := &retrip.Transport{Base: signer, Policy: play.With(func(p *retrip.Policy) { p.Unprocessed = []int{429} })}
					body, counted := open(), play.NewSend("payload")
					if kind == "stream" {
						body = counted
					}
					req := play.MustRequest(t, method, s.URL, body)
					req.ContentLength = 7
					play.Do(t, transport, req)
					assert.EqualValues(t, 3, seen.Load())
					synctest.Wait()
					assert.Equal(t, kind == "stream", counted.Closed.Load() == 1)
				})
			}
		}
	}
}

func signature(content string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(content))) }

// The caller's body is closed when the last attempt closes its reader, which
// may be after RoundTrip has returned. An earlier attempt doesn't close it.
//
//retrip:promise P2
func TestReplay_ClosedWithTheLastReader(t *testing.T) {
	play.Bubble(t, "", func(t *testing.T) {
		base := play.Keep(play.Reply(503), play.Reply(200))
		body := play.NewSend("text")
		play.Do(t, &retrip.Transport{Base: base, Policy: play.AtOnce}, play.Request(t, "PUT", body))
		require.Len(t, base.Reqs, 2)
		base.Reqs[0].Body.Close()
		assert.Zero(t, body.Closed.Load())
		for range 3 {
			base.Reqs[1].Body.Close()
			assert.EqualValues(t, 1, body.Closed.Load())
		}
	})
}

// A base that panics no longer uses its reader, closed or not.
//
//retrip:promise P5
func TestReplay_ClosedAfterAPanicOfTheBase(t *testing.T) {
	play.Bubble(t, "", func(t *testing.T) {
		base := play.Keep(func(*http.Request) (*http.Response, error) { panic("base") })
		body := play.NewSend("text")
		assert.PanicsWithValue(t, "base", func() { _, _ = (&retrip.Transport{Base: base}).RoundTrip(play.Request(t, "PUT", body)) })
		assert.EqualValues(t, 1, body.Closed.Load())
		yieldsNothing(t, base.Reqs[0].Body)
	})
}

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
