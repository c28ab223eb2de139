// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/retrip/retrip"
)

// The rule of docs/fleet.md.
const (
	storeMost = 50 * time.Millisecond // a retry waits for the store
	levelAge  = 5 * time.Second       // a level counts as known
	longWait  = time.Second           // a retry that waits longer takes two tokens
)

// told is what the store has truthfully said of an account.
type told struct {
	at      time.Duration
	missing float64
}

// store is the store of the fleet: an account in memory that answers by the plan.
func (w *world) store() func(ctx context.Context, host string, tokens, size float64) (float64, error) {
	var mu sync.Mutex
	missing := map[string]float64{}
	return func(ctx context.Context, host string, tokens, size float64) (float64, error) {
		n := int(w.asked.Add(1)) - 1
		mu.Lock()
		w.charged[host] += tokens
		mu.Unlock()
		a := w.plan.Store[n%len(w.plan.Store)]
		x := w.chance(hashOf("store", n))
		switch err := pause(ctx, a.After+x.tiny()); {
		case err != nil:
			return 0, err
		case a.Hangs:
			<-ctx.Done()
			return 0, ctx.Err()
		case a.Panic:
			panic("the store panics")
		case a.Fails:
			return 0, errors.New("the store fails")
		case a.Lies != Truth:
			return []float64{Negative: -size, TooMuch: 3 * size, NotANumber: math.NaN(), Infinite: math.Inf(1)}[a.Lies], nil
		}
		mu.Lock()
		defer mu.Unlock()
		missing[host] = min(size, max(0, missing[host]-tokens))
		w.levels[host] = append(w.levels[host], told{w.now(), missing[host]})
		return size - missing[host], nil
	}
}

// charges checks that no account of the fleet was charged for more than the retries.
func (w *world) charges() {
	retries := map[string]float64{}
	for _, r := range w.order {
		if r.client.plan.Fleet && r.client.plan.Bare {
			return
		}
		for i, e := range r.events {
			if r.client.plan.Fleet && (e.hook == "Hedge" || e.hook == "Attempt" && (e.Attempt > 1 || i > 0)) {
				retries[r.host]++
				// A wait is announced once the store has answered, and many end such waits together.
				if i > 0 && e.at-r.events[i-1].at > longWait-storeMost-slack {
					retries[r.host]++
				}
			}
		}
	}
	for host, tokens := range w.charged {
		name, _, _ := strings.Cut(host, ":")
		ours := slices.ContainsFunc(w.sites, func(s *site) bool { return s.host() == name })
		if ours && tokens < -retries[name]-1e-6 {
			w.breaks("P22", "the account of %s was charged %.1f tokens, retries took %v", host, -tokens, retries[name])
		}
	}
}

// fleet checks that a retry waits for the store no longer than it may, and that a refusal
// of the account follows from what the store has said.
func (c *checker) fleet() {
	r := c.r
	if !r.client.plan.Fleet || c.hedged || r.call.Drip > 0 {
		return
	}
	for i, e := range c.own {
		if e.hook != "Retry" && e.hook != "GiveUp" {
			continue
		}
		if a := r.arrivalOf(e.Header); i > 0 && c.own[i-1].hook == "Attempt" && a != nil && e.Err == nil && c.p.WholeBody <= 0 && c.p.Classify != PeeksAtStart {
			s := c.w.sites[a.site]
			if took := e.at - a.sent; len(s.plan.Conns) == 0 && len(s.plan.Outages) == 0 && took > storeMost+4*s.plan.Latency+slack {
				c.breaks("P22", "the %s of attempt %d came %v after its response", e.hook, e.Attempt, took)
			}
		}
		if e.Reason == retrip.ReasonFleetBudget && len(c.w.plan.Store) > 0 && !c.w.low(hostport(e.Request), c.p.FleetBudget, e.at) {
			c.breaks("P22", "gave up for the account, of which the store has said no low level in %v", levelAge)
		}
	}
}

// low reports whether the store has said, so short before an instant that it counts, that
// an account of the given size may forbid retries: below a quarter of it.
func (w *world) low(host string, size float64, at time.Duration) bool {
	return slices.ContainsFunc(w.levels[strings.ToLower(host)], func(t told) bool {
		return t.at <= at && t.at+levelAge+slack >= at && t.missing > 0.75*size-1e-6
	})
}
