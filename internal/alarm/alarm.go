// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package alarm has timers that call a method when their time is up, and that
// are used again: setting one costs no allocation.
package alarm

import (
	"sync"
	"time"
)

// Ringer is what an Alarm calls, in a goroutine of its own. It is told which
// alarm rings: one that it has stopped too late may still do.
type Ringer interface{ Ring(*Alarm) }

// Alarm is a timer. Its methods must not be called at the same time, except
// from Ring, while nobody else calls them.
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

// Set returns an Alarm that calls r.Ring in d. Its user must call Stop when it
// has no more use for it.
func Set(d time.Duration, r Ringer) *Alarm {
	// A timer made in a bubble of testing/synctest can't be used outside, and the
	// other way round. A time in a bubble has no monotonic clock reading.
	var a *Alarm
	if now := time.Now(); now == now.Round(0) {
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

// Again has a ring again in d. It must only be called after a has rung.
func (a *Alarm) Again(d time.Duration) { a.timer.Reset(d) }

// Stop ends a, which must not be used any more. It reports whether a rings no
// more and has not rung since it was set; otherwise Ring may be running.
func (a *Alarm) Stop() bool {
	if !a.timer.Stop() {
		// Its function may run: the garbage collector takes it.
		return false
	}
	if a.pooled {
		a.ringer = nil
		pool.Put(a)
	}
	return true
}
