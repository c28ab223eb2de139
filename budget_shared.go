// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"sync"
	"sync/atomic"
	"time"
)

// sharedBudget is what the hosts of a policy with Budget.Shared owe together. It
// is paid by the same outcomes as the hosts' own, and forgotten as they are: after
// an hour without a failure. A nil one refuses nothing. It is safe for concurrent
// use.
type sharedBudget struct {
	size    int64        // in micro-tokens
	missing atomic.Int64 // changed under mu

	mu     sync.Mutex
	failed time.Duration // instant of the last failure
}

// owes reports whether a success has anything to pay back.
func (b *sharedBudget) owes() bool { return b != nil && b.missing.Load() > 0 }

// spend takes what a retry after a failure costs, and returns it, or reports
// that there is too little.
func (b *sharedBudget) spend(timeout bool, now time.Duration) (paid int32, ok bool) {
	if b == nil {
		return 0, true
	}
	paid = retryCost
	if timeout {
		paid = timeoutRetryCost
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	missing := b.missing.Load()
	if now-b.failed > hostIdle {
		missing = 0
	}
	b.failed = now
	ok = missing+int64(paid) <= b.size
	if ok {
		missing += int64(paid)
	}
	b.missing.Store(missing)
	return paid, ok
}

// earn puts micro-tokens back, as far as they are missing.
func (b *sharedBudget) earn(micro int64) {
	if !b.owes() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.missing.Store(max(0, b.missing.Load()-micro))
}

// tokens returns how many tokens there are, and how many there may be.
func (b *sharedBudget) tokens(now time.Duration) (left, size float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	missing := b.missing.Load()
	if now-b.failed > hostIdle {
		missing = 0
	}
	return float64(b.size-missing) / microToken, float64(b.size) / microToken
}

// resized returns b, or a new one for nil, with another size: it owes no more
// than that. One that requests under way hold stays the same.
func (b *sharedBudget) resized(size int64) *sharedBudget {
	if b == nil {
		return &sharedBudget{size: size}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.size = size
	b.missing.Store(min(size, b.missing.Load()))
	return b
}

// spend takes what a retry of c after a failure costs from the budget of h, and
// from that which h shares with others, or reports that one has too little.
func (h *Host) spend(r *Rules, c *Call, timeout bool, now time.Duration) bool {
	paid, ok := h.debt.spend(r, timeout)
	if !ok {
		return false
	}
	shared, ok := r.pool.spend(timeout, now)
	if !ok {
		h.debt.giveBack(paid)
		return false
	}
	c.paid, c.paidShared = paid, shared
	return true
}
