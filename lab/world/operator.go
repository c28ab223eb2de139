// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"encoding/json"
	"testing"

	"github.com/retrip/retrip/internal/play"
)

// operate does what an operator does.
func (w *world) operate(t *testing.T, o Operation) {
	c := w.clients[o.Transport]
	w.log("operation t%d: %v", c.number, o.Kind)
	switch o.Kind {
	case Looks:
		for _, s := range c.retrip.HostStates() {
			w.plausible(c, s)
			if text, err := json.Marshal(s); err != nil {
				w.breaks("P15", "a state as JSON: %s, %v", text, err)
			}
			if p, err := c.retrip.PolicyFor(s.Host); err != nil && s.Host != "others" {
				w.breaks("P15", "the policy of %s: %v, %v", s.Host, p, err)
			}
		}
		if _, _, err := c.retrip.Policies(); err != nil {
			w.breaks("P15", "the policies of t%d: %v", c.number, err)
		}
		_, _ = c.retrip.Validate(), c.retrip.Advice() // some policies are unwise
	case Gathers:
		play.Gather(t, c.retrip.Metrics)
	case SwapsPolicies:
		c.mu.Lock()
		defer c.mu.Unlock()
		n := len(c.swaps)
		if n > len(c.plan.Next) {
			return
		}
		next := c.plan.Next[n-1]
		policy, hosts := w.policyOf(next.Default), w.hostsOf(next.Hosts)
		if err := c.retrip.SetPolicies(policy, hosts); err != nil {
			w.breaks("world", "an invalid policy: %v", err)
			return
		}
		c.swaps = append(c.swaps, next)
	case ClosesIdle:
		c.http.CloseIdleConnections()
	case ClosesFleet:
		_ = w.fleet.Close()
	case Meets:
		c.meet(o.Names, hashOf("strangers", o.At))
	}
}
