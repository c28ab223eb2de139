// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import "sync"

// kept is the part of a stream that is kept for replay. The first bytes go to a
// slice of their own, so that many small bodies take little memory; the rest
// goes to chunks from a pool. A chunk may be reused as soon as it is freed, so
// bytes are copied out under the lock of the Body, and no reader refers to a
// chunk.
type kept struct {
	len    int
	small  []byte
	chunks []*chunk
	few    [4]*chunk // backs chunks up to 64 KiB, the default of Policy.MaxReplayBody
}

// chunk is a piece of a stream.
type chunk [16 << 10]byte

const (
	chunkLen = len(chunk{})
	smallMax = 2 << 10
)

var chunks = sync.Pool{New: func() any { return new(chunk) }}

// expect makes room for a stream of n bytes, if n is positive and small.
func (k *kept) expect(n int64) {
	if 0 < n && n <= smallMax {
		k.small = make([]byte, 0, n)
	}
}

// add copies p to the end.
func (k *kept) add(p []byte) {
	if k.chunks == nil {
		if k.len+len(p) <= smallMax {
			k.small = append(k.small, p...)
			k.len += len(p)
			return
		}
		k.chunks = k.few[:0]
	}
	for len(p) > 0 {
		at := (k.len - len(k.small)) % chunkLen
		if at == 0 {
			k.chunks = append(k.chunks, chunks.Get().(*chunk))
		}
		n := copy(k.chunks[len(k.chunks)-1][at:], p)
		k.len += n
		p = p[n:]
	}
}

// read copies the bytes from pos on to p. pos must be less than k.len.
func (k *kept) read(p []byte, pos int) (n int) {
	if pos < len(k.small) {
		n = copy(p, k.small[pos:])
	}
	for n < len(p) && pos+n < k.len {
		at := pos + n - len(k.small)
		c := k.chunks[at/chunkLen]
		n += copy(p[n:], c[at%chunkLen:min(chunkLen, at%chunkLen+k.len-pos-n)])
	}
	return n
}

// free releases everything.
func (k *kept) free() {
	for _, c := range k.chunks {
		chunks.Put(c)
	}
	*k = kept{}
}
