// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"time"

	"github.com/retrip/retrip/internal/account"
)

// What a zero field of Transport.Policy inherits.
const (
	defaultMaxAttempts   = 4
	defaultBackoffBase   = 100 * time.Millisecond
	defaultBackoffCap    = 10 * time.Second
	defaultThrottleBase  = time.Second
	defaultMaxWait       = 30 * time.Second
	defaultMaxReplayBody = 64 << 10
	defaultMaxSends      = 10
	defaultBudgetSize    = 5
	defaultBudgetCredit  = 0.2
)

// over returns p with its unset fields taken from base.
func (p Policy) over(base Policy) Policy {
	inherit(&p.MaxAttempts, base.MaxAttempts)
	inherit(&p.Backoff.Base, base.Backoff.Base)
	inherit(&p.Backoff.Cap, base.Backoff.Cap)
	inherit(&p.Backoff.ThrottleBase, base.Backoff.ThrottleBase)
	inherit(&p.Backoff.Jitter, base.Backoff.Jitter)
	inherit(&p.Deadline, base.Deadline)
	inherit(&p.AttemptTimeout, base.AttemptTimeout)
	inherit(&p.MaxWait, base.MaxWait)
	inherit(&p.WholeBody, base.WholeBody)
	inherit(&p.BodyIdle, base.BodyIdle)
	inherit(&p.Resume, base.Resume)
	inherit(&p.MaxReplayBody, base.MaxReplayBody)
	inherit(&p.MaxSends, base.MaxSends)
	inheritSlice(&p.RetryOn, base.RetryOn)
	inheritSlice(&p.FailOn, base.FailOn)
	inheritSlice(&p.Unprocessed, base.Unprocessed)
	inheritSlice(&p.IdempotentMethods, base.IdempotentMethods)
	inherit(&p.IdempotencyKey, base.IdempotencyKey)
	inheritSlice(&p.Dialects, base.Dialects)
	inherit(&p.RetryHeader, base.RetryHeader)
	inherit(&p.Budget.Size, base.Budget.Size)
	inherit(&p.Budget.Credit, base.Budget.Credit)
	inherit(&p.Budget.Shared, base.Budget.Shared)
	inherit(&p.FleetBudget, base.FleetBudget)
	inherit(&p.Breaker.Ratio, base.Breaker.Ratio)
	inherit(&p.Breaker.Window, base.Breaker.Window)
	inherit(&p.Breaker.MinVolume, base.Breaker.MinVolume)
	inherit(&p.Breaker.OpenFor, base.Breaker.OpenFor)
	inherit(&p.Breaker.Probes, base.Breaker.Probes)
	inherit(&p.Gate, base.Gate)
	if p.GateKey == nil {
		p.GateKey = base.GateKey
	}
	if p.Classify == nil {
		p.Classify = base.Classify
	}
	if p.Idempotent == nil {
		p.Idempotent = base.Idempotent
	}
	return p
}

func inherit[T comparable](field *T, base T) {
	var zero T
	if *field == zero {
		*field = base
	}
}

func inheritSlice[T any](field *[]T, base []T) {
	if *field == nil {
		*field = base
	}
}

// defaults is what Transport.Policy inherits from. MaxSends stays 0, because
// its default depends on the attempt.
var defaults = Policy{
	MaxAttempts:   defaultMaxAttempts,
	Backoff:       Backoff{Base: defaultBackoffBase, Cap: defaultBackoffCap, ThrottleBase: defaultThrottleBase, Jitter: FullJitter},
	MaxWait:       defaultMaxWait,
	MaxReplayBody: defaultMaxReplayBody,
	Budget:        Budget{Size: defaultBudgetSize, Credit: defaultBudgetCredit},
	FleetBudget:   account.DefaultSize,
}
