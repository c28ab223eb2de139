// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/gate"
	"github.com/retrip/retrip/internal/hostkey"
)

// Table holds the hosts in trouble, and only those. The table makes an
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
type Table struct {
	entries atomic.Int64
	stripes [stripes]stripe
	keyed   atomic.Int64 // number of gates of keys
	swept   atomic.Int64 // instant at which sweepGates last looked; 0: never
}

const (
	stripes   = 64
	perStripe = 64
	idle      = time.Hour
)

type stripe struct {
	entries atomic.Int32
	others  atomic.Pointer[Entry] // entry of all hosts without a place; nil until there is one
	mu      sync.RWMutex
	hosts   map[hostkey.Key]*Entry
	marks   marks // of hosts

	_ [64]byte // stripes don't share a cache line
}

// Entry is a host in the table. A request that fails there pins the entry
// until the request ends, so that the request takes tokens from, and returns
// them to, the same Host.
type Entry struct {
	Record
	Key    hostkey.Key
	hash   uint64       // of key
	Others bool         // the entry stands for hosts without a place, and has only a budget
	Used   atomic.Int64 // instant of the last failure
	pins   atomic.Int32 // changes from 0 only under the stripe's lock

	Failed atomic.Uint32 // the last Failure of an attempt; 0: none
	GaveUp atomic.Uint32 // the last reason to give up, as its owner numbers them; 0: none
	News   News
}

func (t *Table) stripe(key hostkey.Key) *stripe { return t.stripeAt(key.Hash()) }

func (t *Table) stripeAt(hash uint64) *stripe { return &t.stripes[hash%stripes] }

// Calm reports whether the host that l looks up is in no trouble.
func (t *Table) Calm(l *Lookup) bool { return t.entries.Load() == 0 || t.absent(l) }

func (t *Table) absent(l *Lookup) bool {
	if l.hash == 0 {
		l.hash = hostkey.Hash(l.URL)
	}
	s := t.stripeAt(l.hash)
	if s.indebted() != nil {
		// The host may be in trouble without a place here.
		return false
	}
	return !s.marks.has(l.hash) || !s.holds(hostkey.Of(l.URL))
}

func (s *stripe) holds(key hostkey.Key) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.hosts[key] != nil
}

// indebted returns the entry of the hosts without a place, if the stripe is
// full and that entry misses tokens. Otherwise it returns nil.
func (s *stripe) indebted() *Entry {
	if s.entries.Load() < perStripe {
		return nil
	}
	if e := s.others.Load(); e != nil && e.Debt.Missing() > 0 {
		return e
	}
	return nil
}

// Pin returns the entry of key, pinned, or nil if the host is in no trouble.
// The caller must pass the entry to Unpin.
func (t *Table) Pin(key hostkey.Key, now time.Duration) *Entry {
	hash := key.Hash()
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
func (t *Table) review(s *stripe, key hostkey.Key, now time.Duration) *Entry {
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
func (s *stripe) find(key hostkey.Key, now time.Duration) (e *Entry, over bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	e = s.hosts[key]
	switch {
	case e == nil:
		return nil, false
	case e.Missing(now) != e.Debt.Missing() || e.pins.Load() == 0 && (e.over(now) || e.Healed(now)):
		return nil, true
	}
	e.pins.Add(1)
	return e, false
}

// PinGood is Pin for a host that has just responded. A host without a place in
// a full stripe may also have failed without one. Its success then counts for
// the entry of all such hosts, which nothing else would ever refill.
func (t *Table) PinGood(key hostkey.Key, now time.Duration) *Entry {
	if e := t.Pin(key, now); e != nil {
		return e
	}
	return t.stripe(key).indebted()
}

// PinNew is Pin for a host that has just failed. It makes the entry if there is
// none.
func (t *Table) PinNew(key hostkey.Key, now time.Duration) *Entry {
	hash := key.Hash()
	s := t.stripeAt(hash)
	if s.marks.has(hash) {
		if e, _ := s.find(key, now); e != nil {
			return e
		}
	}
	return t.make(s, hash, key, now)
}

// make is PinNew for a host that had no entry, or one that must be forgotten.
func (t *Table) make(s *stripe, hash uint64, key hostkey.Key, now time.Duration) *Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.hosts[key]; e != nil && !t.forget(s, e, now) {
		e.pins.Add(1)
		return e
	}
	if len(s.hosts) >= perStripe && !t.evict(s, now) {
		return s.shared(now)
	}
	if s.hosts == nil {
		s.hosts = map[hostkey.Key]*Entry{}
	}
	e := &Entry{Key: key, hash: hash}
	e.table = t
	e.pins.Store(1)
	e.Used.Store(int64(now))
	// Raise the counters and set the mark before the entry can be found, so
	// that a reader who sees neither has missed nothing.
	s.entries.Add(1)
	t.entries.Add(1)
	s.marks.add(hash)
	s.hosts[key] = e
	return e
}

// Unpin releases e, and drops e if the host has recovered.
func (t *Table) Unpin(e *Entry, now time.Duration) {
	if e.Others || e.pins.Add(-1) > 0 || !e.Healed(now) {
		return
	}
	s := t.stripeAt(e.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosts[e.Key] == e && e.pins.Load() == 0 && e.Healed(now) {
		t.drop(s, e)
	}
}

func (t *Table) drop(s *stripe, e *Entry) {
	if guards := e.guards.Load(); guards != nil {
		// A request that has just unpinned e may still look for gates to drop, and
		// must not count them again.
		guards.clear()
	}
	delete(s.hosts, e.Key)
	s.marks.remove(e.hash, s.hosts)
	s.entries.Add(-1)
	t.entries.Add(-1)
}

// evict makes room in s, and reports whether it could. A host that misses
// tokens stays, because a new entry would have all of them again.
func (t *Table) evict(s *stripe, now time.Duration) bool {
	t.sweep(s, now)
	if len(s.hosts) < perStripe {
		return true
	}
	var idlest *Entry
	for _, e := range s.hosts {
		if e.pins.Load() > 0 || e.Debt.Missing() > 0 || e.binding(now) {
			continue
		}
		if idlest == nil || e.Used.Load() < idlest.Used.Load() {
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
func (t *Table) sweep(s *stripe, now time.Duration) {
	for _, e := range s.hosts {
		t.forget(s, e, now)
	}
	if e := s.others.Load(); e != nil && e.lapsed(now) {
		e.Debt.Clear()
	}
}

// sweepGates drops the gates of keys that have no state worth keeping. It looks at
// all hosts only once a second: a program with more keys than there are places would
// do little else. The caller must hold no lock.
func (t *Table) sweepGates(now time.Duration) {
	last := t.swept.Load()
	if last != 0 && now-time.Duration(last) < time.Second || !t.swept.CompareAndSwap(last, cmp.Or(int64(now), 1)) {
		return
	}
	for i := range t.stripes {
		t.stripes[i].sweepGates(now)
	}
}

func (s *stripe) sweepGates(now time.Duration) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, e := range s.hosts {
		if g := e.guards.Load(); g != nil {
			g.sweep(now)
		}
	}
}

// shared returns the entry of the hosts without a place. The stripe must be
// locked.
func (s *stripe) shared(now time.Duration) *Entry {
	if s.others.Load() == nil {
		e := &Entry{Others: true}
		e.Used.Store(int64(now))
		s.others.Store(e)
	}
	return s.others.Load()
}

// forget drops e if it has healed or is over, and reports whether it did. If an
// entry that lacks tokens has lapsed but must stay, forget gives it its tokens
// back. The stripe must be locked.
func (t *Table) forget(s *stripe, e *Entry, now time.Duration) bool {
	if e.pins.Load() == 0 && (e.over(now) || e.Healed(now)) {
		t.drop(s, e)
		return true
	}
	if e.lapsed(now) {
		e.Debt.Clear()
	}
	return false
}

// FailsAt records that the host of e fails at the instant now. If its last failure
// is more than an hour ago, the host has its tokens back.
func (e *Entry) FailsAt(now time.Duration) {
	if last := time.Duration(e.Used.Swap(int64(now))); now-last > idle {
		e.Debt.Clear()
		e.News.emptied.Store(false)
	}
}

// TimingOut reports whether the host of e has failed since the given instant, and one
// of its last outcomes was a timeout.
func (e *Entry) TimingOut(since time.Duration) bool {
	return time.Duration(e.Used.Load()) >= since && e.Debt.TimingOut()
}

// Missing returns the number of micro-tokens that the host of e lacks.
func (e *Entry) Missing(now time.Duration) int64 {
	if e.lapsed(now) {
		return 0
	}
	return e.Debt.Missing()
}

// lapsed reports whether the host of e has not failed for an hour.
func (e *Entry) lapsed(now time.Duration) bool { return now-time.Duration(e.Used.Load()) > idle }

// over reports whether the host of e has not failed for an hour and holds back no
// request.
func (e *Entry) over(now time.Duration) bool { return e.lapsed(now) && !e.binding(now) }

// binding reports whether forgetting e would let requests through that are held
// back now.
func (e *Entry) binding(now time.Duration) bool {
	if e.PausedFor(now) > 0 {
		return true
	}
	guards := e.guards.Load()
	return guards != nil && guards.binding(now)
}

// Refit adapts the debts of all hosts to the sizes of their budgets.
func (t *Table) Refit(sizeOf func(*Entry) int64) {
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		for _, e := range s.hosts {
			e.Debt.Fit(sizeOf(e))
		}
		if e := s.others.Load(); e != nil {
			e.Debt.Fit(sizeOf(e))
		}
		s.mu.Unlock()
	}
}

// Look returns the entry of a host in trouble, or that of the hosts without a place
// if the host would share it and it lacks tokens. Otherwise it returns nil. Unlike
// Pin, Look changes nothing: decisions are the same whether or not anybody looks.
func (t *Table) Look(key hostkey.Key, now time.Duration) *Entry {
	s := t.stripe(key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	if e := s.hosts[key]; e != nil && e.troubled(now) {
		return e
	}
	if e := s.indebted(); e != nil && e.Missing(now) > 0 {
		return e
	}
	return nil
}

// All returns the hosts in trouble, sorted, and the entries of the hosts without a
// place that lack tokens. It changes nothing, as Look.
func (t *Table) All(now time.Duration) (list, others []*Entry) {
	for i := range t.stripes {
		s := &t.stripes[i]
		if s.entries.Load() == 0 {
			continue
		}
		s.mu.RLock()
		for _, e := range s.hosts {
			if e.troubled(now) {
				list = append(list, e)
			}
		}
		if e := s.others.Load(); e != nil && e.Missing(now) > 0 {
			others = append(others, e)
		}
		s.mu.RUnlock()
	}
	slices.SortFunc(list, func(a, b *Entry) int { return a.Key.Compare(b.Key) })
	return list, others
}

// troubled reports whether a request to the host of e would find e.
func (e *Entry) troubled(now time.Duration) bool {
	return e.pins.Load() > 0 || !e.over(now) && !e.healed(now, (*gate.Table).Rests)
}
