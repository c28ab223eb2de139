// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"io"
	"net"
	"slices"
	"time"

	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/chance"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/redact"
)

// An operation that fails may be the fault of its account, of its node in a
// cluster, of the network or of the whole store. The answers for other accounts
// tell which.
const (
	// witness is how long an answer shows that the store works: operations
	// that fail meanwhile fail because of their accounts, and those that take
	// long have waited within the process or the store's client. Hosts in
	// trouble ask once a second, so it is longer than that.
	witness = 2 * time.Second

	// several accounts in a row whose operations fail mean that the store has
	// failed.
	several = 3
)

// link is what a process knows about the way to its store. Accounts.mu guards it.
type link struct {
	account.Link
	answered time.Duration // instant of the last answer in time; 0 if there was none
	slow     time.Duration // instant at which an operation was late since then; 0 if none was
	by       hostkey.Key   // whose account that was about
	failed   []hostkey.Key // accounts whose operations have failed since then
}

// answers records an answer in time about the account of host.
func (l *link) answers(host hostkey.Key, now time.Duration) {
	l.answered, l.slow, l.by, l.failed = max(1, now), 0, host, l.failed[:0]
}

// works reports whether the store has just answered in time.
func (l *link) works(now time.Duration) bool { return l.answered != 0 && now-l.answered <= witness }

// late records that an operation that began at the instant sent takes too long,
// and reports whether the store does. Operations that begin together may all
// wait for a processor or a connection, so one that begins a second later
// decides.
func (l *link) late(sent, now time.Duration) bool {
	switch {
	case l.works(now):
		return false
	case l.slow == 0:
		l.slow = max(1, now)
		return false
	}
	return sent-l.slow >= patience
}

// fails records that an operation for the account of host has failed with err, and
// reports whether the store has.
func (l *link) fails(host hostkey.Key, err error, now time.Duration) bool {
	if !slices.Contains(l.failed, host) && len(l.failed) < several {
		l.failed = append(l.failed, host)
	}
	if l.works(now) && l.by != host {
		return false
	}
	_, unreached := err.(unreachedError)
	return unreached || len(l.failed) >= several
}

// unreachedError is the error of an operation that didn't reach the store. Any other is
// that of a store that refused.
type unreachedError struct{ error }

// unreached reports whether err is that of a connection, or of a time limit. The methods
// of err may panic.
func unreached(err error) bool {
	_, ofConnection := errors.AsType[net.Error](err)
	return ofConnection || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe)
}

const errorBytes = 500

// storeError returns err with its text for the log. The caller must not hold
// Accounts.mu, because the error's own code runs, and may panic.
func storeError(err error) (bounded error) {
	defer func() {
		if recover() != nil {
			bounded = errPanic
		}
	}()
	bounded = errors.New(redact.Short(redact.Error(err), errorBytes))
	if unreached(err) {
		bounded = unreachedError{bounded}
	}
	return bounded
}

// fail stops the use of v's account for a while, or that of the store if it is
// at fault.
func (f *Accounts) fail(v *view, err error, now time.Duration) {
	switch {
	case !f.link.Up(now):
	case f.link.fails(v.host, err, now):
		f.lose(err, now)
	default:
		v.link.Lose(now, chance.Draw())
		f.news.refused(v.host.String(), err)
	}
}

// lose stops the use of the store for a while, unless it has stopped already.
func (f *Accounts) lose(err error, now time.Duration) {
	if f.link.Up(now) {
		f.link.Lose(now, chance.Draw())
		f.link.answered, f.link.failed = 0, f.link.failed[:0]
		f.news.away(err)
	}
}

// Overdue records that a request has waited for answer as long as it may.
// Without it, a store that never returns would go unnoticed.
func (f *Accounts) Overdue(host hostkey.Key, answer <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if v := f.views[host]; v == nil || v.answer != answer {
		return
	}
	// The operation may not have begun, because others have not ended.
	for v := range f.running {
		if now-v.sent >= account.OpTimeout && f.link.late(v.sent, now) {
			f.lose(errSlow, now)
			return
		}
	}
}
