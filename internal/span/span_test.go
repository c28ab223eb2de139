// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package span

import (
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Results that fit are exact. Others end at the longest or shortest duration.
//
//retrip:promise P9
func TestNeverOverflows(t *testing.T) {
	values := []int64{0, 1, -1, 2, -2, math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 / 2, math.MaxInt64/2 + 1, math.MinInt64, math.MinInt64 + 1, math.MinInt64 / 2}
	clip := func(n *big.Int) time.Duration {
		switch {
		case n.Cmp(big.NewInt(math.MaxInt64)) > 0:
			return math.MaxInt64
		case n.Cmp(big.NewInt(math.MinInt64)) < 0:
			return math.MinInt64
		}
		return time.Duration(n.Int64())
	}
	for _, a := range values {
		for _, b := range values {
			x, y := big.NewInt(a), big.NewInt(b)
			assert.Equal(t, clip(new(big.Int).Sub(x, y)), Sub(time.Duration(a), time.Duration(b)), "%d - %d", a, b)
			if b >= 0 {
				assert.Equal(t, clip(new(big.Int).Add(x, y)), Add(time.Duration(a), time.Duration(b)), "%d + %d", a, b)
			}
			if a >= 0 && b >= 0 && int64(int(b)) == b {
				assert.Equal(t, clip(new(big.Int).Mul(x, y)), Mul(time.Duration(a), int(b)), "%d * %d", a, b)
			}
		}
	}
}
