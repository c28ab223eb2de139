// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"hash/maphash"
	"iter"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/hostkey"
)

// Table holds the hosts in trouble, and only those. The table makes an
// entry at the first failure of a host, and drops the entry when the host has
// recovered or has not failed for an hour. A lookup drops such an entry itself,
// so results don't depend on earlier lookups.
//
// The table is bounded, and making room never gives tokens back. Only an entry
// that misses no tokens may be evicted: of some, the one that has been idle longest,
// unless the entry is in use, paused or behind a breaker. If no entry can be
// evicted, the new hosts of a stripe share one entry, which has only a budget.
//
// While no host is in trouble, a look costs one atomic load. While
// some hosts are, a request to another host pays for a hash and, if their stripe
// isn't empty, for a lock and a look into a map.
type Table struct {
	entries atomic.Int64
	stripes [stripes]places
	keyed   atomic.Int64 // number of gates of keys
	swept   atomic.Int64 // instant at which sweepGates last looked; 0: never
}

const idle = time.Hour

// places are the hosts of a stripe. Its lock is taken before that of an entry.
type places struct {
	stripe[*Entry]
	others atomic.Pointer[Entry] // entry of all hosts without a place; nil until there is one
}

// Entry is a host in the table. A request that fails there, finds it in trouble or is held back pins
// the entry until the request ends, so that the request takes tokens from, and returns
// them to, the same entry. Whoever has pinned an entry or has locked its stripe may use
// it: nobody drops it meanwhile.
type Entry struct {
	Record
	Key    hostkey.Key
	Others bool          // the entry stands for hosts without a place, and has only a budget
	Failed Failure       // of an attempt, the last one; zero: none; guarded by Record
	Used   time.Duration // instant of the last failure; guarded by Record
	GaveUp atomic.Uint32 // the last reason to give up, as its owner numbers them; 0: none
	News   News
	pins   int    // guarded by the stripe
	stripe uint64 // the number of its stripe
}

func (t *Table) stripe(key hostkey.Key) *places { return &t.stripes[stripeOf(key)] }

// Calm reports whether the host of u is in no trouble.
func (t *Table) Calm(u *url.URL, at *Position) bool {
	return t.entries.Load() == 0 || t.absent(u, at)
}

func (t *Table) absent(u *url.URL, at *Position) bool {
	s := &t.stripes[at.of(u)]
	// If others owe, the host may be in trouble without a place of its own.
	return !s.has(u) && s.indebted() == nil
}

// indebted returns the entry of the hosts without a place, if the stripe is
// full and that entry misses tokens. Otherwise it returns nil.
func (s *places) indebted() *Entry {
	if s.some.Load() < perStripe {
		return nil
	}
	if e := s.others.Load(); e != nil && e.owes() {
		return e
	}
	return nil
}

// Pin returns the entry of key, pinned, or nil if the host is in no trouble.
// The caller must pass the entry to Unpin.
func (t *Table) Pin(key hostkey.Key, now time.Duration) *Entry {
	s := t.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.pin(s, key, now)
}

// pin is Pin for the host of key in s, which must be locked.
func (t *Table) pin(s *places, key hostkey.Key, now time.Duration) *Entry {
	e := s.hosts[key]
	if e == nil || t.forget(s, e, now) {
		return nil
	}
	e.pins++
	return e
}

// PinOwing is Pin for a host that misses tokens or of which a route has failed. If every request
// pinned its host, that of one with a request in flight at any time would never be dropped.
func (t *Table) PinOwing(key hostkey.Key, now time.Duration) *Entry {
	s := t.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.hosts[key]; e == nil || !e.owes() {
		return nil
	}
	return t.pin(s, key, now)
}

// PinGood is Pin for a host that has just responded. A host without a place in
// a full stripe may also have failed without one. Its success then counts for
// the entry of all such hosts, which nothing else would ever refill.
func (t *Table) PinGood(key hostkey.Key, now time.Duration) *Entry {
	s := t.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := t.pin(s, key, now); e != nil {
		return e
	}
	return s.indebted()
}

// PinNew is Pin for a host that has just failed. It makes the entry if there is
// none.
func (t *Table) PinNew(key hostkey.Key, now time.Duration) *Entry {
	n := stripeOf(key)
	s := &t.stripes[n]
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := t.pin(s, key, now); e != nil {
		return e
	}
	if len(s.hosts) >= perStripe && !t.evict(s, now) {
		if s.others.Load() == nil {
			s.others.Store(&Entry{Others: true, Used: now, pins: 1}) // always in use
		}
		return s.others.Load()
	}
	e := &Entry{Key: key, Used: now, pins: 1, stripe: n}
	e.table = t
	// Raise the counters before the entry can be found, so that a reader who sees 0 has
	// missed nothing.
	t.entries.Add(1)
	s.some.Add(1)
	if s.hosts == nil {
		s.hosts = map[hostkey.Key]*Entry{}
	}
	s.hosts[key] = e
	return e
}

// Unpin releases e, and drops e if the host has recovered.
func (t *Table) Unpin(e *Entry, now time.Duration) {
	if e.Others {
		return
	}
	s := &t.stripes[e.stripe]
	s.mu.Lock()
	defer s.mu.Unlock()
	e.pins--
	t.forget(s, e, now)
}

// forget drops e if it has healed or is over, unless it is in use, and reports whether it
// did. If an entry that lacks tokens has lapsed but must stay, forget gives it its tokens
// back. The stripe must be locked.
func (t *Table) forget(s *places, e *Entry, now time.Duration) bool {
	e.Lock()
	defer e.Unlock()
	if e.Guards != nil {
		e.Guards.Gates.Trim(now)
	}
	if e.pins == 0 && (e.healed(now) || e.over(now)) {
		t.drop(s, e)
		return true
	}
	if e.lapsed(now) {
		e.Debt = budget.Debt{}
	}
	return false
}

// drop drops e. The stripe and e must be locked. It must not be inlined, to keep the stack
// frame of PinNew small.
//
//go:noinline
func (t *Table) drop(s *places, e *Entry) {
	if e.Guards != nil {
		e.Guards.Gates.Clear()
	}
	s.stripe.drop(e.Key)
	t.entries.Add(-1)
}

// evict makes room in s, and reports whether it could. The stripe must be locked.
func (t *Table) evict(s *places, now time.Duration) bool {
	if e := s.others.Load(); e != nil {
		t.forget(s, e, now)
	}
	var idlest *Entry
	var since time.Duration
	found := 0
	for _, e := range s.hosts {
		if t.forget(s, e, now) {
			continue
		}
		used, ok := e.evictable(now)
		if !ok {
			continue
		}
		if idlest == nil || used < since {
			idlest, since = e, used
		}
		if found++; found == sample {
			break
		}
	}
	if len(s.hosts) >= perStripe && idlest != nil {
		idlest.Lock()
		defer idlest.Unlock()
		t.drop(s, idlest)
	}
	return len(s.hosts) < perStripe
}

// evictable reports whether making room may drop e, and the instant of its last failure.
// An entry that misses tokens stays, because a new one would have all of them again.
func (e *Entry) evictable(now time.Duration) (used time.Duration, ok bool) {
	if e.pins > 0 {
		return 0, false
	}
	e.Lock()
	defer e.Unlock()
	return e.Used, e.Debt.Missing == 0 && !e.binding(now)
}

// sweepGates drops the gates of keys that have no state worth keeping. It looks at
// all hosts only once a second: a program with more keys than there are places would
// do little else. The caller must hold no lock.
func (t *Table) sweepGates(now time.Duration) {
	last := t.swept.Load()
	if last != 0 && now-time.Duration(last) < time.Second || !t.swept.CompareAndSwap(last, cmp.Or(int64(now), 1)) {
		return
	}
	for s := range t.locked() {
		for _, e := range s.hosts {
			e.sweepGates(now)
		}
	}
}

// locked yields each stripe, locked meanwhile.
func (t *Table) locked() iter.Seq[*places] {
	return func(yield func(*places) bool) {
		for i := range t.stripes {
			s := &t.stripes[i]
			s.mu.Lock()
			yield(s)
			s.mu.Unlock()
		}
	}
}

// FailsAt records that an attempt at the host of e fails at the instant now. If the last
// failure is more than an hour ago, the host has its tokens back.
func (e *Entry) FailsAt(now time.Duration, how Failure) {
	e.Lock()
	defer e.Unlock()
	if e.lapsed(now) {
		e.Debt = budget.Debt{}
		e.News.emptied.Store(false)
		e.News.stopped.Store(false)
	}
	e.Used, e.Failed = now, how
}

// TimingOut reports whether the host of e has failed since the given instant, and one
// of its last outcomes was a timeout.
func (e *Entry) TimingOut(since time.Duration) bool {
	e.Lock()
	defer e.Unlock()
	return e.Used >= since && e.Debt.Recent > 0
}

// Missing returns the number of micro-tokens that the host of e lacks.
func (e *Entry) Missing(now time.Duration) int64 {
	e.Lock()
	defer e.Unlock()
	if e.lapsed(now) {
		return 0
	}
	return e.Debt.Missing
}

// owes reports whether tokens are missing, even if they come back at the next failure, or
// a route has failed.
func (e *Entry) owes() bool {
	e.Lock()
	defer e.Unlock()
	return !e.Debt.Clear()
}

// lapsed reports whether the host of e has not failed for an hour. The entry must be
// locked.
func (e *Entry) lapsed(now time.Duration) bool { return now-e.Used > idle }

// over reports whether the host of e has not failed for an hour and holds back no
// request. The entry must be locked.
func (e *Entry) over(now time.Duration) bool { return e.lapsed(now) && !e.binding(now) }

// Fit adapts the debt of e to the size of its budget.
func (e *Entry) Fit(size int64) {
	e.Lock()
	defer e.Unlock()
	e.Debt.Fit(size)
}

// Refit adapts the debts of all hosts to the sizes of their budgets.
func (t *Table) Refit(sizeOf func(*Entry) int64) {
	for s := range t.locked() {
		for _, e := range s.hosts {
			e.Fit(sizeOf(e))
		}
		if e := s.others.Load(); e != nil {
			e.Fit(sizeOf(e))
		}
	}
}

// Find returns the entry of a host in trouble, or that of the hosts without a place
// if the host would share it and it lacks tokens. Otherwise it returns nil. Unlike
// Pin, Find changes nothing: decisions are the same whether or not anybody looks.
func (t *Table) Find(key hostkey.Key, now time.Duration) *Entry {
	s := t.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.hosts[key]; e != nil && e.troubled(now) {
		return e
	}
	if e := s.indebted(); e != nil && e.Missing(now) > 0 {
		return e
	}
	return nil
}

// All returns the hosts in trouble, sorted, and the entries of the hosts without a
// place that lack tokens. It changes nothing, as Find.
func (t *Table) All(now time.Duration) (list, others []*Entry) {
	for s := range t.locked() {
		for _, e := range s.hosts {
			if e.troubled(now) {
				list = append(list, e)
			}
		}
		if e := s.others.Load(); e != nil && e.Missing(now) > 0 {
			others = append(others, e)
		}
	}
	slices.SortFunc(list, func(a, b *Entry) int { return a.Key.Compare(b.Key) })
	return list, others
}

// troubled reports whether a request to the host of e would find e.
func (e *Entry) troubled(now time.Duration) bool {
	e.Lock()
	defer e.Unlock()
	return e.pins > 0 || !e.over(now) && !e.healed(now)
}

const (
	stripes   = 64
	perStripe = 64
	sample    = 8 // so many hosts that may go are compared to make room for another
)

// stripe is a part of a table of hosts. Few hosts are in trouble, so most stripes are empty,
// and a look into those needs no lock.
type stripe[V any] struct {
	some  atomic.Int32 // number of hosts
	mu    sync.Mutex   // guards hosts
	hosts map[hostkey.Key]V

	_ [64]byte // stripes don't share a cache line
}

var seed = maphash.MakeSeed()

// stripeOf returns the number of the stripe of key.
func stripeOf(key hostkey.Key) uint64 {
	return (maphash.String(seed, key.Host) ^ 31*maphash.String(seed, key.Port)) % stripes
}

// has reports whether the host of u is in s, which must not be locked.
func (s *stripe[V]) has(u *url.URL) bool {
	if s.some.Load() == 0 {
		return false
	}
	key := hostkey.Of(u)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, has := s.hosts[key]
	return has
}

// drop removes a host from s, which must be locked.
func (s *stripe[V]) drop(key hostkey.Key) {
	delete(s.hosts, key)
	s.some.Add(-1)
}

// Position is where the host of one URL is in a table: the number of its stripe, from 1. It is
// found on first use, and small, because it lies under every request that waits.
type Position uint8

func (p *Position) of(u *url.URL) int {
	if *p == 0 {
		*p = Position(1 + stripeOf(hostkey.Of(u)))
	}
	return int(*p - 1)
}
