// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net/url"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/hostkey"
)

// Failures is what is known of the hosts at which requests have failed in the last
// minutes, whether or not retrip holds anything back from them. It is for people who
// look: no decision reads it. Failures is bounded: for a host without a place, it forgets
// the one of some at which nothing has failed for longest. The zero Failures is empty. It is safe
// for concurrent use.
type Failures struct {
	some    atomic.Int64 // number of hosts
	stripes [stripes]stripe[*failures]
}

// FailureWindow is how long a failed request stays known.
const FailureWindow = 5 * time.Minute

// The requests of the window are counted by slots of time. The oldest one reaches over
// the window, so that a failure within it counts.
const (
	slot     = 20 * time.Second
	slots    = int64(FailureWindow/slot) + 1
	inMinute = int64(time.Minute/slot) + 1
)

// convincing is how many failures must be missing, at the rate of those before, until a
// host has recovered: if nothing had changed, one run of answers in twenty would be so long.
const convincing = 3

// failures is what is known of one host.
type failures struct {
	news   time.Duration // instant of the last request that failed or was canceled
	slot   int64         // the newest slot
	counts [slots]counts

	answer time.Duration // instant of the last request that was answered; 0: none
	run    int           // number of requests answered since the last one that failed

	any         bool          // a request has failed, not only been canceled
	since, last time.Duration // instants of the first failed request of this outage and of the last
	earlier     int           // outages before this one
	how         Failure       // of the last failed attempt; zero: none is known
	at          time.Duration // instant at which how was recorded
	gaveUp      uint32        // the last reason to give up; 0: none
}

type counts struct{ failed, canceled, answered uint32 }

// Failure is how an attempt failed. A zero field means that there is none.
type Failure struct {
	Reason, Kind uint8 // the reason to retry, and the kind of the error, as their owners number them
	Status       uint16
	Wait         time.Duration // that the response asked for
}

// Failing describes a host at which requests failed.
type Failing struct {
	Key                        hostkey.Key
	Failed, Canceled, Answered int           // requests within the window; answered ones count from the first of the others on
	MinuteFailed, MinuteAll    int           // of these, those that failed in the last minute, and all in it
	Answer                     time.Duration // instant of the last one answered, if any
	Since, Last                time.Duration // instants of the first failed request of the last outage, and of the last
	Earlier                    int           // outages before it: a recovery ends one, and a window without a failed request ends all
	Recovered                  bool          // enough have been answered since then
	How                        Failure       // of the last failed attempt; zero: unknown
	At                         time.Duration // instant of How
	GaveUp                     uint32        // the last reason to give up, as its owner numbers them; 0: none
}

// Fail records that a request to the host of key has failed at the instant now.
// gaveUp is the reason to give up, and how is the last failure of an attempt; each may
// be zero.
func (f *Failures) Fail(key hostkey.Key, how Failure, gaveUp uint32, now time.Duration) {
	s := f.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	h := f.of(s, key, now)
	if !h.any || now-h.last > FailureWindow {
		h.any, h.since, h.earlier, h.how, h.gaveUp = true, now, 0, Failure{}, 0
	} else if known, _ := h.within(key, now); known.Recovered {
		h.since, h.earlier = now, h.earlier+1
	}
	h.last, h.run = max(h.last, now), 0
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
	h := f.of(s, key, now)
	h.counts[h.slot%slots].canceled++
}

// Knows reports whether Answer may have something to record of the host of u. While no host
// fails, that costs one atomic load.
func (f *Failures) Knows(u *url.URL, at *Position) bool {
	return f.some.Load() != 0 && f.has(u, at)
}

func (f *Failures) has(u *url.URL, at *Position) bool { return f.stripes[at.of(u)].has(u) }

// Answer records that a request to the host of key has been answered now, if others have
// failed in the last minutes. Only then, it reads the clock.
func (f *Failures) Answer(key hostkey.Key, clock func() time.Duration) {
	s := f.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hosts[key]
	if h == nil {
		return
	}
	now := clock()
	if now-h.news > FailureWindow {
		f.drop(s, key)
		return
	}
	h.turn(now)
	h.answer, h.run = max(h.answer, now), h.run+1
	h.counts[h.slot%slots].answered++
}

func (f *Failures) stripe(key hostkey.Key) *stripe[*failures] { return &f.stripes[stripeOf(key)] }

// drop forgets the host of key. The stripe must be locked.
func (f *Failures) drop(s *stripe[*failures], key hostkey.Key) {
	s.drop(key)
	f.some.Add(-1)
}

// of returns what is known of the host of key, at the slot of the instant now, at which a
// request has ended without an answer. The stripe must be locked.
func (f *Failures) of(s *stripe[*failures], key hostkey.Key, now time.Duration) *failures {
	h := s.hosts[key]
	if h == nil {
		if len(s.hosts) >= perStripe {
			f.evict(s, now)
		}
		h = &failures{news: now, slot: slotAt(now)}
		if s.hosts == nil {
			s.hosts = map[hostkey.Key]*failures{}
		}
		s.some.Add(1)
		s.hosts[key.Clone()] = h // its strings may be parts of a long URL
		f.some.Add(1)
	}
	h.turn(now)
	h.news = max(h.news, now)
	return h
}

// turn makes the slot of the instant now the newest, if it isn't older.
func (h *failures) turn(now time.Duration) {
	// Requests that end at once may come in any order.
	for at := slotAt(now); h.slot < at; {
		if at-h.slot > slots {
			h.slot = at - slots
		}
		h.slot++
		h.counts[h.slot%slots] = counts{}
	}
}

func slotAt(now time.Duration) int64 { return int64(max(0, now) / slot) }

// evict makes room in s. Of some, a host whose requests were only canceled goes first.
func (f *Failures) evict(s *stripe[*failures], now time.Duration) {
	var first hostkey.Key
	var found *failures
	seen := 0
	for key, h := range s.hosts {
		if now-h.news > FailureWindow {
			f.drop(s, key)
		} else if found == nil || !h.any && found.any || h.any == found.any && h.news < found.news {
			first, found = key, h
		}
		if seen++; seen == sample {
			break
		}
	}
	if len(s.hosts) >= perStripe {
		f.drop(s, first)
	}
}

// Find returns what is known of the host of key, and false if nothing is.
func (f *Failures) Find(key hostkey.Key, now time.Duration) (Failing, bool) {
	s := f.stripe(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.hosts[key]; h != nil {
		return h.within(key, now)
	}
	return Failing{}, false
}

// All returns what is known of all hosts, in no order, and forgets those that are over.
func (f *Failures) All(now time.Duration) (list []Failing) {
	for i := range f.stripes {
		s := &f.stripes[i]
		s.mu.Lock()
		for key, h := range s.hosts {
			if known, ok := h.within(key, now); ok {
				list = append(list, known)
			} else if now-h.news > FailureWindow {
				f.drop(s, key)
			}
		}
		s.mu.Unlock()
	}
	return list
}

// within describes the requests of the window, and returns false if there are none.
func (h *failures) within(key hostkey.Key, now time.Duration) (Failing, bool) {
	if now-h.news > FailureWindow {
		return Failing{}, false
	}
	known := Failing{Key: key}
	newest := slotAt(now)
	for at := max(0, h.slot-slots+1, newest-slots+1); at <= h.slot; at++ {
		n := &h.counts[at%slots]
		known.Failed += int(n.failed)
		known.Canceled += int(n.canceled)
		known.Answered += int(n.answered)
		if at > newest-inMinute {
			known.MinuteFailed += int(n.failed)
			known.MinuteAll += int(n.failed + n.canceled + n.answered)
		}
	}
	known.Answer = h.answer
	if !h.any || now-h.last > FailureWindow {
		known.Failed, known.MinuteFailed = 0, 0
		return known, known.Canceled > 0
	}
	known.Since, known.Last, known.Earlier, known.How, known.At, known.GaveUp = h.since, h.last, h.earlier, h.how, h.at, h.gaveUp
	before := known.Failed + max(0, known.Answered-h.run)
	known.Recovered = h.run > 0 && float64(known.Failed)*float64(h.run) >= convincing*float64(before)
	return known, true
}
