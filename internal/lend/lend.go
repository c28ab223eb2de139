// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package lend is what the root package lends to other packages of this repository
// without exporting it.
package lend

import (
	"context"
	"time"

	"github.com/retrip/retrip/internal/control"
	"github.com/retrip/retrip/internal/decide"
)

// Compile is set by the root package. It is [Rules] for a retrip.Policy.
var Compile func(policy any) (rules *decide.Rules, resolved any, err error)

// Rules returns the rules that a retrip.Policy amounts to in Transport.Policy, and the
// policy with every unset field filled in. The rules have no shared budget, which
// belongs to a Transport. The error names every field that is wrong and its value.
func Rules[Policy any](p Policy) (rules *decide.Rules, resolved Policy, err error) {
	rules, all, err := Compile(p)
	if err != nil {
		return nil, p, err
	}
	return rules, all.(Policy), nil
}

// Control is set by the root package. It returns the controls of a *retrip.Transport.
var Control func(transport any) Controls

// Controls are for people who intervene by hand. All methods are safe for concurrent
// use. Their errors say what is wrong, with field and value.
type Controls interface {
	// Orders returns the orders that hold, and the instant now.
	Orders() (orders []control.Order, now time.Duration)

	// Give forbids s for the time d, on behalf of who. It replaces an order about s.
	Give(ctx context.Context, s control.Subject, who string, d time.Duration) error

	// Undo ends the order about s, on behalf of who.
	Undo(ctx context.Context, s control.Subject, who string) error

	// Forget forgets what is known of the host of s, on behalf of who.
	Forget(ctx context.Context, s control.Subject, who string) error
}
