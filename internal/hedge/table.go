// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package hedge

import (
	"maps"
	"sync"
	"time"

	"github.com/retrip/retrip/internal/hostkey"
)

const (
	most     = 3072 // hosts in a Table
	compared = 16   // hosts of which one makes room
)

// Table holds what is known of hosts, at most 3072 of them. If it is full, that one of a few
// hosts goes which has not been used for longest. Whoever uses it still may go on, and a new
// Host has no hedges saved up, so making room never allows a hedge. The zero Table is empty.
// A Table is safe for concurrent use.
type Table struct {
	mu    sync.RWMutex
	hosts map[hostkey.Key]*Host
}

// Host returns what is known of the host with the given key, which gets a request at the
// instant now.
func (t *Table) Host(key hostkey.Key, now time.Duration) *Host {
	t.mu.RLock()
	h := t.hosts[key]
	t.mu.RUnlock()
	if h != nil {
		return h
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.hosts[key]; h != nil {
		return h
	}
	if t.hosts == nil {
		t.hosts = map[hostkey.Key]*Host{}
	}
	if len(t.hosts) >= most {
		t.makeRoom()
	}
	h = &Host{last: now} // until Begin: it is not the host that goes next
	t.hosts[key.Clone()] = h
	return h
}

// makeRoom drops a host. The caller holds t.mu.
func (t *Table) makeRoom() {
	var unused hostkey.Key
	var since time.Duration
	n := 0
	for key, h := range t.hosts { // in an order that differs each time
		if last := h.used(); n == 0 || last < since {
			unused, since = key, last
		}
		if n++; n == compared {
			break
		}
	}
	delete(t.hosts, unused)
}

// All calls f with the key and the delay of each host whose delay is known.
func (t *Table) All(f func(key hostkey.Key, delay time.Duration)) {
	t.mu.RLock()
	hosts := maps.Clone(t.hosts)
	t.mu.RUnlock()
	for key, h := range hosts {
		if delay := h.Delay(); delay > 0 {
			f(key, delay)
		}
	}
}
