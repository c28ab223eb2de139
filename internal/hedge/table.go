// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package hedge

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/hostkey"
)

const (
	sets   = 256
	perSet = 16
)

// Table holds what is known of hosts, at most 4096 of them. If the set of a new host is
// full, the host of the set that has not been used for longest goes. Whoever uses that
// host still may go on, and a new Host has no hedges saved up, so making room never
// allows a hedge. The zero Table is empty. A lookup of a known host takes no lock. A
// Table is safe for concurrent use.
type Table struct {
	sets atomic.Pointer[[sets]atomic.Pointer[set]]
}

// set holds the hosts whose hashes have the same remainder. Places fill in order and
// stay full.
type set struct {
	hashes [perSet]atomic.Uint64 // of entries; 0 where there is none
	hosts  [perSet]atomic.Pointer[entry]
	mu     sync.Mutex // guards changes
}

type entry struct {
	key hostkey.Key
	Host
}

// Host returns what is known of the host with the given key, which gets a request at the
// instant now.
func (t *Table) Host(key hostkey.Key, now time.Duration) *Host {
	hash := max(1, key.Hash())
	s := t.set(hash)
	if h := s.find(hash, key); h != nil {
		return h
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.find(hash, key); h != nil {
		return h
	}
	e := &entry{key: key.Clone()}
	e.last = now // until Begin: it is not the host that goes next
	i := s.place()
	// A reader that finds the new hash beside the old entry compares their keys, and
	// then waits for the lock.
	s.hashes[i].Store(hash)
	s.hosts[i].Store(e)
	return &e.Host
}

// set returns the set of a hash.
func (t *Table) set(hash uint64) *set {
	all := t.sets.Load()
	if all == nil {
		all = &[sets]atomic.Pointer[set]{}
		if !t.sets.CompareAndSwap(nil, all) {
			all = t.sets.Load()
		}
	}
	at := &all[hash%sets]
	s := at.Load()
	if s == nil {
		s = new(set)
		if !at.CompareAndSwap(nil, s) {
			s = at.Load()
		}
	}
	return s
}

// find returns the host of a key, or nil if s doesn't have it.
func (s *set) find(hash uint64, key hostkey.Key) *Host {
	for i := range s.hashes {
		switch s.hashes[i].Load() {
		case 0:
			return nil
		case hash:
			if e := s.hosts[i].Load(); e != nil && e.key == key {
				return &e.Host
			}
		}
	}
	return nil
}

// place returns the place for a new host. The set must be locked.
func (s *set) place() (place int) {
	var oldest time.Duration
	for i := range s.hosts {
		e := s.hosts[i].Load()
		if e == nil {
			return i
		}
		if used := e.used(); i == 0 || used < oldest {
			place, oldest = i, used
		}
	}
	return place
}

// All calls f with the key and the delay of each host whose delay is known.
func (t *Table) All(f func(key hostkey.Key, delay time.Duration)) {
	all := t.sets.Load()
	for i := 0; all != nil && i < sets; i++ {
		s := all[i].Load()
		for j := 0; s != nil && j < perSet; j++ {
			if e := s.hosts[j].Load(); e != nil {
				if delay := e.Delay(); delay > 0 {
					f(e.key, delay)
				}
			}
		}
	}
}
