// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/play"
)

// A host that is forgotten while requests use its entry has no state, keeps the entry until
// they end, and what those requests took or learn later does no harm.
func TestTable_Forget(t *testing.T) {
	var table host.Table
	r := play.Rules(t, retrip.Policy{Breaker: retrip.Breaker{MinVolume: 3, OpenFor: time.Minute}, Gate: retrip.Gate{Enabled: retrip.On}})
	key := hostkey.Key{Host: "a", Port: "80"}
	e, wakes := table.Forget(key)
	require.Nil(t, e)
	require.False(t, wakes)

	now := time.Second
	e = table.PinNew(key, now)
	failed := decide.Outcome{Status: http.StatusServiceUnavailable, Idempotent: true, Replay: true, RetryAfter: 20 * time.Second}
	retries := decide.Call{}
	require.True(t, r.Next(&e.Record, &retries, failed, now, 0).Retry)
	for range 3 {
		r.Next(&e.Record, &decide.Call{}, failed, now, 0)
	}
	e.Failed.Store(1)
	e.GaveUp.Store(1)
	require.True(t, e.Charge.Sent())
	require.True(t, e.RanOut())
	require.True(t, e.News.Level(host.Opened) > 0)
	keyed := decide.Call{Gate: "tenant", Waiter: "who"}
	require.True(t, r.First(&e.Record, &keyed, now, 0).AtGate)
	s := r.State(&e.Record, now)
	require.Less(t, s.Tokens, s.Size)
	require.Positive(t, s.PausedFor)
	require.Equal(t, breaker.Open, s.Breaker)
	require.Positive(t, table.Keyed())

	got, wakes := table.Forget(key)
	assert.Same(t, e, got)
	assert.True(t, wakes)
	assert.Equal(t, "who", e.Woken())
	assert.Equal(t, decide.State{Tokens: 5, Size: 5}, r.State(&e.Record, now))
	assert.True(t, e.Healed(now))
	assert.Zero(t, e.Failed.Load()+e.GaveUp.Load())
	assert.Zero(t, table.Keyed())
	assert.True(t, e.RanOut(), "news again")
	assert.EqualValues(t, 4, e.News.Level(host.Opened), "a warning again")
	assert.Same(t, e, table.PinNew(key, now), "those in flight and the next share one entry")

	// Those in flight end: one gives back its tokens, one had been let through.
	r.Return(&e.Record, &retries)
	assert.True(t, r.First(&e.Record, &keyed, now, 0).Retry)
	r.Next(&e.Record, &keyed, decide.Outcome{Status: 200}, now, 0)
	assert.Equal(t, decide.State{Tokens: 5, Size: 5}, r.State(&e.Record, now))
	table.Unpin(e, now)
	table.Unpin(e, now)
	assert.Zero(t, table.Entries())

	// Nobody uses the entry.
	e = table.PinNew(key, now)
	e.PauseUntil(time.Hour)
	table.Unpin(e, now)
	require.EqualValues(t, 1, table.Entries())
	table.Forget(key)
	assert.Zero(t, table.Entries())
}
