// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// schedule holds the waits after failed runs that Standard Webhooks recommends:
// ten runs in three days.
var schedule = []time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
	10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

const (
	workers        = 256             // concurrent deliveries; those to failing endpoints may use half
	breakerOpensAt = 5               // consecutive failed runs to an endpoint
	firstRest      = time.Minute     // of an open breaker; each failed probe doubles it
	longestRest    = 2 * time.Hour   // between probes
	longestPause   = 24 * time.Hour  // maximum pause that an endpoint may ask for
	disableAfter   = 120 * time.Hour // of consecutive failures
	streakEnds     = 48 * time.Hour  // without a failure: then the next one begins a new streak
	farthest       = 48 * time.Hour  // beyond any wait: a later time comes from a clock that was wrong
)

// The states of a delivery.
const (
	pending   = "pending"
	sending   = "sending"
	delivered = "delivered"
	dead      = "dead"
)

// verdict is the decision after a run.
type verdict struct {
	state   string
	outcome string        // in words, for people
	wait    time.Duration // before the delivery's next run
	rest    time.Duration // for the whole endpoint
	disable string        // why the endpoint is disabled
}

// decide judges a run by its last response or error.
func decide(d *Delivery, resp *http.Response, err error) verdict {
	if err == nil && resp.StatusCode/100 == 2 {
		return verdict{state: delivered, outcome: resp.Status}
	}
	v := verdict{state: dead}
	if d.Runs <= int64(len(schedule)) {
		v.state, v.wait = pending, jitter(schedule[d.Runs-1])
	}
	if d.Failures+1 >= breakerOpensAt {
		v.rest = jitter(min(firstRest<<min(d.Failures+1-breakerOpensAt, 10), longestRest))
	}
	if time.Since(d.FailingSince) > disableAfter {
		v.state, v.disable = dead, fmt.Sprintf("disabled: failing for %v", disableAfter)
	}
	if err != nil {
		v.outcome = err.Error()
		return v
	}
	v.outcome = resp.Status
	if resp.StatusCode == http.StatusGone {
		v.state, v.disable = dead, "disabled: gone"
		return v
	}
	// Retry-After is for all deliveries to the endpoint, whatever the status.
	if asked, ok := retrip.ParseRetryAfter(resp.Header, time.Now()); ok {
		v.rest = max(v.rest, jitter(min(asked, longestPause)))
	}
	return v
}

// jitter adds up to a quarter to d: a run is never earlier than the endpoint
// asked for.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/4+1) }
