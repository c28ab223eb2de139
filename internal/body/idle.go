// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/alarm"
)

// watch observes whether Reads make progress. A Read doesn't read the clock. It
// changes a counter, and an alarm compares the counter with its last value. The
// alarm is set only while somebody reads.
type watch struct {
	// state is odd during a Read, and grows by two with each Read that returns
	// bytes. Its highest bit says that a Read has stalled.
	state atomic.Uint64
	set   atomic.Bool // the alarm will ring

	// Guarded by Stream.mu.
	alarm *alarm.Alarm
	seen  uint64        // state when the alarm last rang
	stuck time.Duration // for how long state has been the same
}

const stalledBit = 1 << 63

// enter begins a Read, and reports whether the alarm must be set.
func (w *watch) enter() bool {
	if w.state.Add(1)&1 == 0 {
		// The previous Read panicked.
		w.state.Add(1)
	}
	return !w.set.Load()
}

// leave ends a Read, and reports whether a Read has stalled.
func (w *watch) leave(progress bool) bool {
	for {
		was := w.state.Load()
		next := was - 1
		if progress {
			next = was + 1
		}
		if was&stalledBit != 0 {
			next = was&^1 | stalledBit
		}
		if w.state.CompareAndSwap(was, next) {
			return was&stalledBit != 0
		}
	}
}

// reset forgets a stall.
func (w *watch) reset() {
	w.state.Store(0)
	w.seen, w.stuck = 0, 0
}

// stop stops the alarm until another Read sets one.
func (w *watch) stop() {
	if w.alarm != nil {
		w.alarm.Stop()
		w.alarm = nil
		w.set.Store(false)
	}
}

// period is the interval at which the alarm of s rings: BodyIdle divided into
// equal parts of at most half a second.
func (s *Stream) period() time.Duration {
	const least, most = time.Millisecond, time.Second / 2
	times := (s.idle + most - 1) / most
	return max(least, (s.idle+times-1)/times)
}

// arm sets the alarm.
func (s *Stream) arm() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.watch.set.Load() || s.watch.state.Load()&stalledBit != 0 {
		return
	}
	s.watch.set.Store(true)
	s.watch.seen, s.watch.stuck = s.watch.state.Load(), 0
	if s.watch.alarm == nil {
		s.watch.alarm = alarm.Set(time.Now(), s.period(), s)
	} else {
		s.watch.alarm.Again(s.period())
	}
}

// Ring implements [alarm.Ringer].
func (s *Stream) Ring(a *alarm.Alarm) {
	s.mu.Lock()
	w := &s.watch
	if w.alarm != a {
		s.mu.Unlock()
		return
	}
	state := w.state.Load()
	switch {
	case state != w.seen:
		w.seen, w.stuck = state, 0
	case state&1 == 0:
		// Nobody reads. The next Read sets the alarm again. If a Read has just
		// begun and saw that the alarm was set, Ring sets it.
		w.set.Store(false)
		if w.state.Load() == state {
			s.mu.Unlock()
			return
		}
		w.set.Store(true)
	default:
		w.stuck += s.period()
	}
	if w.stuck >= s.idle && w.state.CompareAndSwap(state, state|stalledBit) {
		w.set.Store(false)
		cut := s.cut
		s.mu.Unlock()
		if cut != nil {
			cut.Cut()
		}
		return
	}
	w.alarm.Again(s.period())
	s.mu.Unlock()
}
