// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package lend is what the root package lends to other packages of this repository
// without exporting it.
package lend

import "github.com/retrip/retrip/internal/decide"

// Compile is set by the root package. It is [Rules] for a retrip.Policy.
var Compile func(policy any) (rules *decide.Rules, resolved any, err error)

// Rules returns the rules that a retrip.Policy amounts to in Transport.Policy, and the
// policy with every unset field filled in. The error
// names every field that is wrong and its value.
func Rules[Policy any](p Policy) (rules *decide.Rules, resolved Policy, err error) {
	rules, all, err := Compile(p)
	if err != nil {
		return nil, p, err
	}
	return rules, all.(Policy), nil
}
