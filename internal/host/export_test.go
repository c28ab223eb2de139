// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"github.com/retrip/retrip/internal/gate"
	"github.com/retrip/retrip/internal/hostkey"
)

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

// Keyed returns the number of gates of keys.
func (t *Table) Keyed() int64 { return t.keyed.Load() }

// StripeOf returns the number of the stripe of key.
func StripeOf(key hostkey.Key) uint64 { return stripeOf(key) }

// EndPause ends the pause of h at once.
func (h *Record) EndPause() { h.paused.Store(0) }
