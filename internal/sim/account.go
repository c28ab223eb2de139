// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"time"

	"github.com/retrip/retrip/internal/account"
)

// Store describes the store of the fleet's account, which clients with the
// preset "account" ask before a retry. The zero Store answers at once.
type Store struct {
	Size            float64       // of the account. If 0, 175, the default of Policy.FleetBudget
	Delay           time.Duration // round-trip time of an operation. From 50 ms on, clients stop using the store for a while
	DownAt, DownFor time.Duration // when the store stops answering, and for how long
}

// accounts is the fleet's account as its clients see it, each of them a process. When a
// client asks it, and what follows, is the machine's business.
type accounts struct {
	size    float64
	store   store
	views   []account.View
	links   []account.Link
	answers []time.Duration // when the last answer arrives
	draws   *source

	operations int64
	second     int64 // the current second
	inSecond   int64
	peak       int64
}

func newAccounts(s *Store, clients int, seed uint64) *accounts {
	one := store{Store: *s}
	one.Size = cmp.Or(s.Size, account.DefaultSize)
	one.level = one.Size
	return &accounts{
		size:    one.Size,
		store:   one,
		views:   make([]account.View, clients),
		links:   make([]account.Link, clients),
		answers: make([]time.Duration, clients),
		draws:   newSource(seed, streamAccount),
	}
}

// add runs an operation of a client, unless the client doesn't use the store at
// the moment.
func (a *accounts) add(client int32, now time.Duration, tokens float64) {
	link := &a.links[client]
	if !link.Up(now) {
		return
	}
	a.operations++
	if second := int64(now / time.Second); second != a.second {
		a.second, a.inSecond = second, 0
	}
	a.inSecond++
	a.peak = max(a.peak, a.inSecond)
	level, answered, ok := a.store.add(now, tokens)
	if !ok || answered-now > account.OpTimeout {
		a.answers[client] = now + account.OpTimeout
		link.Lose(now+account.OpTimeout, a.draws.Uint64())
		return
	}
	a.answers[client] = answered
	a.views[client].Record(level, a.size, answered)
}

// ask returns the level that a client hears, and when.
func (a *accounts) ask(client int32, now time.Duration, again bool) (then time.Duration, level float64, known bool) {
	link, view := &a.links[client], &a.views[client]
	stale := view.Stale
	if again {
		stale = view.StaleAgain
	}
	if link.Up(now) && stale(a.size, now) {
		a.add(client, now, 0)
	}
	then = max(now, a.answers[client])
	level, known = view.Level(a.size, then)
	return then, level, known && link.Up(then)
}

// store is the account of a Store, like a counter in Redis: it is a round trip away, and it is
// sometimes unavailable.
type store struct {
	Store
	level float64 // from 0 to Size
}

// add changes the level by a number, and returns the level in the answer and
// the time when the answer arrives. If the store is down when the operation
// reaches it, the level stays the same and there is no answer. Callers must
// issue operations in order of time.
func (s *store) add(now time.Duration, by float64) (level float64, answered time.Duration, ok bool) {
	reached := now + s.Delay/2
	if reached >= s.DownAt && reached < s.DownAt+s.DownFor {
		return 0, 0, false
	}
	s.level = min(s.Size, max(0, s.level+by))
	return s.level, now + s.Delay, true
}
