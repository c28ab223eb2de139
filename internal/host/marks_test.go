// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/hostkey"
)

// A bit stays as long as a host has it that stays, whichever others come and go.
func TestMarks_Model(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	hashes := make([]uint64, 40)
	for i := range hashes {
		// Marks in two words, of bits 0 to 3.
		hashes[i] = random.Uint64() & (3 | 3<<6 | 3<<12 | 1<<18) * stripes
	}
	var m marks
	stay := map[hostkey.Key]*Entry{}
	for step := range 20_000 {
		i := random.IntN(len(hashes))
		key, hash := hostkey.Key{Host: strconv.Itoa(i)}, hashes[i]
		if stay[key] == nil {
			stay[key] = &Entry{hash: hash}
			m.add(hash)
		} else {
			delete(stay, key)
			unmark(&m, hash, stay)
		}
		var want marks
		for _, e := range stay {
			require.True(t, m.has(e.hash), "step %d", step)
			want.add(e.hash)
		}
		for i := range want {
			require.Equal(t, want[i].Load(), m[i].Load(), "step %d", step)
		}
	}
}

// In a full table, the marks of hosts in trouble cover that of one healthy host
// in about 580.
func TestMarks_RarelyCovered(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	marked := make([]marks, stripes)
	// hashIn returns the hash of a host of a stripe.
	hashIn := func(stripe int) uint64 { return random.Uint64()/stripes*stripes + uint64(stripe) }
	for i := range stripes * perStripe {
		marked[i%stripes].add(hashIn(i % stripes))
	}
	const healthy = 1 << 20
	covered := 0
	for i := range healthy {
		if marked[i%stripes].has(hashIn(i % stripes)) {
			covered++
		}
	}
	assert.InDelta(t, 1.0/580, float64(covered)/healthy, 0.0001)
}
