// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

//retrip:promise P9
func FuzzDialects(f *testing.F) {
	f.Add(`"default";r=0;t=30`, "12ms", "1767323050")
	f.Add(`a;r=0, "b";t=5;r=0`, "6m0s", "1.5")
	f.Add("Fri, 02 Jan 2026 03:04:05 GMT", "2026-01-02T03:04:35Z", "30")
	f.Add("limit=1, remaining=0, reset=30", "2 minutes, Fri", "1767323050000")
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f.Fuzz(func(t *testing.T, field, duration, number string) {
		h := http.Header{
			"Ratelimit": {field}, "Ratelimit-Policy": {field}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {number},
			"X-Ratelimit-Remaining-Tokens": {"0"}, "X-Ratelimit-Reset-Tokens": {duration}, "X-Ratelimit-Reset-After": {number},
			"Anthropic-Ratelimit-Tokens-Remaining": {"0"}, "Anthropic-Ratelimit-Tokens-Reset": {duration},
			"Retry-After": {number}, "Retry-After-Ms": {number}, "X-Ms-Retry-After-Ms": {number}, "X-Amz-Retry-After": {number},
			"Date": {field},
		}
		for name, d := range ByName {
			for _, f := range slices.Concat(d.Instead, d.Besides) {
				wait, ok := f.read(http.StatusTooManyRequests, h, now)
				require.GreaterOrEqual(t, wait, time.Duration(0), name)
				require.True(t, ok || wait == 0, name)
			}
		}
		wait, ok := parseDecimal(number, time.Second)
		if exact, err := strconv.ParseFloat(number, 64); ok {
			require.True(t, err == nil || math.IsInf(exact, 0))
			require.InEpsilon(t, 1+min(exact, math.MaxInt64/1e9), 1+wait.Seconds(), 1e-9)
		}
		wait, ok = RetryAfter(h, now)
		require.GreaterOrEqual(t, wait, time.Duration(0))
		require.True(t, ok || wait == 0)
	})
}
