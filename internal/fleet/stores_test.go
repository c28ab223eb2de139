// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import "context"

// The stores are exported for the tests of package fleet_test too.

// StoreFunc is what a store does.
type StoreFunc = Add

// FixedStore returns a store whose accounts always have the given level.
func FixedStore(level float64) StoreFunc {
	return func(context.Context, string, float64, float64) (float64, error) { return level, nil }
}

// HangingStore is the function of a store that never answers.
func HangingStore(ctx context.Context, _ string, _, _ float64) (float64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}
