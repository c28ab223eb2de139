// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"sync"
	"sync/atomic"
	"time"
)

// idle is the time without a failure after which a budget is full again.
const idle = time.Hour

// Shared is the budget that the hosts of a policy with Budget.Shared have
// in common. The same outcomes change it as change the hosts' own budgets, and
// it refills after an hour without a failure, as they do. A nil Shared
// refuses nothing. It is safe for concurrent use.
type Shared struct {
	Size    int64        // in micro-tokens
	missing atomic.Int64 // changed under mu

	mu     sync.Mutex
	failed time.Duration // instant of the last failure
	recent uint8         // outcomes until the last timeout is forgotten
}

// Owes reports whether any tokens are missing.
func (b *Shared) Owes() bool { return b != nil && b.missing.Load() > 0 }

// Spend takes the tokens for a retry after a failure and returns their number,
// or reports that too few are left. again says that a retry of the same request has
// already failed.
func (b *Shared) Spend(again, timeout bool, now time.Duration) (paid int32, ok bool) {
	if b == nil {
		return 0, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	missing, left := b.missing.Load(), int64(0)
	if now-b.failed > idle {
		missing, b.recent = 0, 0
	}
	b.failed = now
	if b.recent = after(b.recent, timeout); timeout {
		left = b.Size / timeoutReserve
	}
	paid = price(b.recent, again)
	ok = missing+int64(paid)+left <= b.Size
	if ok {
		missing += int64(paid)
	}
	b.missing.Store(missing)
	return paid, ok
}

// Succeed records a success, which puts micro-tokens back, up to the size of the
// budget.
func (b *Shared) Succeed(micro int64) {
	if b.Owes() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.recent = after(b.recent, false)
		b.missing.Store(max(0, b.missing.Load()-micro))
	}
}

// GiveBack returns the tokens that a retry took.
func (b *Shared) GiveBack(paid int32) {
	if b.Owes() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.missing.Store(max(0, b.missing.Load()-int64(paid)))
	}
}

// Tokens returns the number of tokens left and the size of the budget, in
// tokens.
func (b *Shared) Tokens(now time.Duration) (left, size float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	missing := b.missing.Load()
	if now-b.failed > idle {
		missing = 0
	}
	return float64(b.Size-missing) / Token, float64(b.Size) / Token
}

// Resized gives b another size, making a new budget if b is nil. It changes b
// in place, because requests in flight hold it.
func (b *Shared) Resized(size int64) *Shared {
	if b == nil {
		return &Shared{Size: size}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Size = size
	b.missing.Store(min(size, b.missing.Load()))
	return b
}
