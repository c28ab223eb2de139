// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package budget is the rule that limits retries to a host. It has no clock and no lock.
package budget

import "math"

// Token is a token in micro-tokens. Fixed-point arithmetic makes sums exact, whatever the
// order of additions.
const Token = 1_000_000

// The constants of the rule come from experiments: TestFigures in internal/sim holds
// what they reach.
const (
	RetryCost        = Token / 2      // cost of a request's retries after failures that aren't timeouts
	timeoutRetryCost = Token * 7 / 10 // cost of each retry while attempts time out
	recentOutcomes   = 10             // attempts time out while a timeout is among so many last outcomes
	Credit           = Token / 5      // back per success without a retry
	SlowShare        = 0.7            // a success that took more than this share of AttemptTimeout is slow
	slowCost         = 2 * Token

	// These are shares of a budget's size.
	rowTenths        = 6 // failed retries in a row that end retries, at least rowLeast
	timeoutRowTenths = 4 // the same after a timeout
	timeoutReserve   = 5 // a retry after a timeout leaves one token in so many

	rowLeast = 2
)

// Refusal says why a budget allows no retry.
type Refusal uint8

const (
	_         Refusal = iota
	Exhausted         // too few tokens are left
	Failing           // too many retries in a row have failed
)

// Micro returns a number of tokens in micro-tokens.
func Micro(tokens float64) int64 { return int64(math.Round(tokens * Token)) }

// Rule is a budget as its owner set it, in micro-tokens.
type Rule struct {
	Size   int64 // 0 means unlimited
	Credit int64 // back per success without a retry
}

// row returns how many failed retries in a row end retries, as tenths of the size,
// rounded up.
func (r Rule) row(tenths int64) uint32 { return uint32((r.Size*tenths + 10*Token - 1) / (10 * Token)) }

// Stopped reports whether so many failed retries in a row end all retries until
// something succeeds. After a timeout, fewer do.
func (r Rule) Stopped(row uint32) bool { return r.Size > 0 && row >= max(rowLeast, r.row(rowTenths)) }

// Debt is the state of a host's budget. The zero Debt is a full budget. Its owner must
// lock it.
//
// Once no token is missing, nothing else is known either, so that a host without debt
// needs no state. If successes have paid back what a retry took before the retry fails,
// the failure therefore leaves no trace: it costs nothing and begins no row.
type Debt struct {
	Missing int64  // micro-tokens
	Row     uint32 // retries that failed in a row
	Recent  uint8  // outcomes until the last timeout is forgotten
}

// owe changes the number of missing tokens.
func (d *Debt) owe(missing int64) {
	if d.Missing = missing; missing <= 0 {
		*d = Debt{}
	}
}

// Spend takes the tokens for a retry after a failure and returns their number,
// or says why there must be no retry. again says that a retry of the same request
// has already failed.
func (d *Debt) Spend(r Rule, again, timeout bool) (paid int32, refusal Refusal) {
	if r.Size == 0 {
		return 0, 0
	}
	stopped, left, recent := r.Stopped(d.Row), int64(0), d.Recent
	if timeout {
		stopped, left, recent = d.Row >= r.row(timeoutRowTenths), r.Size/timeoutReserve, recentOutcomes
	}
	switch {
	case recent > 0:
		paid = timeoutRetryCost
	case !again: // a request pays once for all retries that fail, unless attempts time out
		paid = RetryCost
	}
	switch {
	case stopped:
		return 0, Failing
	case d.Missing+int64(paid)+left > r.Size:
		return 0, Exhausted
	}
	d.Recent = recent
	d.owe(d.Missing + int64(paid))
	return paid, 0
}

// GiveBack returns the tokens that a retry took.
func (d *Debt) GiveBack(paid int32) { d.owe(d.Missing - int64(paid)) }

// Fit reduces the debt to a budget of the given size: a smaller budget can't
// miss more than all its tokens, and an unlimited one misses none.
func (d *Debt) Fit(size int64) { d.owe(min(d.Missing, size)) }

// Fail records a failure: that of a retry that the budget allowed, if retry is
// true. Unless attempts time out, the failed retries of a request count once: again
// says that one has failed before. While no token is missing, there is nothing to
// record.
func (d *Debt) Fail(r Rule, retry, again, timeout bool) {
	if r.Size == 0 || d.Missing == 0 {
		return
	}
	d.Recent = max(d.Recent, 1) - 1
	if timeout {
		d.Recent = recentOutcomes
	}
	if retry && (!again || d.Recent > 0) {
		d.Row++
	}
}

// Succeed records a success: that of a first attempt if first is true, or else of a
// retry, which took paid.
func (d *Debt) Succeed(r Rule, paid int32, first, slow bool) {
	if r.Size == 0 || d.Missing == 0 {
		return
	}
	slow = slow && d.Recent > 0
	d.Row, d.Recent = 0, max(d.Recent, 1)-1
	switch {
	case slow && first:
		d.Missing = max(d.Missing, min(r.Size, d.Missing+slowCost))
	case slow:
		// A retry that was slow gets nothing back.
	case first:
		d.owe(d.Missing - r.Credit)
	default:
		d.owe(d.Missing - int64(paid))
	}
}
