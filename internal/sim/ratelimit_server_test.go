// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"time"
)

// ServerLimit describes how a server limits the rate of requests.
type ServerLimit struct {
	Kind          LimitKind
	Rate          float64       // at which a TokenBucket refills, per second
	Count         int           // the size of a TokenBucket, or the requests accepted per window, or at a time
	Window, Phase time.Duration // the length of a window, and when a fixed one begins
	Until         time.Duration // before which an Outage refuses everything

	// From and To bound a period in which a TokenBucket refills at Meanwhile
	// per second instead of Rate.
	From, To  time.Duration
	Meanwhile float64

	// Random is the share of attempts that the server refuses at random, and
	// Every refuses each attempt whose number it divides, as a balancer does that
	// takes turns among backends of which one refuses. Neither depends on the
	// rate, and an attempt that is refused so doesn't count towards the limit.
	Random float64
	Every  int

	Word Word // the Retry-After of a refusal. The correct wait after one by Random or Every is none
}

// LimitKind is a kind of rate limit.
type LimitKind int

const (
	TokenBucket LimitKind = iota
	FixedWindow
	SlidingWindow
	Concurrency
	Outage
	Unlimited
)

// Word is how a server computes the Retry-After of a refusal: a constant time, or one of
// the following.
type Word time.Duration

const (
	RoundedWord Word = -iota // the correct wait, rounded up to seconds, at least one
	ExactWord                // the correct wait
	NoWord                   // no Retry-After
)

func (w Word) of(exact time.Duration) time.Duration {
	switch w {
	case RoundedWord:
		return max(time.Second, (exact + time.Second - 1).Truncate(time.Second))
	case ExactWord:
		return max(1, exact)
	case NoWord:
		return 0
	}
	return time.Duration(w)
}

// limitServer decides about an attempt when it arrives. When it refuses one, it
// returns the time until it would accept the next.
type limitServer interface {
	arrive(now time.Duration) (ok bool, exact time.Duration)
	allows(from, to time.Duration) float64
}

// leave ends a request that a server has accepted.
func leave(s limitServer) {
	if c, ok := s.(*concurrent); ok {
		c.busy--
	}
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
	case Unlimited:
		return []limitServer{outage(0)}
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

// allows returns how much the bucket refills from one time to another.
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

func (s *concurrent) allows(from, to time.Duration) float64 {
	return float64(s.Count) * (to - from).Seconds() / s.service.Seconds()
}

// outage is the time until which the server refuses everything.
type outage time.Duration

func (o outage) arrive(now time.Duration) (bool, time.Duration) {
	return now >= time.Duration(o), time.Duration(o) - now
}

func (o outage) allows(_, _ time.Duration) float64 { return 0 }
