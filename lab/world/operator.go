// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/retrip/retrip"
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
	case SwapsPolicies, Reloads:
		c.mu.Lock()
		defer c.mu.Unlock()
		n := len(c.swaps)
		if n > len(c.plan.Next) {
			return
		}
		next := c.plan.Next[n-1]
		policy, hosts := w.policyOf(next.Default), w.hostsOf(next.Hosts)
		if o.Kind == Reloads {
			w.reloads(next)
		}
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
	case Mistakes:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.mistakes(c.swaps[len(c.swaps)-1], w.chance(hashOf("mistakes", o.At)))
	}
}

// reloads checks that policies survive JSON, but for their functions.
func (w *world) reloads(p Policies) {
	text := w.file(p.Default.Policy, p.policies())
	policy, hosts, err := retrip.LoadPolicies(bytes.NewReader(text))
	if err != nil {
		w.breaks("policies", "policies don't survive JSON: %v: %s", err, text)
	} else if again := w.file(policy, hosts); !bytes.Equal(text, again) {
		w.breaks("policies", "policies change in JSON: %s, %s", text, again)
	}
}

// file returns policies as a file has them.
func (w *world) file(policy retrip.Policy, hosts map[string]retrip.Policy) []byte {
	text, err := json.Marshal(policy)
	must(err)
	var all map[string]json.RawMessage
	must(json.Unmarshal(text, &all))
	all["hosts"], err = json.Marshal(hosts)
	must(err)
	text, err = json.Marshal(all)
	must(err)
	return text
}

// policies returns the policies of hosts, without the functions of the world.
func (p Policies) policies() map[string]retrip.Policy {
	hosts := map[string]retrip.Policy{}
	for pattern, p := range p.Hosts {
		hosts[pattern] = p.Policy
	}
	return hosts
}
