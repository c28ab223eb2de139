// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"hash/maphash"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// hostTable holds the hosts in trouble, and only them: an entry is made on the
// first failure and dropped when it has healed, or when nothing has failed
// there in an hour. It is bounded; what must give way is the entry that has
// healed most and been idle longest, never one that is in use, paused or
// behind a breaker. When nothing may go, new hosts share one entry, which
// knows a budget only.
//
// While no host is in trouble a request pays one atomic load here. While some
// are, a request to another host pays a hash and a second load, and a look into
// the map if one of them shares its stripe.
type hostTable struct {
	entries  atomic.Int64
	stripes  [hostStripes]hostStripe
	overflow hostEntry
	keyed    atomic.Int64 // gates of keys
}

const (
	hostStripes    = 64
	hostsPerStripe = 64
	hostIdle       = time.Hour
)

type hostStripe struct {
	entries atomic.Int32
	mu      sync.RWMutex
	hosts   map[hostKey]*hostEntry

	_ [64]byte // stripes don't share a cache line
}

// hostKey is a host, whatever pattern chose its policy.
type hostKey struct{ host, port string }

func (k hostKey) String() string { return net.JoinHostPort(k.host, k.port) }

func keyOf(u *url.URL) hostKey {
	if u == nil {
		return hostKey{}
	}
	host, port := hostPort(u)
	return hostKey{host, port}
}

// hostEntry is a host in the table. A request that has met a failure there
// pins it until the request's end, so that what it has taken and what it gives
// back meet the same Host.
type hostEntry struct {
	Host
	key  hostKey
	used atomic.Int64 // instant of the last failure
	pins atomic.Int32 // changes from 0 only under the stripe's lock
}

var hostSeed = maphash.MakeSeed()

func (t *hostTable) stripe(key hostKey) *hostStripe {
	return &t.stripes[maphash.Comparable(hostSeed, key)%hostStripes]
}

// calm reports whether the host of u is in no trouble.
func (t *hostTable) calm(u *url.URL) bool { return t.entries.Load() == 0 || t.absent(u) }

func (t *hostTable) absent(u *url.URL) bool {
	key := keyOf(u)
	s := t.stripe(key)
	switch n := s.entries.Load(); {
	case n == 0:
		return true
	case n >= hostsPerStripe:
		// It may be in trouble without a place here.
		return false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.hosts[key] == nil
}

// pin returns the entry of key for a request that has business with it, or nil
// if that host is in no trouble. It must be given to unpin.
func (t *hostTable) pin(key hostKey) *hostEntry {
	s := t.stripe(key)
	if s.entries.Load() == 0 {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	e := s.hosts[key]
	if e != nil {
		e.pins.Add(1)
	}
	return e
}

// pinGood is pin for a host that has just answered. One without a place in a
// full stripe may have failed without one, too: what its success is worth goes
// to the entry of all such hosts, which nothing else would ever refill.
func (t *hostTable) pinGood(key hostKey) *hostEntry {
	e := t.pin(key)
	if e == nil && t.overflow.missing.Load() > 0 && t.stripe(key).entries.Load() >= hostsPerStripe {
		return &t.overflow
	}
	return e
}

// pinNew is pin for a host that has just failed: it makes the entry.
func (t *hostTable) pinNew(key hostKey, now time.Duration) *hostEntry {
	e := t.pin(key)
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
		return &t.overflow
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
	if e == &t.overflow || e.pins.Add(-1) > 0 || !e.Healed(now) {
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

// evict makes room in s, and reports whether it could.
func (t *hostTable) evict(s *hostStripe, now time.Duration) bool {
	t.sweep(s, now)
	if len(s.hosts) < hostsPerStripe {
		return true
	}
	var worst *hostEntry
	for _, e := range s.hosts {
		if e.pins.Load() > 0 || e.binding(now) {
			continue
		}
		if worst == nil || cmp.Or(cmp.Compare(e.missing.Load(), worst.missing.Load()), cmp.Compare(e.used.Load(), worst.used.Load())) < 0 {
			worst = e
		}
	}
	if worst == nil {
		return false
	}
	t.drop(s, worst)
	return true
}

// sweep drops what has healed or gone idle. The stripe is locked.
func (t *hostTable) sweep(s *hostStripe, now time.Duration) {
	for _, e := range s.hosts {
		idle := now-time.Duration(e.used.Load()) > hostIdle && !e.binding(now)
		if e.pins.Load() == 0 && (idle || e.Healed(now)) {
			t.drop(s, e)
		}
	}
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

// all returns the hosts in trouble, sorted, after dropping those that are not
// any more.
func (t *hostTable) all(now time.Duration) []*hostEntry {
	var list []*hostEntry
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
		s.mu.Unlock()
	}
	slices.SortFunc(list, func(a, b *hostEntry) int {
		return cmp.Or(cmp.Compare(a.key.host, b.key.host), cmp.Compare(a.key.port, b.key.port))
	})
	return list
}
