// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import "math"

// Budget is what retries to one host may spend, so that a fleet soon stops
// prolonging an outage by its retries (P14 in docs/promises.md). It starts full. A retry takes one token; the token
// comes back if that retry succeeds, and a success without retry pays Credit
// back, up to Size. Time returns nothing, except that a host without a failure
// for an hour may be forgotten, and the tokens it was missing with it. First
// attempts are never refused, so a host that has healed always refills it. When
// it is empty the caller gets the response or error in hand at once.
//
// In words: a retry that works costs nothing, a retry that fails costs one, a
// plain success pays back a fifth.
type Budget struct {
	// Size is how many tokens there are, 1 to 1 000 000. If 0, it is
	// inherited; the default is 5. Off (see [Unlimited]) refuses no retry.
	Size float64 `json:"size"`

	// Credit is how many tokens a success without retry pays back, 0.001 to
	// 1 000 000. If 0, it is inherited; the default is 0.2. Off pays none
	// back.
	Credit float64 `json:"credit"`
}

const (
	// Fixed-point arithmetic makes sums exact, in whatever order they are
	// made.
	microToken = 1_000_000

	maxBudget = 1_000_000
	minCredit = 0.001
)

func microTokens(tokens float64) int64 { return int64(math.Round(tokens * microToken)) }

// spend takes a token, or reports that there is none.
func (h *Host) spend(r *Rules) bool {
	if r.size == 0 {
		return true
	}
	for {
		missing := h.missing.Load()
		if missing+microToken > r.size {
			return false
		}
		if h.missing.CompareAndSwap(missing, missing+microToken) {
			return true
		}
	}
}

// earn puts micro-tokens back, as far as they are missing.
func (h *Host) earn(micro int64) {
	for {
		missing := h.missing.Load()
		if missing == 0 || h.missing.CompareAndSwap(missing, max(0, missing-micro)) {
			return
		}
	}
}
