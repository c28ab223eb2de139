// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"

	"github.com/retrip/retrip/internal/fleet"
)

// Fleet limits what all processes together spend on retries, with one account
// of Policy.FleetBudget tokens for each host. An account may forbid a retry
// that the budget of this process allows, but never the reverse. A program
// should make one Fleet with [NewFleet] and set it as Transport.Fleet in all
// its Transports. A Fleet is safe for concurrent use.
//
// A retry waits for the level of the account for at most 50 ms, as part of its wait;
// first attempts never ask. If the store fails, the budget decides alone for 5 to
// 15 s. docs/fleet.md has the rule and its figures.
type Fleet struct{ accounts fleet.Accounts }

// NewFleet returns a Fleet with its accounts in a store that all processes share, such
// as a Store of github.com/retrip/retrip/contrib/fleetredis. If add is nil, they are in
// the memory of this program, and need no Close.
//
// add adds tokens to the account of a host, such as "example.com:443", and returns the
// new level, which stays between 0 and size. Tokens may be negative, or 0 to read the
// level. An account that nobody has used or read for a minute holds size. Processes may
// pass different sizes for one account, so a store should keep the number of missing
// tokens, not the level. Up to 64 goroutines call add, which should return when ctx
// ends. After an error, a panic or an impossible level, the budget decides alone.
func NewFleet(add func(ctx context.Context, host string, tokens, size float64) (level float64, err error)) *Fleet {
	f := &Fleet{}
	f.accounts.Open(add)
	return f
}

// Close closes f but not the store: from then on, the budget of each process decides
// alone. Close cancels the operations in progress and returns an error if one takes
// longer than a second. It may run during requests, and again.
func (f *Fleet) Close() error { return f.accounts.Close() }
