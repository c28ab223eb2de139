// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"hash/maphash"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// hostTable holds the hosts in trouble, and only them: an entry is made on the
// first failure and dropped when it has healed, or when nothing has failed
// there in an hour; whoever looks it up finds it dropped, whether or not
// anybody looked before. The table is bounded, and making room never gives
// tokens back: only an entry that misses none may give way, the one that has
// been idle longest, unless it is in use, paused or behind a breaker. When no
// entry may go, the new hosts of a stripe share one entry, which knows a budget
// only.
//
// While no host is in trouble a request pays one atomic load here. While some
// are, a request to another host pays a hash and a second load, and a look into
// the map if one of them shares its stripe.
type hostTable struct {
	entries atomic.Int64
	stripes [hostStripes]hostStripe
	keyed   atomic.Int64 // gates of keys
}

const (
	hostStripes    = 64
	hostsPerStripe = 64
	hostIdle       = time.Hour
)

type hostStripe struct {
	entries atomic.Int32
	others  atomic.Pointer[hostEntry] // of all hosts without a place; nil until there is one
	mu      sync.RWMutex
	hosts   map[hostKey]*hostEntry

	_ [64]byte // stripes don't share a cache line
}

// hostEntry is a host in the table. A request that has met a failure there
// pins it until the request's end, so that what it has taken and what it gives
// back meet the same Host.
type hostEntry struct {
	Host
	key    hostKey
	others bool         // it stands for hosts without a place, and knows a budget only
	used   atomic.Int64 // instant of the last failure
	pins   atomic.Int32 // changes from 0 only under the stripe's lock

	failed, gaveUp lastReason
	news           hostNews
}

// lastReason is the last of some Reasons; "" at first. It is safe for concurrent
// use, and storing allocates nothing.
type lastReason struct{ atomic.Uint32 } // its place in allReasons

var allReasons = slices.Concat([]Reason{""}, retryReasons, giveUpReasons)

func (l *lastReason) load() Reason { return allReasons[l.Load()] }

func (l *lastReason) store(reason Reason) { l.Store(uint32(max(0, slices.Index(allReasons, reason)))) }

var hostSeed = maphash.MakeSeed()

func (t *hostTable) stripe(key hostKey) *hostStripe {
	return &t.stripes[maphash.Comparable(hostSeed, key)%hostStripes]
}

// calm reports whether the host of u is in no trouble.
func (t *hostTable) calm(u *url.URL) bool { return t.entries.Load() == 0 || t.absent(u) }

func (t *hostTable) absent(u *url.URL) bool {
	key := keyOf(u)
	s := t.stripe(key)
	if s.entries.Load() == 0 {
		return true
	}
	if s.indebted() != nil {
		// It may be in trouble without a place here.
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.hosts[key] == nil
}

// indebted returns the entry of the hosts without a place, if the stripe is full
// and that entry misses tokens.
func (s *hostStripe) indebted() *hostEntry {
	if s.entries.Load() < hostsPerStripe {
		return nil
	}
	if e := s.others.Load(); e != nil && e.debt.missing() > 0 {
		return e
	}
	return nil
}

// pin returns the entry of key for a request that has business with it, or nil
// if that host is in no trouble, any more or yet. It must be given to unpin.
func (t *hostTable) pin(key hostKey, now time.Duration) *hostEntry {
	s := t.stripe(key)
	if s.entries.Load() == 0 {
		return nil
	}
	e, over := s.find(key, now)
	if over {
		s.mu.Lock()
		defer s.mu.Unlock()
		if e = s.hosts[key]; e != nil && t.forget(s, e, now) {
			return nil
		}
		if e != nil {
			e.pins.Add(1)
		}
	}
	return e
}

// find pins the entry of key, unless it reports that the entry is to be
// forgotten instead.
func (s *hostStripe) find(key hostKey, now time.Duration) (e *hostEntry, over bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e = s.hosts[key]
	switch {
	case e == nil:
		return nil, false
	case e.lapsed(now) || e.pins.Load() == 0 && e.Healed(now):
		return nil, true
	}
	e.pins.Add(1)
	return e, false
}

// pinGood is pin for a host that has just answered. One without a place in a
// full stripe may have failed without one, too: what its success is worth goes
// to the entry of all such hosts, which nothing else would ever refill.
func (t *hostTable) pinGood(key hostKey, now time.Duration) *hostEntry {
	if e := t.pin(key, now); e != nil {
		return e
	}
	return t.stripe(key).indebted()
}

// pinNew is pin for a host that has just failed: it makes the entry.
func (t *hostTable) pinNew(key hostKey, now time.Duration) *hostEntry {
	e := t.pin(key, now)
	if e == nil {
		e = t.make(key, now)
	}
	return e
}

func (t *hostTable) make(key hostKey, now time.Duration) *hostEntry {
	s := t.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.hosts[key]; e != nil {
		e.pins.Add(1)
		return e
	}
	if len(s.hosts) >= hostsPerStripe && !t.evict(s, now) {
		return s.shared(now)
	}
	if s.hosts == nil {
		s.hosts = map[hostKey]*hostEntry{}
	}
	e := &hostEntry{key: key}
	e.keyed = &t.keyed
	e.pins.Store(1)
	e.used.Store(int64(now))
	// The counters rise before the entry can be found: who sees them at zero
	// has missed nothing.
	s.entries.Add(1)
	t.entries.Add(1)
	s.hosts[key] = e
	return e
}

// unpin ends a request's business with e, and drops e if it has healed.
func (t *hostTable) unpin(e *hostEntry, now time.Duration) {
	if e.others || e.pins.Add(-1) > 0 || !e.Healed(now) {
		return
	}
	s := t.stripe(e.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosts[e.key] == e && e.pins.Load() == 0 && e.Healed(now) {
		t.drop(s, e)
	}
}

func (t *hostTable) drop(s *hostStripe, e *hostEntry) {
	if guards := e.guards.Load(); guards != nil {
		t.keyed.Add(-int64(guards.keyedGates()))
	}
	delete(s.hosts, e.key)
	s.entries.Add(-1)
	t.entries.Add(-1)
}

// evict makes room in s, and reports whether it could. A host that misses tokens
// stays, since it would find all of them again.
func (t *hostTable) evict(s *hostStripe, now time.Duration) bool {
	t.sweep(s, now)
	if len(s.hosts) < hostsPerStripe {
		return true
	}
	var idlest *hostEntry
	for _, e := range s.hosts {
		if e.pins.Load() > 0 || e.debt.missing() > 0 || e.binding(now) {
			continue
		}
		if idlest == nil || e.used.Load() < idlest.used.Load() {
			idlest = e
		}
	}
	if idlest == nil {
		return false
	}
	t.drop(s, idlest)
	return true
}

// sweep drops what has healed or lapsed. The stripe is locked.
func (t *hostTable) sweep(s *hostStripe, now time.Duration) {
	for _, e := range s.hosts {
		t.forget(s, e, now)
	}
	if e := s.others.Load(); e != nil && e.lapsed(now) {
		e.pardon(now)
	}
}

// shared returns the entry of the hosts without a place. The stripe is locked.
func (s *hostStripe) shared(now time.Duration) *hostEntry {
	if s.others.Load() == nil {
		e := &hostEntry{others: true}
		e.used.Store(int64(now))
		s.others.Store(e)
	}
	return s.others.Load()
}

// forget drops e if it has healed or lapsed, and reports whether it did. Of an
// entry that has lapsed but is in use, the tokens alone are forgotten. The
// stripe is locked.
func (t *hostTable) forget(s *hostStripe, e *hostEntry, now time.Duration) bool {
	lapsed := e.lapsed(now)
	if e.pins.Load() == 0 && (lapsed || e.Healed(now)) {
		t.drop(s, e)
		return true
	}
	if lapsed {
		e.pardon(now)
	}
	return false
}

// pardon forgets the tokens that e misses, once in an hour. The stripe is
// locked.
func (e *hostEntry) pardon(now time.Duration) {
	e.debt.clear()
	e.used.Store(int64(now))
}

// lapsed reports whether nothing has failed at e in an hour and nothing there
// holds anybody back.
func (e *hostEntry) lapsed(now time.Duration) bool {
	return now-time.Duration(e.used.Load()) > hostIdle && !e.binding(now)
}

// binding reports whether forgetting e would let requests go that are held
// back now.
func (e *hostEntry) binding(now time.Duration) bool {
	if e.pausedFor(now) > 0 {
		return true
	}
	guards := e.guards.Load()
	return guards != nil && guards.binding(now)
}

// refit fits what hosts owe to the sizes of their budgets.
func (t *hostTable) refit(sizeOf func(*hostEntry) int64) {
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		for _, e := range s.hosts {
			e.debt.fit(sizeOf(e))
		}
		if e := s.others.Load(); e != nil {
			e.debt.fit(sizeOf(e))
		}
		s.mu.Unlock()
	}
}

// all returns the hosts in trouble, sorted, after dropping those that are not
// any more, and the entries of the hosts without a place.
func (t *hostTable) all(now time.Duration) (list, others []*hostEntry) {
	for i := range t.stripes {
		s := &t.stripes[i]
		if s.entries.Load() == 0 {
			continue
		}
		s.mu.Lock()
		t.sweep(s, now)
		for _, e := range s.hosts {
			list = append(list, e)
		}
		if e := s.others.Load(); e != nil && e.debt.missing() > 0 {
			others = append(others, e)
		}
		s.mu.Unlock()
	}
	slices.SortFunc(list, func(a, b *hostEntry) int {
		return cmp.Or(cmp.Compare(a.key.host, b.key.host), cmp.Compare(a.key.port, b.key.port))
	})
	return list, others
}
