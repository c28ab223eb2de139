// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// hostNews is what the log has been told of a host in trouble, so that it is
// told once, not with every request.
type hostNews struct {
	emptied atomic.Bool  // its budget has run out, and has not been full since
	opened  atomic.Bool  // its breaker has opened, and has not closed since
	paused  atomic.Int64 // instant until which its pause was when a change of it was last seen
}

// What a record of the log says has changed, by the bits of a hostChange.
var hostChangeNames = [...]string{"paused", "breaker_open", "breaker_half_open", "breaker_closed", "budget_empty", "budget_full"}

// level returns how loud to say one change of the host, whose pause lasts for
// the time given from now on. Trouble that begins is a warning and its end
// good to know; what goes on is for those who look closely.
func (n *hostNews) level(change hostChange, now, paused time.Duration) slog.Level {
	begun := true
	switch change {
	case hostPaused:
		begun = time.Duration(n.paused.Swap(int64(now+paused))) <= now
	case hostOpened:
		begun = n.opened.CompareAndSwap(false, true)
	case hostProbed:
		begun = false
	case hostClosed:
		n.opened.Store(false)
		return slog.LevelInfo
	case hostRefilled:
		return slog.LevelInfo
	}
	if begun {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// ranOut takes in that a request got no retry for want of tokens, and reports
// whether that is news.
func (e *hostEntry) ranOut() bool { return e.news.emptied.CompareAndSwap(false, true) }

// refilled reports whether the budget of e is full again for the first time
// since it ran out.
func (e *hostEntry) refilled() bool {
	return e.news.emptied.Load() && e.debt.missing() == 0 && e.news.emptied.CompareAndSwap(true, false)
}
