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
	RetryCost        = Token / 2      // cost of a request's first retries after failures that aren't timeouts
	priced           = 3              // how many retries of a request that pays for; each further one costs the same
	timeoutRetryCost = Token * 7 / 10 // cost of each retry while attempts time out
	recentSuccesses  = 10             // attempts time out until so many successes after a timeout
	Credit           = Token / 5      // back per success without a retry
	SlowShare        = 0.7            // a success that took more than this share of AttemptTimeout is slow
	slowCost         = 2 * Token

	// These are shares of a budget's size.
	rowTenths        = 6  // failed retries in a row that end retries, at least rowLeast
	timeoutRowTenths = 4  // the same after a timeout
	routeRowTenths   = 10 // failures of a route in a row after which its retries wait for successes; after 6, chance begins such rows
	timeoutReserve   = 5  // a retry after a timeout leaves one token in so many

	rowLeast = 2
	rowMost  = 200 // of a route, whose row is a byte

	fewest = 2   // successes that the first of these retries waits for; each further one waits for four times as many
	steps  = 3   // so often: up to 128 successes. A dead fifth of a host then gets less than 1.2 sends per request, whatever else fails
	enough = 255 // successes without a retry after which nothing fails in a route
)

// Refusal says why a budget allows no retry.
type Refusal uint8

const (
	_            Refusal = iota
	Exhausted            // too few tokens are left
	Failing              // too many retries in a row have failed
	RouteFailing         // retries of the route wait for successes there
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
// Once no token is missing, nothing else is known either but the rows of the routes. If
// successes have paid back what a retry took before the retry fails, the failure therefore
// costs nothing and begins no row of the host, also if other tokens are missing by then.
type Debt struct {
	Missing int64  // micro-tokens
	Row     uint32 // retries that failed in a row
	Recent  uint8  // successes until the last timeout is forgotten
	Routes  [Routes]Route
}

// owe changes the number of missing tokens.
func (d *Debt) owe(missing int64) {
	if d.Missing = missing; missing <= 0 {
		*d = Debt{Routes: d.Routes}
	}
}

// Clear reports whether there is nothing to know.
func (d *Debt) Clear() bool { return d.Missing == 0 && *d == Debt{} }

// Failure is that of an attempt.
type Failure struct {
	Route   uint32 // of its request, see [RouteOf]
	Retries uint8  // of the same request that have failed before
	Timeout bool
	Late    bool // it was a timeout some time ago: while attempts time out, a retry leaves as much as after one
	Polls   bool // a host that is well has answered: a retry only asks again
	Old     bool // of a retry: it was allowed before the budget was last full, and begins no row of the host
}

// Pay takes the tokens for a retry after f and returns their number, or says why there
// must be no retry.
func (d *Debt) Pay(r Rule, f Failure) (paid int32, refusal Refusal) {
	if r.Size == 0 {
		return 0, 0
	}
	stopped, left, recent := r.Stopped(d.Row), int64(0), d.Recent
	if f.Timeout {
		stopped, left, recent = d.Row >= r.row(timeoutRowTenths), r.Size/timeoutReserve, recentSuccesses
	} else if f.Late && d.Recent > 0 {
		left = r.Size / timeoutReserve
	}
	switch {
	case recent > 0:
		paid = timeoutRetryCost
	case f.Retries == 0 || f.Retries >= priced && !f.Polls:
		paid = RetryCost
	}
	route := d.route(f.Route, false)
	switch {
	case stopped:
		return 0, Failing
	case d.Missing+int64(paid)+left > r.Size:
		return 0, Exhausted
	case route.WaitsFor(r) > 0:
		return 0, RouteFailing
	case route != nil:
		route.Good = 0
	}
	d.Recent = recent
	d.owe(d.Missing + int64(paid))
	return paid, 0
}

// Spent reports whether d allows no retry.
func (d *Debt) Spent(r Rule) bool {
	return r.Size > 0 && (d.Missing+RetryCost > r.Size || r.Stopped(d.Row))
}

// Stops reports whether retries of the route wait for successes there.
func (d *Debt) Stops(r Rule, route uint32) bool { return d.route(route, false).WaitsFor(r) > 0 }

// Refund returns the tokens that a retry took.
func (d *Debt) Refund(paid int32) { d.owe(d.Missing - int64(paid)) }

// Fit reduces the debt to a budget of the given size: a smaller budget can't
// miss more than all its tokens, and an unlimited one knows nothing.
func (d *Debt) Fit(size int64) {
	if d.owe(min(d.Missing, size)); size == 0 {
		*d = Debt{}
	}
}

// Fail records f: that of a retry which the budget allowed and which took paid, if retry is true.
// Unless attempts time out, the failed retries of a request count once: for the host when
// the first one fails, and for the route at the third, or by GiveUp. While no token is
// missing, there is nothing to record of the host.
func (d *Debt) Fail(r Rule, f Failure, retry bool, paid int32) {
	if r.Size == 0 {
		return
	}
	if retry && f.Retries == 0 && paid == 0 {
		// It was sent without tokens, and pays now.
		d.Missing = max(d.Missing, min(r.Size, d.Missing+RetryCost))
	}
	if d.Missing > 0 {
		if f.Timeout {
			d.Recent = recentSuccesses
		}
		if retry && !f.Old && (f.Retries == 0 || d.Recent > 0) {
			d.Row++
		}
	}
	if !retry || f.Polls {
		return
	}
	route := d.route(f.Route, false)
	if route != nil {
		route.Good = 0
	}
	if f.Timeout || d.Recent > 0 || f.Retries+1 == priced || route.WaitsFor(r) > 0 {
		d.failed(f.Route)
	}
}

// GiveUp records that no retry follows f, which is recorded already. If the request made too
// few retries to count for the route, it counts now.
func (d *Debt) GiveUp(r Rule, f Failure) {
	if r.Size > 0 && !f.Polls && f.Retries > 0 && f.Retries < priced && d.Recent == 0 && d.route(f.Route, false).WaitsFor(r) == 0 {
		d.failed(f.Route)
	}
}

// Succeed records a success: that of a first attempt if first is true, or else of a
// retry, if the budget allowed it. paid is what comes back: what that retry took, and earlier ones
// that only asked again.
func (d *Debt) Succeed(r Rule, paid int32, first, retry, slow bool, route uint32) {
	if r.Size == 0 || d.Clear() {
		return
	}
	slow = slow && d.Recent > 0
	d.Row, d.Recent = 0, max(d.Recent, 1)-1
	if !slow {
		d.route(route, false).succeed(first, retry)
	}
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
