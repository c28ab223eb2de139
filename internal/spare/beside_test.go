// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/spare"
	"github.com/retrip/retrip/internal/testenv"
)

// pooled is a server, and what the pools of a Transport know of it.
type pooled struct {
	spare.Pools
	t      *testing.T
	server *memhttp.Server
	base   *http.Transport
	url    *url.URL
	key    hostkey.Key
}

// newPooled returns pools for a server that answers after a millisecond.
func newPooled(t *testing.T) *pooled {
	s := memhttp.NewServer(t, memhttp.H2C, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(time.Millisecond) }))
	u, err := url.Parse(s.URL)
	require.NoError(t, err)
	p := &pooled{t: t, server: s, base: s.Transport(), url: u, key: hostkey.Of(u)}
	t.Cleanup(p.Close)
	return p
}

// get makes a request with the given turn.
func (p *pooled) get(turn *spare.Turn, limit time.Duration) error {
	p.t.Helper()
	require.NotNil(p.t, turn)
	ctx, cancel := context.WithTimeout(p.t.Context(), limit)
	defer cancel()
	return testenv.Try(turn, play.MustRequest(p.t, "GET", p.server.URL, nil).WithContext(ctx))
}

// A connection of the base is dead if only another one answers, and that later attempts. An
// overloaded server answers earlier ones first, or refuses.
func TestRoute_Suspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPooled(t)
		one, other := net.Pipe()
		dead := func() bool { return (&spare.Route{HTTP2: true}).Suspect(&p.Pools, p.key, time.Second, one) }
		answer := func(conn net.Conn, status int, took time.Duration) {
			resp := &http.Response{StatusCode: status, ProtoMajor: 2}
			new(spare.Route).Used(&p.Pools, p.base, p.url, resp, conn, time.Now().Add(-took))
		}
		assert.False(t, dead())
		for range 9 {
			answer(other, 200, time.Second)
			answer(other, 503, 0)
		}
		assert.False(t, dead())
		answer(other, 200, 999*time.Millisecond)
		assert.True(t, dead())
		answer(one, 200, 0)
		assert.False(t, dead())
		time.Sleep(time.Second)
		answer(other, 200, 0)
		assert.True(t, dead())
		answer(nil, 200, 0)
		assert.False(t, dead(), "it may have been any connection")
	})
}

// Attempts beside others share one connection, until one of them has waited without a response for
// longer than nearly all take. An attempt that was only slower than the other one says
// nothing.
func TestPools_ForHedge(t *testing.T) {
	const most = 100 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		p := newPooled(t)
		since := time.Now().Add(-1)
		get := func(limit time.Duration) error {
			return p.get(p.ForHedge(p.base, p.key, nil, since, time.Second, most), limit)
		}
		dials := func(want int, why string) {
			t.Helper()
			for range 5 {
				assert.NoError(t, get(time.Second))
			}
			assert.Equal(t, want, p.server.Listener.Dials(), why)
		}
		dials(1, "all share one")
		p.server.Listener.Freeze()
		assert.Error(t, get(most/2))
		assert.Error(t, get(most/2))
		assert.Equal(t, 1, p.server.Listener.Dials(), "that was too short to tell")
		assert.Error(t, get(2*most))
		dials(2, "it is frozen")
		time.Sleep(time.Second)
		since = time.Now()
		dials(3, "the first had no proof that anything works")
		time.Sleep(time.Second)
		since = time.Now()
		p.RecordAnswer(p.key, nil, time.Time{})
		time.Sleep(time.Second)
		assert.NoError(t, get(time.Second))
		p.RecordAnswer(p.key, nil, time.Time{})
		since = time.Now().Add(-1)
		assert.NoError(t, get(time.Second))
		assert.Equal(t, 4, p.server.Listener.Dials(), "a response from the base proves it too")
	})
}

// Any response from the base ends the avoidance, and nothing else does.
func TestPools_Avoid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := newPooled(t), time.Now()
		get := func(turn *spare.Turn) {
			t.Helper()
			require.NoError(t, p.get(turn, time.Hour))
		}
		beside := func(other *spare.Turn, since time.Time) *spare.Turn {
			return p.ForHedge(p.base, p.key, other, since, time.Second, time.Minute)
		}
		avoids := func() bool {
			_, ok := p.Avoids(p.key)
			return ok
		}
		time.Sleep(time.Second)
		get(beside(nil, began))
		p.RecordAnswer(p.key, nil, time.Time{})
		p.Doubt(p.key, began, false)
		assert.False(t, avoids(), "the base has delivered a response since")
		p.Doubt(p.key, time.Now(), true)
		assert.False(t, avoids(), "it was the spare that hung")
		doubted := time.Now()
		p.Doubt(p.key, doubted, false)
		for range 5 {
			time.Sleep(20 * time.Second)
			get(p.Get(p.base, p.key, doubted, time.Second)) // which keeps the spare
			since, ok := p.Avoids(p.key)
			assert.True(t, ok)
			assert.Equal(t, doubted, since)
		}

		// A hedge beside an attempt at the spare never shares the connection.
		first := p.Get(p.base, p.key, doubted, time.Second)
		get(first)
		now := time.Now()
		dials := p.server.Listener.Dials()
		assert.Nil(t, beside(first, now.Add(-1)), "the spare works: try the base")
		time.Sleep(time.Second)
		next := beside(first, now)
		get(next)
		assert.Equal(t, dials+1, p.server.Listener.Dials(), "nobody knows that anything works")
		get(beside(first, now.Add(1)))
		assert.Equal(t, dials+1, p.server.Listener.Dials(), "the spare is another one by now")
		assert.True(t, avoids())
		p.RecordAnswer(p.key, nil, time.Time{})
		assert.False(t, avoids())
		assert.Nil(t, beside(next, now), "the base works")

		now, dials = time.Now(), p.server.Listener.Dials()
		first = p.Get(p.base, p.key, now, time.Second)
		get(beside(first, now))
		get(first)
		assert.Equal(t, dials+2, p.server.Listener.Dials(), "nor one that isn't there yet")
	})
}
