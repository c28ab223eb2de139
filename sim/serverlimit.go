// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"time"
)

// ServerLimit is a server's limit of the rate of requests.
type ServerLimit struct {
	Kind LimitKind

	// Rate is what a TokenBucket is refilled by, per second.
	Rate float64

	// Count is the size of a TokenBucket, what is accepted in each window, and
	// how many a Concurrency accepts at one time.
	Count int

	// Window is the length of the windows, and Phase the instant at which one
	// begins: of fixed ones only.
	Window, Phase time.Duration

	// Until is when an Outage ends: before, everything is refused, and after,
	// nothing.
	Until time.Duration

	// From and To bound a time in which a TokenBucket is refilled by Meanwhile
	// per second instead of Rate.
	From, To  time.Duration
	Meanwhile float64

	// Word is what a refusal says about when to come back.
	Word Word
}

// LimitKind is how a server limits.
type LimitKind int

const (
	TokenBucket LimitKind = iota
	FixedWindow
	SlidingWindow
	Concurrency
	Outage
)

// Word is the Retry-After of a refusal.
type Word struct {
	Kind WordKind

	// Length is what a ConstantWord says, whatever is the case.
	Length time.Duration
}

// WordKind is where a server takes its Retry-After from.
type WordKind int

const (
	RoundedWord  WordKind = iota // the right time, rounded up to seconds, at least one
	ExactWord                    // the right time
	ConstantWord                 // Length
	NoWord                       // there is none
)

func (w Word) of(exact time.Duration) time.Duration {
	switch w.Kind {
	case ExactWord:
		return max(1, exact)
	case ConstantWord:
		return w.Length
	case NoWord:
		return 0
	}
	return max(time.Second, (exact + time.Second - 1).Truncate(time.Second))
}

// limitServer decides about one attempt when it arrives. For one that it
// refuses it knows how long it takes until the next would be accepted.
type limitServer interface {
	arrive(now time.Duration) (ok bool, exact time.Duration)
	leave()
	allows(from, to time.Duration) float64
}

func (m *RateLimit) servers() []limitServer {
	if m.Tenants != nil {
		var list []limitServer
		for _, rate := range m.Tenants {
			list = append(list, newBucket(ServerLimit{Rate: rate, Count: max(1, int(rate))}))
		}
		return list
	}
	switch l := m.Limit; l.Kind {
	case FixedWindow:
		return []limitServer{&fixedWindow{ServerLimit: l, window: -1}}
	case SlidingWindow:
		return []limitServer{&slidingWindow{ServerLimit: l}}
	case Concurrency:
		return []limitServer{&concurrent{ServerLimit: l, service: m.Service}}
	case Outage:
		return []limitServer{outage(l.Until)}
	default:
		return []limitServer{newBucket(l)}
	}
}

type bucket struct {
	ServerLimit
	tokens float64
	at     time.Duration
}

func newBucket(l ServerLimit) *bucket { return &bucket{ServerLimit: l, tokens: float64(l.Count)} }

// allows returns what is refilled from one instant to another.
func (b *bucket) allows(from, to time.Duration) float64 {
	inside := max(0, min(to, b.To)-max(from, b.From)).Seconds()
	return float64(((to-from).Seconds()-inside)*b.Rate) + float64(inside*b.Meanwhile)
}

func (b *bucket) arrive(now time.Duration) (bool, time.Duration) {
	b.tokens = min(float64(b.Count), b.tokens+b.allows(b.at, now))
	b.at = now
	if b.tokens >= 1-1e-9 {
		b.tokens--
		return true, 0
	}
	rate := b.Rate
	if now >= b.From && now < b.To {
		rate = b.Meanwhile
	}
	return false, time.Duration((1 - b.tokens) / rate * float64(time.Second))
}

func (b *bucket) leave() {}

type fixedWindow struct {
	ServerLimit
	window time.Duration
	used   int
}

func (f *fixedWindow) arrive(now time.Duration) (bool, time.Duration) {
	since := now - f.Phase + f.Window*((f.Phase+f.Window-1)/f.Window)
	if k := since / f.Window; k != f.window {
		f.window, f.used = k, 0
	}
	if f.used < f.Count {
		f.used++
		return true, 0
	}
	return false, f.Window - since%f.Window
}

func (f *fixedWindow) leave() {}

func (f *fixedWindow) allows(from, to time.Duration) float64 {
	return float64(f.Count) * (to - from).Seconds() / f.Window.Seconds()
}

type slidingWindow struct {
	ServerLimit
	log []time.Duration
}

func (s *slidingWindow) arrive(now time.Duration) (bool, time.Duration) {
	past, _ := slices.BinarySearch(s.log, now-s.Window+1)
	s.log = s.log[past:]
	if len(s.log) < s.Count {
		s.log = append(s.log, now)
		return true, 0
	}
	return false, s.log[0] + s.Window - now
}

func (s *slidingWindow) leave() {}

func (s *slidingWindow) allows(from, to time.Duration) float64 {
	return float64(s.Count) * (to - from).Seconds() / s.Window.Seconds()
}

type concurrent struct {
	ServerLimit
	service time.Duration
	busy    int
}

func (s *concurrent) arrive(time.Duration) (bool, time.Duration) {
	if s.busy < s.Count {
		s.busy++
		return true, 0
	}
	return false, s.service / time.Duration(s.Count)
}

func (s *concurrent) leave() { s.busy-- }

func (s *concurrent) allows(from, to time.Duration) float64 {
	return float64(s.Count) * (to - from).Seconds() / s.service.Seconds()
}

// outage is the instant until which everything is refused.
type outage time.Duration

func (o outage) arrive(now time.Duration) (bool, time.Duration) {
	return now >= time.Duration(o), time.Duration(o) - now
}

func (o outage) leave() {}

func (o outage) allows(_, _ time.Duration) float64 { return 0 }
