// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestText(t *testing.T) {
	for tokens, want := range map[float64]string{0: "0", 5: "5", 4.5: "4.5", 0.7000001: "0.7", 2.345678: "2.35", 99.999: "100", 123.4: "123", 10_000: "10000", 9999.5: "10000", 1e6: "1000000"} {
		assert.Equal(t, want, Text(tokens), tokens)
	}
}
