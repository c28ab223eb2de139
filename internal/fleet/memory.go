// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"time"
)

// memory is the store of a Fleet without another. The Fleet's lock
// guards it.
type memory struct {
	accounts map[string]memoryAccount
	swept    time.Time
}

// memoryAccount is an account that is not full. It holds the number of missing
// tokens, because processes with different sizes may share it.
type memoryAccount struct {
	lacks float64
	used  time.Time
}

const (
	memoryMost = 4096 // maximum number of accounts kept; all others count as full
	memoryLife = time.Minute
)

func (m *memory) Add(_ context.Context, host string, tokens, size float64) (float64, error) {
	now := time.Now()
	a, known := m.accounts[host]
	lacks := a.lacks
	if known && now.Sub(a.used) > memoryLife {
		lacks = 0
	}
	if tokens < 0 {
		lacks = max(lacks, min(size, lacks-tokens))
	} else {
		lacks = max(0, lacks-tokens)
	}
	switch {
	case lacks == 0:
		delete(m.accounts, host)
	case known || len(m.accounts) < memoryMost || m.sweep(now):
		m.accounts[host] = memoryAccount{lacks, now}
	}
	return max(0, size-lacks), nil
}

// sweep makes room, and reports whether it could. It looks at all accounts only
// once a second.
func (m *memory) sweep(now time.Time) bool {
	if now.Sub(m.swept) < time.Second {
		return false
	}
	m.swept = now
	for host, a := range m.accounts {
		if now.Sub(a.used) > memoryLife {
			delete(m.accounts, host)
		}
	}
	return len(m.accounts) < memoryMost
}
