// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
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
	want := signature(string(payload))
	bodies := kinds(t, payload)
	for _, kind := range []string{"GetBody", "file", "stream"} {
		for _, proto := range play.Protos {
			play.Bubble(t, kind+"/"+proto.String(), func(t *testing.T) {
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
				req := play.MustRequest(t, "PUT", s.URL, bodies[kind]())
				req.ContentLength = int64(len(payload))
				_, got := play.Do(t, tr, req)
				assert.Equal(t, want, got)
				assert.EqualValues(t, 3, seen.Load())
			})
		}
	}
}

// slowBody returns bytes when told to, and err once nothing more is given. It detects
// concurrent Reads. If it is exclusive, it can't be closed during a Read, like the body of
// a server's request.
type slowBody struct {
	give      chan string
	err       error
	exclusive bool
	lock      chan struct{}
	closed    atomic.Int32
}

func newSlow(err error, exclusive bool) *slowBody {
	return &slowBody{give: make(chan string), err: err, exclusive: exclusive, lock: make(chan struct{}, 1)}
}

func (b *slowBody) Read(p []byte) (int, error) {
	select {
	case b.lock <- struct{}{}:
	default:
		panic("two read at once")
	}
	defer func() { <-b.lock }()
	if s, ok := <-b.give; ok {
		return copy(p, s), nil
	}
	return 0, b.err
}

func (b *slowBody) Close() error {
	if b.exclusive {
		b.lock <- struct{}{}
		defer func() { <-b.lock }()
	}
	b.closed.Add(1)
	return nil
}

// early returns a step that answers 503 while a goroutine of the base still reads the body,
// as with net/http, and a channel that gets the error of that Read.
func early() (play.Step, <-chan error) {
	old := make(chan error, 1)
	return func(r *http.Request) (*http.Response, error) {
		_, _ = r.Body.Read(make([]byte, 10))
		go func() {
			_, err := r.Body.Read(make([]byte, 10))
			_ = r.Body.Close()
			old <- err
		}()
		synctest.Wait()
		return play.Reply(503)(r)
	}, old
}

// An attempt is still blocked in a Read of the caller's body when the next one
// begins.
//
//retrip:promise P7 P13
func TestReplay_OldAttemptReads(t *testing.T) {
	play.Bubble(t, "the next one gets what it read", func(t *testing.T) {
		body := newSlow(io.EOF, false)
		first, old := early()
		base := play.Keep(first, func(r *http.Request) (*http.Response, error) {
			assert.Equal(t, "onetwothree", play.ReadAll(t, r.Body))
			_ = r.Body.Close()
			return play.Reply(200)(r)
		})
		go func() {
			body.give <- "one"
			time.Sleep(time.Hour)
			body.give <- "two"
			body.give <- "three"
			close(body.give)
		}()
		play.Do(t, &retrip.Transport{Base: base, Policy: play.Steady}, play.Request(t, "PUT", body))
		assert.ErrorContains(t, <-old, "is over")
		assert.EqualValues(t, 1, body.closed.Load())
	})
	play.Bubble(t, "a read that fails meanwhile never becomes an empty body", func(t *testing.T) {
		broken := errors.New("disk on fire")
		body := newSlow(broken, false)
		first, old := early()
		base := play.Keep(first, func(r *http.Request) (*http.Response, error) {
			require.NotNil(t, r.Body)
			sent, err := io.ReadAll(r.Body)
			_ = r.Body.Close()
			assert.Equal(t, "one", string(sent))
			assert.ErrorIs(t, err, broken)
			return nil, err
		})
		go func() {
			body.give <- "one"
			time.Sleep(500 * time.Millisecond)
			close(body.give)
		}()
		_, err := (&retrip.Transport{Base: base, Policy: play.Steady}).RoundTrip(play.Request(t, "PUT", body))
		assert.ErrorIs(t, err, broken)
		assert.Empty(t, play.AsError(t, err).Reason, "no retry can fix it")
		<-old
		assert.Equal(t, 2, base.Attempts())
		assert.EqualValues(t, 1, body.closed.Load())
	})
	for _, exclusive := range []bool{false, true} {
		play.Bubble(t, fmt.Sprint("canceled in the wait, and closing waits for the read: ", exclusive), func(t *testing.T) {
			body := newSlow(io.EOF, exclusive)
			first, old := early()
			go func() { body.give <- "one" }()
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(500*time.Millisecond, cancel)
			start := time.Now()
			_, err := (&retrip.Transport{Base: play.Keep(first), Policy: play.Steady}).RoundTrip(play.Request(t, "PUT", body).WithContext(ctx))
			assert.ErrorIs(t, err, context.Canceled)
			assert.Equal(t, 500*time.Millisecond, time.Since(start))
			synctest.Wait()
			assert.Equal(t, !exclusive, body.closed.Load() == 1)
			close(body.give)
			<-old
			synctest.Wait()
			assert.EqualValues(t, 1, body.closed.Load())
		})
	}
}

// The connection of an upload is lost. net/http's HTTP/2 closes the body, and waits for the end
// of a Read of it.
//
//retrip:promise P7 P13
func TestReplay_BaseAwaitsARead(t *testing.T) {
	for writes, attempts := range map[time.Duration]int{50 * time.Millisecond: 2, time.Hour: 1} {
		play.Bubble(t, fmt.Sprint("the caller writes after ", writes), func(t *testing.T) {
			var seen atomic.Int32
			s := memhttp.NewServer(t, memhttp.HTTP2, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if seen.Add(1) == 1 {
					_, _ = io.ReadFull(r.Body, make([]byte, 3))
					memhttp.RequestConn(r).Reset()
				} else {
					assert.Equal(t, "onetwo", play.ReadAll(t, r.Body))
				}
			}))
			pr, pw := io.Pipe()
			wrote := make(chan error, 1)
			go func() {
				_, _ = io.WriteString(pw, "one")
				time.Sleep(writes)
				_, err := io.WriteString(pw, "two")
				_ = pw.Close()
				wrote <- err
			}()
			start := time.Now()
			var done retrip.Event
			tr := &retrip.Transport{Base: s.Transport(), Policy: play.AtOnce, Trace: &retrip.Trace{Done: func(e retrip.Event) { done = e }}}
			resp, err := tr.RoundTrip(play.MustRequest(t, "PUT", s.URL, pr))
			if took := time.Since(start); attempts == 1 {
				assert.Error(t, err)
				assert.Equal(t, 100*time.Millisecond, took)
				assert.Equal(t, io.ErrClosedPipe, <-wrote)
				assert.Equal(t, retrip.ReasonBodyNotReplayable, done.Reason, "the host has failed, not the body")
			} else if assert.NoError(t, err) {
				resp.Body.Close()
				assert.NoError(t, <-wrote)
			}
			assert.EqualValues(t, attempts, seen.Load())
		})
	}
}

// A base may close a body late, when the next attempt waits for the Read that it has left.
//
//retrip:promise P7
func TestReplay_BaseClosesLate(t *testing.T) {
	play.Bubble(t, "", func(t *testing.T) {
		pr, pw := io.Pipe()
		go func() {
			time.Sleep(time.Second)
			_, _ = io.WriteString(pw, "text")
			_ = pw.Close()
		}()
		attempts := 0
		base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
			if attempts++; attempts == 1 {
				go func() { _, _ = req.Body.Read(make([]byte, 8)) }()
				time.AfterFunc(10*time.Millisecond, func() { _ = req.Body.Close() })
				time.Sleep(time.Millisecond)
				return play.Reply(503)(req)
			}
			got, err := io.ReadAll(req.Body)
			require.NoError(t, err)
			assert.Equal(t, "text", string(got))
			_ = req.Body.Close()
			return play.Reply(200)(req)
		})
		resp := testenv.Do(t, &retrip.Transport{Base: base, Policy: play.AtOnce}, play.MustRequest(t, "PUT", "http://example.com", pr))
		assert.Equal(t, 200, resp.StatusCode)
		play.Finish(t, resp)
	})
}

// The response arrives while the base waits for a byte beyond the part that is
// kept. That byte may arrive and be lost, so there is no retry.
//
//retrip:promise P7
func TestReplay_AnswerDuringAReadBeyondTheBound(t *testing.T) {
	play.Bubble(t, "", func(t *testing.T) {
		body := newSlow(io.EOF, false)
		base := play.Keep(func(r *http.Request) (*http.Response, error) {
			go func() {
				_, _ = io.Copy(io.Discard, r.Body)
				r.Body.Close()
			}()
			body.give <- "text"
			synctest.Wait()
			return play.Reply(503)(r)
		})
		var reason retrip.Reason
		tr := &retrip.Transport{
			Base: base, Policy: retrip.Policy{MaxReplayBody: 4},
			Trace: &retrip.Trace{GiveUp: func(e retrip.Event) { reason = e.Reason }},
		}
		play.Do(t, tr, play.Request(t, "PUT", body))
		assert.Equal(t, 1, base.Attempts())
		assert.Equal(t, retrip.ReasonBodyNotReplayable, reason)
		close(body.give)
		synctest.Wait()
	})
}
