// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package account

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// at returns the draw that stands for a share of all draws.
func at(share float64) uint64 { return uint64(share * (1 << 63) * 2) }

func TestForbids(t *testing.T) {
	for _, test := range []struct {
		level, share float64
		want         bool
	}{
		{500, 0.999, false}, {125, 0.999, false}, {124, 0.999, true}, {62.5, 0.499, false}, {62.5, 0.501, true}, {1, 0.0079, false}, {1, 0.0081, true},
		{0, 0, true}, // empty: every retry is forbidden
	} {
		assert.Equal(t, test.want, Forbids(test.level, 500, at(test.share)), "level %v, draw %v", test.level, test.share)
	}
	assert.False(t, Forbids(500, 500, math.MaxUint64))
	assert.True(t, Forbids(124.9, 500, math.MaxUint64))
}

func TestDeposit(t *testing.T) {
	assert.Equal(t, 20.0, Deposit(700, 0))
	assert.Zero(t, Deposit(700, at(0.0101)))
	assert.Equal(t, 20.0, Deposit(1e6, at(0.0099)), "at most a hundred at once")
	assert.Equal(t, 2.0, Deposit(70, at(0.099)), "a 35th of the size at most")
	assert.Zero(t, Deposit(70, at(0.101)))
	assert.Equal(t, 1.0, Deposit(10, at(0.199)), "five at once, for the store's sake")
	assert.Zero(t, Deposit(10, at(0.201)))
	assert.Equal(t, 0.2, Deposit(1, math.MaxUint64), "of a tiny one every success")
	for _, size := range []float64{1, 7, 20, 50, 500, 5000} {
		r, sum := rand.New(rand.NewPCG(1, 2)), 0.0
		const n = 1_000_000
		for range n {
			sum += Deposit(size, r.Uint64())
		}
		assert.InDelta(t, 0.2, sum/n, 0.01, "size %v: a fifth of a token on average", size)
	}
}

func TestView(t *testing.T) {
	const s = time.Second
	var v View
	assert.True(t, v.Stale(500, 0))
	_, known := v.Level(500, 0)
	assert.False(t, known)

	assert.True(t, v.Record(3, 500, 10*s))
	assert.False(t, v.Stale(500, 11*s))
	assert.True(t, v.Stale(500, 11*s+1))
	assert.False(t, v.StaleAgain(500, 10*s+s/10))
	assert.True(t, v.StaleAgain(500, 10*s+s/10+1))
	level, known := v.Level(500, 15*s)
	assert.Equal(t, 3.0, level)
	assert.True(t, known)
	_, known = v.Level(500, 15*s+1)
	assert.False(t, known, "what is older than Age is not known")
	_, known = v.Level(500, 10*s-1)
	assert.False(t, known, "the answer is under way")

	for _, lie := range []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(1e-9, -1)} {
		assert.False(t, v.Record(lie, 500, 12*s), "%v", lie)
	}
	level, _ = v.Level(500, 12*s)
	assert.Equal(t, 3.0, level, "a lie changes nothing")
	assert.True(t, v.Record(2000, 500, 12*s), "more than there can be")
	level, _ = v.Level(500, 12*s)
	assert.Equal(t, 500.0, level)
}

// What was heard of an account of one size is good for another.
func TestView_Sizes(t *testing.T) {
	for _, test := range []struct{ level, size, other, want float64 }{
		{100, 100, 500, 500}, // full is full
		{500, 500, 100, 100},
		{90, 100, 500, 490},
		{490, 500, 100, 90},
		{300, 500, 100, 0},
		{0, 100, 500, 400}, // at least so much is spent
		{0, 500, 100, 0},
		{500, 100, 1000, 1000}, // more than there can be
	} {
		var v View
		assert.True(t, v.Record(test.level, test.size, 0))
		level, known := v.Level(test.other, 0)
		assert.True(t, known)
		assert.Equal(t, test.want, level, "%+v", test)
		assert.Equal(t, test.level == 0 && test.other > test.size, v.Stale(test.other, 0), "%+v: more may be spent", test)
	}
}

func TestHeld(t *testing.T) {
	for _, test := range []struct {
		waited            time.Duration
		held              uint8
		succeeded, failed float64
	}{{0, 1, 1, 0}, {time.Second, 1, 1, 0}, {time.Second + 1, 2, 2, 1}, {math.MaxInt64, 2, 2, 1}} {
		assert.Equal(t, test.held, Price(test.waited), "%v", test.waited)
		assert.Equal(t, test.succeeded, Refund(test.held, true), "%v", test.waited)
		assert.Equal(t, test.failed, Refund(test.held, false), "%v", test.waited)
	}
	assert.Zero(t, Refund(0, true), "not charged")
	assert.Zero(t, Refund(0, false), "not charged")
}

func TestLink(t *testing.T) {
	const s = time.Second
	var l Link
	assert.True(t, l.Up(0))
	l.Lose(100*s, 0)
	assert.False(t, l.Up(105*s-1))
	assert.True(t, l.Up(105*s))
	l.Lose(100*s, math.MaxUint64)
	assert.False(t, l.Up(115*s-1))
	assert.True(t, l.Up(115*s))
}

func TestNothingAllocates(t *testing.T) {
	var v View
	var l Link
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		v.Record(1, 500, 1)
		v.Stale(500, 2)
		level, _ := v.Level(500, 2)
		l.Lose(1, 2)
		_ = l.Up(3) && Forbids(level, 500, 4) && Deposit(500, 5) > 0
	}))
}
