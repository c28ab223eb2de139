// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"hash/maphash"
	"net/url"
	"sync"
	"sync/atomic"

	"github.com/retrip/retrip/internal/hostkey"
)

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

// Place is where the host of one URL is in a table: the number of its stripe, from 1. It is
// found on first use, and small, because it lies under every request that waits.
type Place uint8

func (p *Place) of(u *url.URL) int {
	if *p == 0 {
		*p = Place(1 + stripeOf(hostkey.Of(u)))
	}
	return int(*p - 1)
}
