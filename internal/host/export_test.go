// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import "github.com/retrip/retrip/internal/gate"

// The tests of the table fail hosts by decisions, as a Transport does. Package decide
// imports this one, so they are outside of it, and need this to look inside.

const (
	Stripes    = stripes
	PerStripe  = perStripe
	Idle       = idle
	MostKeys   = gate.MostKeys
	MostTopics = mostTopics
)

// Entries returns the number of entries, those that have healed or lapsed included.
func (t *Table) Entries() int64 { return t.entries.Load() }

func Mark(hash uint64) (word int, bits uint64) { return mark(hash) }

// Keyed returns the number of gates of keys.
func (t *Table) Keyed() int64 { return t.keyed.Load() }

// Covers reports whether the marks of hosts in trouble cover that of the host with
// the given hash.
func (t *Table) Covers(hash uint64) bool { return t.stripe(hash).marks.has(hash) }

// Marks returns the marks of the stripe of the host with the given hash.
func (t *Table) Marks(hash uint64) (words []uint64) {
	m := &t.stripe(hash).marks
	for i := range m {
		words = append(words, m[i].Load())
	}
	return words
}

// EndPause ends the pause of h at once.
func (h *Record) EndPause() { h.paused.Store(0) }
