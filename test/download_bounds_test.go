// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
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
