// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"sync"
	"sync/atomic"
	"time"
)

// sharedBudget is the budget that the hosts of a policy with Budget.Shared have
// in common. The same outcomes change it as change the hosts' own budgets, and
// it refills after an hour without a failure, as they do. A nil sharedBudget
// refuses nothing. It is safe for concurrent use.
type sharedBudget struct {
	size    int64        // in micro-tokens
	missing atomic.Int64 // changed under mu

	mu     sync.Mutex
	failed time.Duration // instant of the last failure
}

// owes reports whether any tokens are missing.
func (b *sharedBudget) owes() bool { return b != nil && b.missing.Load() > 0 }

// spend takes the tokens for a retry after a failure and returns their number,
// or reports that too few are left.
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

// earn puts micro-tokens back, up to the size of the budget.
func (b *sharedBudget) earn(micro int64) {
	if !b.owes() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.missing.Store(max(0, b.missing.Load()-micro))
}

// tokens returns the number of tokens left and the size of the budget, in
// tokens.
func (b *sharedBudget) tokens(now time.Duration) (left, size float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	missing := b.missing.Load()
	if now-b.failed > hostIdle {
		missing = 0
	}
	return float64(b.size-missing) / microToken, float64(b.size) / microToken
}

// resized gives b another size, making a new budget if b is nil. It changes b
// in place, because requests in flight hold it.
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

// spend takes the tokens for a retry of c after a failure from the budget of h
// and from the shared budget, or reports that one of them has too few.
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
