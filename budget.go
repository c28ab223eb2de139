// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

// Budget limits the retries to one host, so that retries don't keep an outage
// going (P14 in docs/promises.md). A Budget starts full. A success without a
// retry adds a fifth of a token. Of a request's failed retries, the first costs
// half a token, or each 0.7 tokens while attempts time out. If too few tokens are
// left, or too many retries have failed in a row (see Size), the Transport
// doesn't retry, and the caller gets the response or error in hand at once.
// docs/policy.md has the rule.
//
// First attempts are never refused, so the budget of a host that has recovered
// refills. Time alone refills it only after an hour without a failure. A caller
// that calls again at once in a loop needs a [Gate]. A [Transport] keeps one
// budget per host. Fields that are 0 inherit, as in [Policy].
type Budget struct {
	// Size is the number of tokens, 1 to 1 000 000. With Off, the host has no
	// budget of its own. After 0.6 times Size failed retries in a row, or 0.4
	// times Size if the attempt timed out, there is no retry until an attempt
	// succeeds. A larger Size outlasts longer outages, and prolongs an overload
	// of a fleet. The default is 5.
	Size float64 `json:"size"`
	// Shared is the number of tokens, 1 to 1 000 000, in a second budget for
	// all hosts of the policy together, for example for the many names of one
	// backend. A retry needs tokens of both. A policy in Transport.Hosts that
	// sets Shared has a budget for its pattern; other policies share the budget
	// of Transport.Policy. The default is none.
	Shared float64 `json:"shared"`
}

const maxBudget = 1_000_000
