// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/syntax"
)

//retrip:promise P9
func FuzzDialects(f *testing.F) {
	f.Add(`"default";r=0;t=30`, "12ms", "1767323050")
	f.Add(`a;r=0, "b";t=5;r=0`, "6m0s", "1.5")
	f.Add("Fri, 02 Jan 2026 03:04:05 GMT", "2026-01-02T03:04:35Z", "30")
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
			for _, read := range []func(http.Header, time.Time) (time.Duration, bool){d.Instead, d.Besides} {
				if read == nil {
					continue
				}
				wait, ok := read(h, now)
				require.GreaterOrEqual(t, wait, time.Duration(0), name)
				require.True(t, ok || wait == 0, name)
			}
		}
		wait, ok := parseDecimal(number, time.Second)
		if seconds, whole := parseSeconds(number); whole && syntax.IsDigits(number) {
			require.True(t, ok)
			require.GreaterOrEqual(t, wait, min(seconds, math.MaxInt64-2*time.Second), "a whole number means the same")
		}
		wait, ok = RetryAfter(h, now)
		require.GreaterOrEqual(t, wait, time.Duration(0))
		require.True(t, ok || wait == 0)
	})
}
