// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// Without Resume, a stall is a timeout error. A slow reader is not a stall.
//
//retrip:promise P20
func TestBodyIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &retrip.Transport{Base: newStore(5000, stall(3000)), Policy: retrip.Policy{BodyIdleTimeout: time.Second}}
		resp := do(t, tr, play.Request(t, http.MethodGet, nil))
		for range 30 {
			time.Sleep(10 * time.Second)
			_, err := io.ReadFull(resp.Body, make([]byte, 100))
			require.NoError(t, err)
		}
		began := time.Now()
		_, err := resp.Body.Read(make([]byte, 1))
		assert.True(t, fault.Timeout(err))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.LessOrEqual(t, time.Since(began), 1500*time.Millisecond)
		require.NoError(t, resp.Body.Close())
	})
}

// After a Read that panicked, the next Read is watched as usual.
func TestBodyIdle_AfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		base := play.Base(answers(200, nil, func(ctx context.Context) io.Reader {
			return testenv.Reader(func(p []byte) (int, error) {
				if n++; n == 1 {
					panic("boom")
				}
				if n == 10 {
					<-ctx.Done()
				}
				return 1, ctx.Err()
			})
		}))
		resp := do(t, &retrip.Transport{Base: base, Policy: retrip.Policy{BodyIdleTimeout: time.Second}}, play.Request(t, http.MethodGet, nil))
		assert.Panics(t, func() { _, _ = resp.Body.Read(make([]byte, 1)) })
		for range 8 {
			_, err := resp.Body.Read(make([]byte, 1))
			require.NoError(t, err)
			time.Sleep(10 * time.Second)
		}
		began := time.Now()
		_, err := resp.Body.Read(make([]byte, 1))
		assert.ErrorContains(t, err, "Policy.BodyIdleTimeout")
		assert.LessOrEqual(t, time.Since(began), 1500*time.Millisecond)
		require.NoError(t, resp.Body.Close())
	})
}

// A body follows the policy of its request, whatever SetPolicies does while it
// is read.
//
//retrip:promise P20
func TestResume_SetPolicies(t *testing.T) {
	off, on := retrip.Policy{MaxAttempts: 1}, retrip.Policy{Resume: time.Minute, MaxAttempts: 8, BodyIdleTimeout: time.Second, Budget: retrip.Off}
	broken := breaks(200, reset)
	for _, c := range []struct {
		before, after retrip.Policy
		whole         bool
	}{{on, off, true}, {off, on, false}} {
		synctest.Test(t, func(t *testing.T) {
			s := newStore(1000, broken, stall(200), broken, stall(200), broken)
			tr := &retrip.Transport{Base: s, Hosts: map[string]retrip.Policy{"example.com": c.before}}
			resp := do(t, tr, play.Request(t, http.MethodGet, nil))
			_, err := io.ReadFull(resp.Body, make([]byte, 300))
			require.Equal(t, c.whole, err == nil)
			require.NoError(t, tr.SetPolicies(c.after, nil))
			rest, err := readAll(t, resp)
			if !c.whole {
				assert.ErrorIs(t, err, reset)
				assert.Len(t, s.asks, 1)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, s.data[300:], rest)
			s.parts = append(s.parts, broken)
			_, err = fetch(t, tr)
			assert.Equal(t, reset, err, "the next request has the new policy")
		})
	}
}

// Close returns at once and ends a continuation, during its wait and during its
// request. So does the caller's context; the body then has both errors.
//
//retrip:promise P20
func TestResume_Close(t *testing.T) {
	for _, base := range []time.Duration{1, time.Hour} { // the request hangs, or waits
		for _, closes := range []bool{true, false} {
			bubble(t, fmt.Sprint(base, closes), func(t *testing.T) {
				s := newStore(1000, cut(500))
				tr := &retrip.Transport{Base: outOf(s, 1, play.Hang), Policy: retrip.Policy{Resume: 24 * time.Hour, Backoff: retrip.Backoff{Base: base, Cap: base, Jitter: retrip.NoJitter}}}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				resp := do(t, tr, play.Request(t, http.MethodGet, nil).WithContext(ctx))
				began := time.Now()
				time.AfterFunc(time.Minute, func() {
					if closes {
						assert.NoError(t, resp.Body.Close())
					} else {
						cancel()
					}
					assert.Equal(t, time.Minute, time.Since(began), "at once")
				})
				got, err := readAll(t, resp)
				assert.Equal(t, time.Minute, time.Since(began))
				assert.Len(t, got, 500)
				if closes {
					assert.Equal(t, http.ErrBodyReadAfterClose, err)
					return
				}
				assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
				assert.ErrorIs(t, err, context.Canceled)
			})
		}
	}
}

// A caller that goes between two breaks gets the error of its body, and no more
// requests are sent.
func TestResume_CallerGoesBetweenBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, at := range []int64{600, 700} { // within the second part, and at its end
			s := newStore(1000, breaks(500, reset), stall(200))
			ctx, cancel := context.WithCancelCause(t.Context())
			m := &retrip.Metrics{}
			tr := &retrip.Transport{Base: s, Metrics: m, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Second}}
			resp := do(t, tr, play.Request(t, http.MethodGet, nil).WithContext(ctx))
			_, err := io.CopyN(io.Discard, resp.Body, at)
			require.NoError(t, err)
			time.Sleep(time.Hour)
			enough, began := errors.New("enough"), time.Now()
			cancel(enough)
			_, err = readAll(t, resp)
			assert.ErrorIs(t, err, enough)
			assert.Zero(t, time.Since(began))
			assert.Len(t, s.asks, 2)
			assert.Equal(t, 1, resumes(t, m, retrip.ReasonCanceled))
		}
	})
}

// A body fails with its own error and that of the caller's context, each once,
// even if the caller's deadline passes while the break is handled.
func TestResume_ErrorHasBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s := newStore(1000, breaks(500, context.Canceled))
		slow := func(*http.Request) bool {
			time.Sleep(time.Duration(len(s.asks)) * time.Minute)
			return true
		}
		_, err := fetchIn(t, ctx, &retrip.Transport{Base: s, Policy: retrip.Policy{Resume: time.Minute, Idempotent: slow}})
		assert.ErrorIs(t, err, context.Canceled)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// If Base returns the same response twice, the body would have to continue
// itself.
func TestResume_SameResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ctx := range []context.Context{context.Background(), t.Context()} {
			for _, p := range []retrip.Policy{{AttemptTimeout: time.Second}, {BodyIdleTimeout: time.Second}, {BodyIdleTimeout: time.Second, Classify: peeks}, {WholeBody: 2}} {
				resp := &http.Response{StatusCode: 200, Header: http.Header{"Etag": {`"a"`}}, Request: play.Request(t, http.MethodGet, nil)}
				all(content([]byte("abcd")), breaks(3, reset), length(10))(resp)
				p.Resume = time.Minute
				got, err := fetchIn(t, ctx, &retrip.Transport{Base: testenv.RoundTripper(func(*http.Request) (*http.Response, error) { return resp, nil }), Policy: p})
				assert.ErrorIs(t, err, reset)
				assert.Equal(t, "abc", string(got))
			}
		}
	})
}

// A hook that panics during a continuation leaves no response open.
func TestResume_HookPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := func(retrip.Event) { panic("boom") }
		for name, trace := range map[string]*retrip.Trace{"Resume": {Resume: boom}, "Retry": {Retry: boom}, "Attempt": {Attempt: func(e retrip.Event) {
			if e.Attempt > 1 {
				boom(e)
			}
		}}} {
			s := newStore(1000, breaks(500, reset))
			s.again = true
			tr := &retrip.Transport{Base: s, Trace: trace, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Second}}
			resp := do(t, tr, play.Request(t, http.MethodGet, nil))
			assert.PanicsWithValue(t, "boom", func() { _, _ = io.ReadAll(resp.Body) }, name)
			for i, b := range s.given {
				assert.EqualValues(t, 1, b.Closed.Load(), "%s: %d", name, i)
				if i > 0 {
					assert.Error(t, s.asks[i].Context().Err(), name)
				}
			}
			_, err := resp.Body.Read(make([]byte, 10))
			assert.ErrorIs(t, err, reset, name)
			require.NoError(t, resp.Body.Close())
		}
	})
}

// After Close, every Read returns what net/http returns, whatever happened
// before.
func TestResume_ReadAfterClose(t *testing.T) {
	for name, c := range map[string]struct {
		first change
		again bool
		read  int64
	}{
		"unread":        {honest, false, 0},
		"within":        {honest, false, 10},
		"at its end":    {honest, false, 2000},
		"continued":     {cut(500), false, 700},
		"broken":        {all(del("ETag"), cut(500)), false, 2000},
		"just broken":   {all(del("ETag"), cut(500)), false, 500},
		"stalled":       {all(del("ETag"), stall(500)), false, 2000},
		"out of chance": {breaks(0, reset), true, 2000},
	} {
		bubble(t, name, func(t *testing.T) {
			s := newStore(1000, c.first)
			s.again = c.again
			resp := do(t, &retrip.Transport{Base: s, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Second, WholeBody: 5}}, play.Request(t, http.MethodGet, nil))
			_, _ = io.CopyN(io.Discard, resp.Body, c.read)
			for range 3 {
				require.NoError(t, resp.Body.Close())
				n, err := resp.Body.Read(make([]byte, 10))
				assert.Zero(t, n)
				assert.Equal(t, http.ErrBodyReadAfterClose, err)
			}
		})
	}
}

// While nothing breaks, no goroutine looks after a body.
func TestResume_NoGoroutine(t *testing.T) {
	tr := &retrip.Transport{Base: &zerosBase{size: 1 << 20}, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Minute}}
	before := runtime.NumGoroutine()
	resp := do(t, tr, play.Request(t, http.MethodGet, nil))
	for range 100 {
		_, err := resp.Body.Read(make([]byte, 100))
		require.NoError(t, err)
		require.LessOrEqual(t, runtime.NumGoroutine(), before)
	}
	require.NoError(t, resp.Body.Close())
}
