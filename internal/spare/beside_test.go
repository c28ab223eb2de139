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
// nothing. Over HTTP/1, the pool stays too; net/http itself closes the connection.
func TestPools_Beside(t *testing.T) {
	const most = 100 * time.Millisecond
	for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.H2C} {
		t.Run(proto.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memhttp.NewServer(t, proto, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { time.Sleep(time.Millisecond) }))
				var pools spare.Pools
				defer pools.Close()
				epoch, base := time.Now(), s.Transport()
				u, err := url.Parse(s.URL)
				require.NoError(t, err)
				key := spare.Key{Key: hostkey.Of(u), Scheme: "http", HTTP2: proto == memhttp.H2C}
				since := time.Duration(-1)
				get := func(limit time.Duration) error {
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					defer cancel()
					req, err := http.NewRequestWithContext(ctx, "GET", s.URL, nil)
					require.NoError(t, err)
					resp, err := pools.Beside(epoch, base, key, nil, since, time.Second, most).RoundTrip(req)
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
				again := 1
				if proto == memhttp.HTTP1 {
					again = 2
					assert.NoError(t, get(most/2))
					s.Listener.Freeze()
				} else {
					assert.Error(t, get(most/2))
				}
				assert.Equal(t, again, s.Listener.Dials(), "that was too short to tell")
				assert.Error(t, get(2*most))
				for range 5 {
					assert.NoError(t, get(time.Second))
				}
				assert.Equal(t, again+1, s.Listener.Dials())
				time.Sleep(time.Second)
				since = time.Since(epoch)
				for range 5 {
					assert.NoError(t, get(time.Second))
				}
				assert.Equal(t, again+2, s.Listener.Dials(), "the first had no proof that anything works")
				time.Sleep(time.Second)
				since = time.Since(epoch)
				pools.Answered(epoch, key)
				time.Sleep(time.Second)
				assert.NoError(t, get(time.Second))
				pools.Answered(epoch, key)
				since = time.Since(epoch) - 1
				assert.NoError(t, get(time.Second))
				assert.Equal(t, again+3, s.Listener.Dials(), "a response from the base proves it too")
			})
		})
	}
}

// Only an attempt that may get a hedge tries a shunned base, and only one at a time. Any
// response from the base ends the shunning.
func TestPools_Shun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memhttp.NewServer(t, memhttp.H2C, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		var pools spare.Pools
		defer pools.Close()
		epoch, base := time.Now(), s.Transport()
		u, err := url.Parse(s.URL)
		require.NoError(t, err)
		key := spare.Key{Key: hostkey.Of(u), Scheme: "http", HTTP2: true}
		get := func(turn *spare.Turn) {
			t.Helper()
			require.NotNil(t, turn)
			req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL, nil)
			require.NoError(t, err)
			resp, err := turn.RoundTrip(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		beside := func(other *spare.Turn, since time.Duration) *spare.Turn {
			return pools.Beside(epoch, base, key, other, since, time.Second, time.Minute)
		}
		shuns := func(hedged bool) bool {
			_, ok := pools.Shuns(epoch, key, hedged)
			return ok
		}
		time.Sleep(time.Second)
		get(beside(nil, time.Second))
		pools.Answered(epoch, key)
		pools.Shun(epoch, key, time.Second-1, true)
		assert.False(t, shuns(false), "the base has delivered a response since")
		pools.Shun(epoch, key, time.Second, true)
		for range 5 {
			time.Sleep(20 * time.Second)
			get(pools.Get(epoch, base, key, time.Second, time.Second)) // which keeps the spare
		}
		time.Sleep(20*time.Second - 1)
		since, ok := pools.Shuns(epoch, key, true)
		assert.True(t, ok)
		assert.Equal(t, time.Second, since)
		time.Sleep(time.Nanosecond)
		assert.True(t, shuns(false))
		assert.False(t, shuns(true))
		assert.True(t, shuns(true), "one is enough")

		// A hedge beside an attempt at the spare never shares the connection.
		first := pools.Get(epoch, base, key, since, time.Second)
		get(first)
		now := time.Since(epoch)
		dials := s.Listener.Dials()
		assert.Nil(t, beside(first, now-1), "the spare works: try the base")
		time.Sleep(time.Second)
		next := beside(first, now)
		get(next)
		assert.Equal(t, dials+1, s.Listener.Dials(), "nobody knows that anything works")
		get(beside(first, now+1))
		assert.Equal(t, dials+1, s.Listener.Dials(), "the spare is another one by now")
		assert.True(t, shuns(true))
		pools.Answered(epoch, key)
		assert.False(t, shuns(true))
		assert.Nil(t, beside(next, now), "the base works")
	})
}

// Without a hedge that won, a base is shunned only if it is known not to have delivered
// a response.
func TestPools_ShunWithoutAWin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pools spare.Pools
		defer pools.Close()
		epoch := time.Now()
		key := spare.Key{Key: hostkey.Key{Host: "example.com", Port: "443"}, Scheme: "https", HTTP2: true}
		shun := func(since time.Duration) bool {
			pools.Shun(epoch, key, since, false)
			_, ok := pools.Shuns(epoch, key, false)
			return ok
		}
		time.Sleep(time.Second)
		assert.False(t, shun(time.Second-1), "it may have")
		assert.True(t, pools.Some(), "but from now on, that is known")
		time.Sleep(time.Second)
		assert.False(t, shun(time.Second-1))
		pools.Answered(epoch, key)
		assert.False(t, shun(2*time.Second-1))
		assert.True(t, shun(2*time.Second))
		time.Sleep(30*time.Second - 1)
		assert.True(t, pools.Some())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.False(t, pools.Some())
	})
}
