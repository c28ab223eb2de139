// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package alarm provides timers that call a method when they expire. Timers are
// pooled, so setting one doesn't allocate.
package alarm

import (
	"sync"
	"time"
)

// A Ringer is called by an Alarm, in a goroutine of its own. Ring gets the
// alarm that expired, because an alarm that was stopped too late may still
// ring.
type Ringer interface{ Ring(*Alarm) }

// Alarm is a timer. Its methods must not be called concurrently. Ring may call
// them, as long as no other goroutine does.
type Alarm struct {
	timer  *time.Timer
	ringer Ringer
	pooled bool
}

var pool = sync.Pool{New: func() any { return stopped() }}

// stopped returns an alarm that isn't set.
func stopped() *Alarm {
	a := &Alarm{}
	a.timer = time.AfterFunc(time.Hour, a.ring)
	a.timer.Stop()
	return a
}

// Set returns an Alarm that calls r.Ring after d. The caller must call Stop
// when it no longer needs the alarm. clock is the result of any call of
// time.Now by the same goroutine, however long ago.
func Set(clock time.Time, d time.Duration, r Ringer) *Alarm {
	// A timer created inside a testing/synctest bubble can't be used outside
	// it, and vice versa. A goroutine never changes bubbles, and a time.Time
	// from a bubble has no monotonic clock reading.
	var a *Alarm
	if clock == clock.Round(0) {
		a = stopped()
	} else {
		a = pool.Get().(*Alarm)
		a.pooled = true
	}
	a.ringer = r
	a.timer.Reset(d)
	return a
}

func (a *Alarm) ring() { a.ringer.Ring(a) }

// Again makes a ring again after d. It must be called only after a has rung.
func (a *Alarm) Again(d time.Duration) { a.timer.Reset(d) }

// Stop stops a, which must not be used afterwards. It reports whether a has not
// rung since it was set and will not ring; otherwise Ring may be running.
func (a *Alarm) Stop() bool {
	if !a.timer.Stop() {
		// Ring may still be running, so the alarm isn't reused.
		return false
	}
	if a.pooled {
		a.ringer = nil
		pool.Put(a)
	}
	return true
}
