// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"time"
)

// fleetMemory is the store of a Fleet without a FleetStore. The Fleet's lock
// guards it.
type fleetMemory struct{ accounts map[string]fleetAccount }

// fleetAccount is an account that is not full.
type fleetAccount struct {
	level float64
	used  time.Time
}

const (
	fleetAccounts    = 4096 // maximum number of accounts kept; all others count as full
	fleetAccountLife = time.Minute
)

func (m *fleetMemory) Add(_ context.Context, host string, tokens, size float64) (float64, error) {
	now := time.Now()
	level := size
	if a, ok := m.accounts[host]; ok && now.Sub(a.used) <= fleetAccountLife {
		level = a.level
	}
	level = min(size, max(0, level+tokens))
	switch _, known := m.accounts[host]; {
	case level == size:
		delete(m.accounts, host)
	case known || len(m.accounts) < fleetAccounts || m.sweep(now):
		m.accounts[host] = fleetAccount{level, now}
	}
	return level, nil
}

// sweep makes room, and reports whether it could.
func (m *fleetMemory) sweep(now time.Time) bool {
	for host, a := range m.accounts {
		if now.Sub(a.used) > fleetAccountLife {
			delete(m.accounts, host)
		}
	}
	return len(m.accounts) < fleetAccounts
}
