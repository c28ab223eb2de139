// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import "github.com/retrip/retrip/internal/budget"

// Budget limits the retries to one host, so that retries don't keep an outage
// going (P14 in docs/promises.md). A Budget starts full. A retry takes half a
// token, or three quarters if the attempt before it timed out. A retry that
// succeeds gives its tokens back. A success without a retry adds Credit, up to
// Size. If too few tokens are left, the Transport doesn't retry, and the caller
// gets the response or error in hand at once. First attempts take no tokens and
// are never refused, so the budget of a host that has recovered always refills.
// Tokens don't come back with time, except that the Transport may forget a host
// that has had no failure for an hour.
//
// After four failed retries in a row, where a timeout counts as two, there are
// no retries until an attempt succeeds. An attempt succeeds if it gets a
// response that the policy doesn't retry.
//
// While attempts time out, a success that took more than 0.7 of
// Policy.AttemptTimeout is slow. "While attempts time out" means that the last
// failure was a timeout. A slow success adds no Credit. A slow retry gets no
// tokens back, and a slow first attempt takes two tokens from a budget that
// isn't full, because a host that is almost too slow has no capacity for
// retries. Without an AttemptTimeout, no success is slow.
//
// Only a retry that took tokens counts as a failed retry. A retry that the
// caller cancels doesn't count, but gets its tokens back only if it had not
// begun. A retry whose error says nothing about the host doesn't count either,
// and gets its tokens back. Each [Transport] keeps one budget per host, for all
// paths and methods. A host without trouble needs none.
type Budget struct {
	// Size is the number of tokens, 1 to 1 000 000. Off (see [Unlimited])
	// refuses no retry, and none of the rules above applies. If 0, it is
	// inherited; the default is 5.
	Size float64 `json:"size"`

	// Credit is the number of tokens that a success without a retry adds, 0.001
	// to 1 000 000. Off adds none. If 0, it is inherited; the default is 0.2.
	Credit float64 `json:"credit"`

	// Shared is the number of tokens, 1 to 1 000 000, in a second budget that
	// all hosts of the policy share. A retry takes its tokens from the host's
	// budget and from the shared one, and whatever adds tokens to the host's
	// budget adds them to the shared one too. Many names of one backend, such
	// as "*.tenants.example.com", then don't each get their own retries when
	// the backend is down.
	//
	// A policy in Transport.Hosts that sets Shared has a budget for its
	// pattern; other policies share that of Transport.Policy. If Size is Off,
	// the shared budget is the only one. The shared budget belongs to a
	// Transport: Rules made by [Policy.Rules] have none. Off means no shared
	// budget. If 0, Shared is inherited; the default is none.
	Shared float64 `json:"shared"`
}

const (
	maxBudget = 1_000_000
	minCredit = 0.001
)

// slow reports whether the success o took long enough to count as slow.
func (r *Rules) slow(o Outcome) bool {
	return r.timed && float64(o.Took) > budget.SlowShare*float64(r.policy.AttemptTimeout)
}
