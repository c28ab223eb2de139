// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/retrip/retrip/internal/budget"
)

// News is what the log already says about a host in trouble, so that the
// log reports each trouble once, not with every request.
type News struct {
	emptied atomic.Bool // the budget has run out and has not been full since
	stopped atomic.Bool // retries of a route have stopped, and the log doesn't say yet that this is over
	opened  atomic.Bool // the breaker has opened and has not closed since
}

// PauseOver is the value of the log attribute "change" after an hour without a pause.
const PauseOver = "pause_over"

// ChangeNames are the other values of the log attribute "change", by the bits of
// a Change.
var ChangeNames = [...]string{"paused", "breaker_open", "breaker_half_open", "breaker_closed", "retries_stopped", "budget_full"}

// Level returns the log level for one change of the host, but for a pause, of which
// the Journal knows more. Trouble that begins is a warning, and its end is
// information. Changes in between are for debugging.
func (n *News) Level(change Change) slog.Level {
	begun := true
	switch change {
	case Opened:
		begun = n.opened.CompareAndSwap(false, true)
	case Probed:
		begun = false
	case Closed:
		n.opened.Store(false)
		return slog.LevelInfo
	case Refilled:
		return slog.LevelInfo
	}
	if begun {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// RanOut records that the budget refused a request a retry, and
// reports whether that is news.
func (e *Entry) RanOut() bool { return e.News.emptied.CompareAndSwap(false, true) }

// StopRoute records that a retry of a route has been refused, and reports whether that is
// news: the route wasn't stopped, and the budget hasn't run out.
func (e *Entry) StopRoute(name uint32, method, path string) bool {
	e.Lock()
	defer e.Unlock()
	i := e.Debt.RowOf(name)
	if i < 0 || e.Debt.Routes[i].Told {
		return false
	}
	if e.routes == nil {
		e.routes = new([budget.Routes]string)
	}
	e.Debt.Routes[i].Told, e.routes[i] = true, budget.RouteText(method, path)
	e.News.stopped.Store(true)
	return !e.News.emptied.Load()
}

// Refilled reports whether the budget of e is full for the first time since it ran out or, if it
// hasn't, since retries of the last route of which the log tells have come back.
func (e *Entry) Refilled() bool {
	if !e.News.emptied.Load() && !e.News.stopped.Load() {
		return false
	}
	e.Lock()
	defer e.Unlock()
	told := slices.ContainsFunc(e.Debt.Routes[:], func(r budget.Route) bool { return r.Told })
	if e.Debt.Missing > 0 || !e.News.emptied.Swap(false) && (told || !e.News.stopped.Load()) {
		return false
	}
	e.News.stopped.Store(false)
	for i := range e.Debt.Routes {
		e.Debt.Routes[i].Told = false
	}
	return true
}
