// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"context"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/spare"
)

// Attempts beside others share one connection, until one of them has waited without a response for
// longer than nearly all take. An attempt that was only slower than the other one says
// nothing.
func TestPools_Beside(t *testing.T) {
	const most = 100 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		s := memhttp.NewServer(t, memhttp.H2C, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { time.Sleep(time.Millisecond) }))
		var pools spare.Pools
		defer pools.Close()
		base, key, since := s.Transport(), keyOf(t, s), time.Now().Add(-1)
		get := func(limit time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, "GET", s.URL, nil)
			require.NoError(t, err)
			resp, err := pools.Beside(base, key, nil, since, time.Second, most).RoundTrip(req)
			if err == nil {
				err = resp.Body.Close()
			}
			return err
		}
		for range 5 {
			assert.NoError(t, get(time.Second))
		}
		assert.Equal(t, 1, s.Listener.Dials())
		s.Listener.Freeze()
		assert.Error(t, get(most/2))
		assert.Error(t, get(most/2))
		assert.Equal(t, 1, s.Listener.Dials(), "that was too short to tell")
		assert.Error(t, get(2*most))
		for range 5 {
			assert.NoError(t, get(time.Second))
		}
		assert.Equal(t, 2, s.Listener.Dials())
		time.Sleep(time.Second)
		since = time.Now()
		for range 5 {
			assert.NoError(t, get(time.Second))
		}
		assert.Equal(t, 3, s.Listener.Dials(), "the first had no proof that anything works")
		time.Sleep(time.Second)
		since = time.Now()
		pools.Answered(key)
		time.Sleep(time.Second)
		assert.NoError(t, get(time.Second))
		pools.Answered(key)
		since = time.Now().Add(-1)
		assert.NoError(t, get(time.Second))
		assert.Equal(t, 4, s.Listener.Dials(), "a response from the base proves it too")
	})
}

// keyOf returns the key of s.
func keyOf(t *testing.T, s *memhttp.Server) hostkey.Key {
	u, err := url.Parse(s.URL)
	require.NoError(t, err)
	return hostkey.Of(u)
}

// Any response from the base ends the shunning, and nothing else does.
func TestPools_Shun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memhttp.NewServer(t, memhttp.H2C, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		var pools spare.Pools
		defer pools.Close()
		base, key, began := s.Transport(), keyOf(t, s), time.Now()
		get := func(turn *spare.Turn) {
			t.Helper()
			require.NotNil(t, turn)
			req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL, nil)
			require.NoError(t, err)
			resp, err := turn.RoundTrip(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		beside := func(other *spare.Turn, since time.Time) *spare.Turn {
			return pools.Beside(base, key, other, since, time.Second, time.Minute)
		}
		shuns := func() bool {
			_, ok := pools.Shuns(key)
			return ok
		}
		time.Sleep(time.Second)
		get(beside(nil, began))
		pools.Answered(key)
		pools.Doubt(key, began, false)
		assert.False(t, shuns(), "the base has delivered a response since")
		pools.Doubt(key, time.Now(), true)
		assert.False(t, shuns(), "it was the spare that hung")
		doubted := time.Now()
		pools.Doubt(key, doubted, false)
		for range 5 {
			time.Sleep(20 * time.Second)
			get(pools.Get(base, key, doubted, time.Second)) // which keeps the spare
			since, ok := pools.Shuns(key)
			assert.True(t, ok)
			assert.Equal(t, doubted, since)
		}

		// A hedge beside an attempt at the spare never shares the connection.
		first := pools.Get(base, key, doubted, time.Second)
		get(first)
		now := time.Now()
		dials := s.Listener.Dials()
		assert.Nil(t, beside(first, now.Add(-1)), "the spare works: try the base")
		time.Sleep(time.Second)
		next := beside(first, now)
		get(next)
		assert.Equal(t, dials+1, s.Listener.Dials(), "nobody knows that anything works")
		get(beside(first, now.Add(1)))
		assert.Equal(t, dials+1, s.Listener.Dials(), "the spare is another one by now")
		assert.True(t, shuns())
		pools.Answered(key)
		assert.False(t, shuns())
		assert.Nil(t, beside(next, now), "the base works")
	})
}

// Without a response of the spare, a base is shunned only if it is known not to have
// delivered one.
func TestPools_ShunWithoutProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pools spare.Pools
		defer pools.Close()
		key := hostkey.Key{Host: "example.com", Port: "443"}
		doubt := func(since time.Time) bool {
			pools.Doubt(key, since, false)
			_, ok := pools.Shuns(key)
			return ok
		}
		now := time.Now()
		time.Sleep(time.Second)
		assert.False(t, doubt(now), "it may have")
		assert.True(t, pools.Some(), "but from now on, that is known")
		time.Sleep(time.Second)
		assert.False(t, doubt(now))
		now = time.Now()
		pools.Answered(key)
		assert.False(t, doubt(now.Add(-1)))
		assert.True(t, doubt(now))
		time.Sleep(30*time.Second - 1)
		assert.True(t, pools.Some())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.False(t, pools.Some())
	})
}
