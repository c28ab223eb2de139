// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"math"
	"strconv"
)

// Text returns a number of tokens for people: in full, and with two decimals at most, or
// none from 100 tokens on.
func Text(tokens float64) string {
	decimals := 100.0
	if tokens >= 100 {
		decimals = 1
	}
	return strconv.FormatFloat(math.Round(tokens*decimals)/decimals, 'f', -1, 64)
}
