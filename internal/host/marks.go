// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"sync/atomic"

	"github.com/retrip/retrip/internal/hostkey"
)

// marks has a mark for each host of a stripe (a Bloom filter). The marks of
// other hosts may cover that of a host, so a mark doesn't prove that a host is
// there, but the lack of a mark proves that it is not. Any goroutine may look
// for a mark. To change marks, it must hold the stripe's lock.
type marks [32]atomic.Uint64

// mark returns the mark of a host with the given hash: three bits of one word
// of marks. In a full table, others cover one mark in 580.
func mark(hash uint64) (word int, bits uint64) {
	hash /= stripes // the rest chose the stripe
	return int(hash >> 18 % uint64(len(marks{}))), 1<<(hash%64) | 1<<(hash>>6%64) | 1<<(hash>>12%64)
}

func (m *marks) has(hash uint64) bool {
	word, bits := mark(hash)
	return m[word].Load()&bits == bits
}

func (m *marks) add(hash uint64) {
	word, bits := mark(hash)
	m[word].Or(bits)
}

// unmark drops the mark of a host, except the bits of hosts that stay.
func unmark[T interface{ hashOf() uint64 }](m *marks, hash uint64, stay map[hostkey.Key]T) {
	word, _ := mark(hash)
	var bits uint64
	for _, e := range stay {
		if w, mark := mark(e.hashOf()); w == word {
			bits |= mark
		}
	}
	m[word].Store(bits)
}
