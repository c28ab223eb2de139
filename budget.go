// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

// Budget limits the retries to one host, so that retries don't keep an outage
// going (P14 in docs/promises.md). A Budget starts full. A retry takes half a
// token, or three quarters if the attempt before it timed out, and gets its
// tokens back if it succeeds: if its response is one that the policy doesn't
// retry. A success without a retry adds a fifth of a token. If too few tokens
// are left, the Transport doesn't retry, and the caller gets the response or
// error in hand at once. The same applies after four failed retries in a row,
// where a timeout counts as two, until an attempt succeeds.
//
// While attempts time out, a success that took more than 0.7 of
// Policy.AttemptTimeout is slow: a slow retry gets no tokens back, and a slow
// first attempt adds nothing, but takes two tokens from a budget that isn't
// full.
//
// First attempts are never refused, so the budget of a host that has recovered
// refills. A caller that calls again at once in a loop of its own needs a
// [Gate]. Time alone refills a budget only after an hour without a failure.
// Each [Transport] keeps one budget per host, for all paths and methods. Fields
// that are 0 inherit, as in [Policy].
type Budget struct {
	// Size is the number of tokens, 1 to 1 000 000. With Off, the host has no
	// budget of its own. The default is 5.
	Size float64 `json:"size"`

	// Shared is the number of tokens, 1 to 1 000 000, in a second budget for
	// all hosts of the policy together, for example for the many names of one
	// backend. A retry needs tokens of both. A policy in Transport.Hosts that
	// sets Shared has a budget for its pattern; other policies share the budget
	// of Transport.Policy. The default is none.
	Shared float64 `json:"shared"`
}

const maxBudget = 1_000_000
