// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// hostNews is what the log already says about a host in trouble, so that the
// log reports each trouble once, not with every request.
type hostNews struct {
	emptied atomic.Bool  // the budget has run out and has not been full since
	opened  atomic.Bool  // the breaker has opened and has not closed since
	paused  atomic.Int64 // end of the pause, as of the last change
}

// hostChangeNames are the values of the log attribute "change", by the bits of
// a hostChange.
var hostChangeNames = [...]string{"paused", "breaker_open", "breaker_half_open", "breaker_closed", "budget_empty", "budget_full"}

// level returns the log level for one change of the host, whose pause lasts for
// paused from now. Trouble that begins is a warning, and its end is
// information. Changes in between are for debugging.
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

// ranOut records that a request got no retry because tokens were missing, and
// reports whether that is news.
func (e *hostEntry) ranOut() bool { return e.news.emptied.CompareAndSwap(false, true) }

// refilled reports whether the budget of e is full for the first time since it
// ran out.
func (e *hostEntry) refilled() bool {
	return e.news.emptied.Load() && e.debt.missing() == 0 && e.news.emptied.CompareAndSwap(true, false)
}
