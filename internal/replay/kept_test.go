// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKept_EqualsSlice(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var k kept
		k.expect(int64(random.IntN(2 * smallMax)))
		var want []byte
		for range random.IntN(12) {
			p := make([]byte, random.IntN([]int{3, 700, 5 << 10, 40 << 10}[random.IntN(4)]))
			for i := range p {
				p[i] = byte(random.Uint32())
			}
			k.add(p)
			want = append(want, p...)
		}
		require.Equal(t, len(want), k.len)
		for range 20 {
			if len(want) == 0 {
				break
			}
			pos, got := random.IntN(len(want)), make([]byte, random.IntN(70<<10))
			n := k.read(got, pos)
			require.Equal(t, min(len(got), len(want)-pos), n)
			require.True(t, bytes.Equal(want[pos:pos+n], got[:n]))
		}
		k.free()
		assert.Zero(t, k)
	}
}

// Small bodies take little memory: a hundred thousand uploads may wait at once.
func TestKept_SmallBodies(t *testing.T) {
	var k kept
	k.expect(100)
	k.add(make([]byte, 100))
	assert.Equal(t, 100, cap(k.small))
	k.add(make([]byte, smallMax-100))
	assert.Nil(t, k.chunks)
}

// A chunk that is freed while an attempt still reads it never appears in
// another body.
func TestReplay_ChunksStress(t *testing.T) {
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 60 {
				want := bytes.Repeat([]byte{byte(1 + g + 8*(i%8))}, 50_000)
				r := Open(put(t, io.MultiReader(bytes.NewReader(want))), 64<<10)
				late := r.Reader()
				var readers sync.WaitGroup
				readers.Go(func() {
					got, _ := io.ReadAll(late)
					assert.True(t, bytes.Equal(want[:len(got)], got))
				})
				last := r.Reader()
				got, err := io.ReadAll(last)
				assert.NoError(t, err)
				assert.True(t, bytes.Equal(want, got))
				r.Seal(Answered)
				assert.NoError(t, last.Close())
				readers.Wait()
			}
		})
	}
	wg.Wait()
}
