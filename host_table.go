// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/account"
)

// hostTable holds the hosts in trouble, and only those. The table makes an
// entry at the first failure of a host, and drops the entry when the host has
// recovered or has not failed for an hour. A lookup drops such an entry itself,
// so results don't depend on earlier lookups.
//
// The table is bounded, and making room never gives tokens back. Only an entry
// that misses no tokens may be evicted: the one that has been idle longest,
// unless the entry is in use, paused or behind a breaker. If no entry can be
// evicted, the new hosts of a stripe share one entry, which has only a budget.
//
// While no host is in trouble, a request pays for one atomic load here. While
// some hosts are, a request to another host pays for a hash and a few more
// loads, and for a map lookup only if the marks of hosts in trouble cover its own.
type hostTable struct {
	entries atomic.Int64
	stripes [hostStripes]hostStripe
	keyed   atomic.Int64 // number of gates of keys
}

const (
	hostStripes    = 64
	hostsPerStripe = 64
	hostIdle       = time.Hour
)

type hostStripe struct {
	entries atomic.Int32
	others  atomic.Pointer[hostEntry] // entry of all hosts without a place; nil until there is one
	mu      sync.RWMutex
	hosts   map[hostKey]*hostEntry
	marks   hostMarks // of hosts

	_ [64]byte // stripes don't share a cache line
}

// hostEntry is a host in the table. A request that fails there pins the entry
// until the request ends, so that the request takes tokens from, and returns
// them to, the same Host.
type hostEntry struct {
	Host
	key    hostKey
	hash   uint64       // of key
	others bool         // the entry stands for hosts without a place, and has only a budget
	used   atomic.Int64 // instant of the last failure
	pins   atomic.Int32 // changes from 0 only under the stripe's lock

	failed, gaveUp lastReason
	charge         account.Charge // of the fleet's account
	news           hostNews
}

// Healed is [Host.Healed], but false from a charge to the fleet's account until
// something succeeds. Without Budget.Size, the host misses no tokens, so its
// entry would go at once, and each request would charge the account.
func (e *hostEntry) Healed(now time.Duration) bool { return !e.charge.Made() && e.Host.Healed(now) }

// lastReason is the last Reason stored, "" at first. It is safe for concurrent
// use, and store allocates nothing.
type lastReason struct{ atomic.Uint32 } // index in allReasons

var allReasons = slices.Concat([]Reason{""}, retryReasons, giveUpReasons)

func (l *lastReason) load() Reason { return allReasons[l.Load()] }

func (l *lastReason) store(reason Reason) { l.Store(uint32(max(0, slices.Index(allReasons, reason)))) }

func (t *hostTable) stripe(key hostKey) *hostStripe { return t.stripeAt(key.hash()) }

func (t *hostTable) stripeAt(hash uint64) *hostStripe { return &t.stripes[hash%hostStripes] }

// calm reports whether the host that l looks up is in no trouble.
func (t *hostTable) calm(l *hostLookup) bool { return t.entries.Load() == 0 || t.absent(l) }

func (t *hostTable) absent(l *hostLookup) bool {
	if l.hash == 0 {
		l.hash = hashOf(l.url)
	}
	s := t.stripeAt(l.hash)
	if s.indebted() != nil {
		// The host may be in trouble without a place here.
		return false
	}
	return !s.marks.has(l.hash) || !s.holds(keyOf(l.url))
}

func (s *hostStripe) holds(key hostKey) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.hosts[key] != nil
}

// indebted returns the entry of the hosts without a place, if the stripe is
// full and that entry misses tokens. Otherwise it returns nil.
func (s *hostStripe) indebted() *hostEntry {
	if s.entries.Load() < hostsPerStripe {
		return nil
	}
	if e := s.others.Load(); e != nil && e.debt.missing() > 0 {
		return e
	}
	return nil
}

// pin returns the entry of key, pinned, or nil if the host is in no trouble.
// The caller must pass the entry to unpin.
func (t *hostTable) pin(key hostKey, now time.Duration) *hostEntry {
	hash := key.hash()
	s := t.stripeAt(hash)
	if !s.marks.has(hash) {
		return nil
	}
	e, over := s.find(key, now)
	if over {
		e = t.review(s, key, now)
	}
	return e
}

// review drops the entry of key if it must be forgotten, and otherwise pins and
// returns it.
func (t *hostTable) review(s *hostStripe, key hostKey, now time.Duration) *hostEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.hosts[key]
	if e == nil || t.forget(s, e, now) {
		return nil
	}
	e.pins.Add(1)
	return e
}

// find pins the entry of key, unless it reports that the entry must be
// forgotten.
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

// pinGood is pin for a host that has just responded. A host without a place in
// a full stripe may also have failed without one. Its success then counts for
// the entry of all such hosts, which nothing else would ever refill.
func (t *hostTable) pinGood(key hostKey, now time.Duration) *hostEntry {
	if e := t.pin(key, now); e != nil {
		return e
	}
	return t.stripe(key).indebted()
}

// pinNew is pin for a host that has just failed. It makes the entry if there is
// none.
func (t *hostTable) pinNew(key hostKey, now time.Duration) *hostEntry {
	hash := key.hash()
	s := t.stripeAt(hash)
	if s.marks.has(hash) {
		if e, _ := s.find(key, now); e != nil {
			return e
		}
	}
	return t.make(s, hash, key, now)
}

// make is pinNew for a host that had no entry, or one that must be forgotten.
func (t *hostTable) make(s *hostStripe, hash uint64, key hostKey, now time.Duration) *hostEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.hosts[key]; e != nil && !t.forget(s, e, now) {
		e.pins.Add(1)
		return e
	}
	if len(s.hosts) >= hostsPerStripe && !t.evict(s, now) {
		return s.shared(now)
	}
	if s.hosts == nil {
		s.hosts = map[hostKey]*hostEntry{}
	}
	e := &hostEntry{key: key, hash: hash}
	e.keyed = &t.keyed
	e.pins.Store(1)
	e.used.Store(int64(now))
	// Raise the counters and set the mark before the entry can be found, so
	// that a reader who sees neither has missed nothing.
	s.entries.Add(1)
	t.entries.Add(1)
	s.marks.add(hash)
	s.hosts[key] = e
	return e
}

// unpin releases e, and drops e if the host has recovered.
func (t *hostTable) unpin(e *hostEntry, now time.Duration) {
	if e.others || e.pins.Add(-1) > 0 || !e.Healed(now) {
		return
	}
	s := t.stripeAt(e.hash)
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
	s.marks.remove(e.hash, s.hosts)
	s.entries.Add(-1)
	t.entries.Add(-1)
}

// evict makes room in s, and reports whether it could. A host that misses
// tokens stays, because a new entry would have all of them again.
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

// sweep drops the entries that have healed or lapsed. The stripe must be
// locked.
func (t *hostTable) sweep(s *hostStripe, now time.Duration) {
	for _, e := range s.hosts {
		t.forget(s, e, now)
	}
	if e := s.others.Load(); e != nil && e.lapsed(now) {
		e.pardon(now)
	}
}

// shared returns the entry of the hosts without a place. The stripe must be
// locked.
func (s *hostStripe) shared(now time.Duration) *hostEntry {
	if s.others.Load() == nil {
		e := &hostEntry{others: true}
		e.used.Store(int64(now))
		s.others.Store(e)
	}
	return s.others.Load()
}

// forget drops e if it has healed or lapsed, and reports whether it did. If an
// entry has lapsed but is in use, forget clears only its missing tokens. The
// stripe must be locked.
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

// pardon forgets the missing tokens of e, once an hour. The stripe must be
// locked.
func (e *hostEntry) pardon(now time.Duration) {
	e.debt.clear()
	e.used.Store(int64(now))
}

// lapsed reports whether the host of e has not failed for an hour and holds
// back no request.
func (e *hostEntry) lapsed(now time.Duration) bool {
	return now-time.Duration(e.used.Load()) > hostIdle && !e.binding(now)
}

// binding reports whether forgetting e would let requests through that are held
// back now.
func (e *hostEntry) binding(now time.Duration) bool {
	if e.pausedFor(now) > 0 {
		return true
	}
	guards := e.guards.Load()
	return guards != nil && guards.binding(now)
}

// refit adapts the debts of all hosts to the sizes of their budgets.
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

// all drops the entries that have healed. It returns the hosts in trouble,
// sorted, and the entries of the hosts without a place that miss tokens.
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
