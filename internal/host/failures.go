// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"sync"
	"time"

	"github.com/retrip/retrip/internal/hostkey"
)

// Failures is what is known of the hosts at which requests have failed in the last
// minutes, whether or not retrip holds anything back from them. It is for people who
// look: no decision reads it. A request that succeeds never comes here. Failures is
// bounded: for a host without a place, it forgets the one about which there has been
// nothing new for longest. The zero Failures is empty. It is safe for concurrent use.
type Failures struct{ stripes [stripes]failing }

type failing struct {
	mu    sync.Mutex
	hosts map[hostkey.Key]*failures
}

// FailureWindow is how long a failed request stays known.
const FailureWindow = 5 * time.Minute

// The requests of the window are counted by slots of time. The oldest one reaches over
// the window, so that a failure within it counts.
const (
	slot  = 30 * time.Second
	slots = int64(FailureWindow/slot) + 1
)

// failures is what is known of one host.
type failures struct {
	news   time.Duration // instant of the last request
	slot   int64         // number of its slot
	counts [slots]struct{ failed, canceled uint32 }

	any         bool          // a request has failed, not only been canceled
	since, last time.Duration // instants of the first failed request and of the last
	how         Failure       // of the last failed attempt; zero: none is known
	at          time.Duration // instant at which how was recorded
	gaveUp      uint32        // the last reason to give up; 0: none
}

// Failure is how an attempt failed. A zero field means that there is none.
type Failure struct {
	Reason, Kind uint8 // the reason to retry, and the kind of the error, as their owners number them
	Status       uint16
}

// Failing describes a host at which requests failed.
type Failing struct {
	Key              hostkey.Key
	Failed, Canceled int           // requests within the window
	Since            time.Duration // instant of the first failed request since the last window without any
	How              Failure       // of the last failed attempt; zero: unknown
	At               time.Duration // instant of How
	GaveUp           uint32        // the last reason to give up, as its owner numbers them; 0: none
}

// Fail records that a request to the host of key has failed at the instant now.
// gaveUp is the reason to give up, and how is the last failure of an attempt; each may
// be zero.
func (f *Failures) Fail(key hostkey.Key, how Failure, gaveUp uint32, now time.Duration) {
	s := f.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.of(key, now)
	if !h.any || now-h.last > FailureWindow {
		h.any, h.since, h.how, h.gaveUp = true, now, Failure{}, 0
	}
	h.last = max(h.last, now)
	if how != (Failure{}) {
		h.how, h.at = how, now
	}
	if gaveUp != 0 {
		h.gaveUp = gaveUp
	}
	h.counts[h.slot%slots].failed++
}

// Cancel records that the caller has canceled a request to the host of key.
func (f *Failures) Cancel(key hostkey.Key, now time.Duration) {
	s := f.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.of(key, now)
	h.counts[h.slot%slots].canceled++
}

func (f *Failures) stripe(key hostkey.Key) *failing { return &f.stripes[key.Hash()%stripes] }

// of returns what is known of the host of key, at the slot of the instant now. The
// stripe must be locked.
func (s *failing) of(key hostkey.Key, now time.Duration) *failures {
	h := s.hosts[key]
	if h == nil {
		if len(s.hosts) >= perStripe {
			s.evict(now)
		}
		if s.hosts == nil {
			s.hosts = map[hostkey.Key]*failures{}
		}
		h = &failures{news: now, slot: slotAt(now)}
		// The strings of key may be parts of a long URL.
		s.hosts[key.Clone()] = h
	}
	// Requests that end at once may come in any order.
	for at := slotAt(now); h.slot < at; {
		if at-h.slot > slots {
			h.slot = at - slots
		}
		h.slot++
		h.counts[h.slot%slots] = struct{ failed, canceled uint32 }{}
	}
	h.news = max(h.news, now)
	return h
}

func slotAt(now time.Duration) int64 { return int64(max(0, now) / slot) }

// evict makes room in s. A host whose requests were only canceled goes first.
func (s *failing) evict(now time.Duration) {
	var first hostkey.Key
	var found *failures
	for key, h := range s.hosts {
		if now-h.news > FailureWindow {
			delete(s.hosts, key)
		} else if found == nil || !h.any && found.any || h.any == found.any && h.news < found.news {
			first, found = key, h
		}
	}
	if len(s.hosts) >= perStripe {
		delete(s.hosts, first)
	}
}

// Look returns what is known of the host of key, and false if nothing is. Like All, it
// changes nothing.
func (f *Failures) Look(key hostkey.Key, now time.Duration) (Failing, bool) {
	s := f.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.hosts[key]; h != nil {
		return h.within(key, now)
	}
	return Failing{}, false
}

// All returns what is known of all hosts, in no order.
func (f *Failures) All(now time.Duration) (list []Failing) {
	for i := range f.stripes {
		list = f.stripes[i].all(list, now)
	}
	return list
}

func (s *failing) all(list []Failing, now time.Duration) []Failing {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, h := range s.hosts {
		if known, ok := h.within(key, now); ok {
			list = append(list, known)
		}
	}
	return list
}

// within describes the requests of the window, and returns false if there are none.
func (h *failures) within(key hostkey.Key, now time.Duration) (Failing, bool) {
	if now-h.news > FailureWindow {
		return Failing{}, false
	}
	known := Failing{Key: key}
	for at := max(0, h.slot-slots+1, slotAt(now)-slots+1); at <= h.slot; at++ {
		known.Failed += int(h.counts[at%slots].failed)
		known.Canceled += int(h.counts[at%slots].canceled)
	}
	if !h.any || now-h.last > FailureWindow {
		known.Failed = 0
		return known, known.Canceled > 0
	}
	known.Since, known.How, known.At, known.GaveUp = h.since, h.how, h.at, h.gaveUp
	return known, true
}
