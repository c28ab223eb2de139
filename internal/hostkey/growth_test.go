// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package hostkey

import (
	"net/url"
	"strings"
	"testing"

	"github.com/retrip/retrip/internal/testenv"
)

// A host or pattern of twice the length costs less than three times the time.
//
//retrip:promise P12
func TestParse_Growth(t *testing.T) {
	for _, part := range []string{"a", "A", ".", "a.", ":", "1:", "[", "]", "%", "%25", "/", `\`, "?", "@", "#", "*", "*.", " ", "0", "1", "é", "\xff"} {
		t.Run(part, func(t *testing.T) {
			input := func(n int) []string {
				long := strings.Repeat(part, n)
				return []string{
					long, "*." + long, "." + long, long + ".", long + ":80", long + ".:080", "a:" + long, "a:" + long + "80",
					"[" + long + "]", "[" + long + "]:80", "[::1%" + long + "]:80", "[::" + long + "]", "//" + long,
				}
			}
			testenv.Growth(t, 5_000, input, func(all []string) {
				for _, text := range all {
					_, _ = Parse(text)
					_, _, _ = ParsePattern(text)
					_ = Of(&url.URL{Scheme: "https", Host: text})
				}
			})
		})
	}
}
