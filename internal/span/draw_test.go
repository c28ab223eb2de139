// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package span

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// The first outputs of SplitMix64 seeded with 0.
func TestRemix(t *testing.T) {
	const step = 0x9e3779b97f4a7c15
	assert.EqualValues(t, uint64(0xe220a8397b1dcdaf), Remix(0))
	assert.EqualValues(t, uint64(0x6e789e6aa1b965f4), Remix(step))
}
