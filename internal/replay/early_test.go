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
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// The server responds while the upload is still in progress. It reads all of
// the third attempt. Run this test with the race detector.
//
//retrip:promise P7
func TestReplay_EarlyAnswer(t *testing.T) {
	payload := play.Pattern(16 << 20)
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
		{"stream", func(*testing.T) io.Reader { return play.Stream(payload) }},
	} {
		for _, proto := range play.Protos {
			play.Bubble(t, tt.name+"/"+proto.String(), func(t *testing.T) {
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
				tr := &retrip.Transport{Base: s.Transport(), Policy: play.With(func(p *retrip.Policy) { p.MaxReplayBody = 32 << 20 })}
				req := play.MustRequest(t, "PUT", s.URL, tt.body(t))
				req.ContentLength = int64(len(payload))
				_, got := play.Do(t, tr, req)
				assert.Equal(t, fmt.Sprintf("%x", want), got)
				assert.EqualValues(t, 3, seen.Load())
			})
		}
	}
}

// slowBody returns bytes when told to, and detects concurrent Reads.
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

// exclusiveBody can't be closed during a Read, like the body of a server's
// request.
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

// earlyStep answers 503 while a goroutine of the base still reads the body, as
// with net/http.
func earlyStep(read *sync.WaitGroup, got *error) play.Step {
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
		return play.Reply(503)(r)
	}
}

// An attempt is still blocked in a Read of the caller's body when the next one
// begins.
//
//retrip:promise P7 P13
func TestReplay_OldAttemptReads(t *testing.T) {
	play.Bubble(t, "the next one gets what it read", func(t *testing.T) {
		body := &slowBody{give: make(chan string)}
		var wg sync.WaitGroup
		var oldErr error
		base := play.Base(earlyStep(&wg, &oldErr), func(r *http.Request) (*http.Response, error) {
			b, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.Equal(t, "onetwothree", string(b))
			_ = r.Body.Close()
			return play.Reply(200)(r)
		})
		base.Keep = true
		go func() {
			body.give <- "one"
			time.Sleep(time.Hour)
			body.give <- "two"
			body.give <- "three"
			close(body.give)
		}()
		play.Do(t, &retrip.Transport{Base: base, Policy: play.Steady}, play.Request(t, "PUT", body))
		wg.Wait()
		assert.ErrorContains(t, oldErr, "is over")
		assert.EqualValues(t, 1, body.closed.Load())
	})
	play.Bubble(t, "a read that fails meanwhile never becomes an empty body", func(t *testing.T) {
		broken := errors.New("disk on fire")
		body := &slowBody{give: make(chan string), fail: broken}
		var wg sync.WaitGroup
		var oldErr, newErr error
		var sent []byte
		base := play.Base(earlyStep(&wg, &oldErr), func(r *http.Request) (*http.Response, error) {
			if !assert.NotNil(t, r.Body) {
				return play.Reply(200)(r)
			}
			sent, newErr = io.ReadAll(r.Body)
			_ = r.Body.Close()
			return nil, newErr
		})
		base.Keep = true
		go func() {
			body.give <- "one"
			time.Sleep(500 * time.Millisecond)
			close(body.give)
		}()
		_, err := (&retrip.Transport{Base: base, Policy: play.Steady}).RoundTrip(play.Request(t, "PUT", body))
		wg.Wait()
		assert.ErrorIs(t, err, broken)
		assert.ErrorIs(t, newErr, broken)
		assert.Equal(t, "one", string(sent))
		assert.Empty(t, play.AsError(t, err).Reason, "no retry can fix it")
		assert.EqualValues(t, 1, body.closed.Load())
	})
	play.Bubble(t, "canceled in the wait, and closing waits for the read", func(t *testing.T) {
		body := &exclusiveBody{slowBody: slowBody{give: make(chan string)}, lock: make(chan struct{}, 1)}
		var wg sync.WaitGroup
		var oldErr error
		base := play.Base(earlyStep(&wg, &oldErr))
		base.Keep = true
		go func() {
			body.give <- "one"
			time.Sleep(time.Minute)
			close(body.give)
		}()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(500*time.Millisecond, cancel)
		start := time.Now()
		_, err := (&retrip.Transport{Base: base, Policy: play.Steady}).RoundTrip(play.Request(t, "PUT", body).WithContext(ctx))
		assert.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 500*time.Millisecond, time.Since(start))
		wg.Wait()
		synctest.Wait()
		assert.EqualValues(t, 1, body.closed.Load())
	})
	play.Bubble(t, "canceled in the wait", func(t *testing.T) {
		body := &slowBody{give: make(chan string)}
		var wg sync.WaitGroup
		var oldErr error
		base := play.Base(earlyStep(&wg, &oldErr))
		base.Keep = true
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			body.give <- "one"
			time.Sleep(500 * time.Millisecond)
			cancel()
			synctest.Wait()
			assert.EqualValues(t, 1, body.closed.Load())
			close(body.give)
		}()
		_, err := (&retrip.Transport{Base: base, Policy: play.Steady}).RoundTrip(play.Request(t, "PUT", body).WithContext(ctx))
		assert.ErrorIs(t, err, context.Canceled)
		wg.Wait()
		assert.EqualValues(t, 1, body.closed.Load())
	})
}

// The response arrives while the base waits for a byte beyond the part that is
// kept. That byte may arrive and be lost, so there is no retry.
//
//retrip:promise P7
func TestReplay_AnswerDuringAReadBeyondTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
			attempts++
			go func() {
				_, _ = io.Copy(io.Discard, req.Body)
				req.Body.Close()
			}()
			synctest.Wait()
			return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody, Request: req}, nil
		})
		var reason retrip.Reason
		transport := &retrip.Transport{
			Base: base, Policy: retrip.Policy{MaxReplayBody: 4},
			Trace: &retrip.Trace{GiveUp: func(e retrip.Event) { reason = e.Reason }},
		}
		body := &stalledBody{Reader: strings.NewReader("text"), closed: make(chan struct{})}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://example.com/", body)
		require.NoError(t, err)
		resp, err := transport.RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, 1, attempts)
		assert.Equal(t, retrip.ReasonBodyNotReplayable, reason)
		body.Close()
		synctest.Wait()
	})
}

// A base that signs requests may read the body from GetBody first and send the
// body after that. It also may read the body and send another.
//
//retrip:promise P4
func TestReplay_SigningBase(t *testing.T) {
	file := filepath.Join(t.TempDir(), "upload")
	require.NoError(t, os.WriteFile(file, []byte("payload"), 0o600))
	bodies := map[string]func(t *testing.T) io.Reader{
		"bytes":   func(*testing.T) io.Reader { return strings.NewReader("payload") },
		"section": func(*testing.T) io.Reader { return io.NewSectionReader(strings.NewReader("--payload--"), 2, 7) },
		"stream":  func(*testing.T) io.Reader { return play.Stream([]byte("payload")) },
		"file": func(t *testing.T) io.Reader {
			f, err := os.Open(file)
			require.NoError(t, err)
			return f
		},
	}
	for kind, open := range bodies {
		for _, closes := range []bool{false, true} {
			for _, method := range []string{"PUT", "POST"} {
				play.Bubble(t, fmt.Sprint(kind, " closes ", closes, " ", method), func(t *testing.T) {
					var seen atomic.Int32
					s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						got, err := io.ReadAll(r.Body)
						assert.NoError(t, err)
						assert.Equal(t, "payload", string(got))
						assert.Equal(t, fmt.Sprintf("%x", sha256.Sum256(got)), r.Header.Get("Signature"))
						if seen.Add(1) < 3 {
							w.WriteHeader(http.StatusTooManyRequests)
						}
					}))
					inner := s.Transport()
					signer := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
						r = r.Clone(r.Context())
						var content []byte
						if r.GetBody != nil {
							b, err := r.GetBody()
							require.NoError(t, err)
							content, err = io.ReadAll(b)
							require.NoError(t, err)
							if closes {
								b.Close()
							}
						} else {
							var err error
							content, err = io.ReadAll(r.Body)
							require.NoError(t, err)
							r.Body.Close()
							r.Body = io.NopCloser(bytes.NewReader(content))
						}
						r.Header.Set("Signature", fmt.Sprintf("%x", sha256.Sum256(content)))
						return inner.RoundTrip(r)
					})
					transport := &retrip.Transport{Base: signer, Policy: play.With(func(p *retrip.Policy) { p.Unprocessed = []int{429} })}
					body := &play.SendBody{Reader: open(t)}
					req := play.MustRequest(t, method, s.URL, body)
					req.ContentLength = 7
					play.Do(t, transport, req)
					assert.EqualValues(t, 3, seen.Load())
					synctest.Wait()
					assert.EqualValues(t, 1, body.Closed.Load())
				})
			}
		}
	}
}
