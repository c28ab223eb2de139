// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/retrip/retrip/sim"
)

// server declares the flags for a backend with more features than one queue.
func (f *flags) server(b *sim.Backend) {
	f.Float64Var(&b.TailShare, f.field("tail-share", "Backend.TailShare"), b.TailShare, "share of requests that take -tail-times as long")
	f.Float64Var(&b.TailTimes, f.field("tail-times", "Backend.TailTimes"), b.TailTimes, "how many times as long those requests take")
	f.Func("order", "order of the queue: fifo or lifo (default fifo)", func(text string) error {
		switch text {
		case "fifo":
			b.Order = sim.FirstInFirstOut
		case "lifo":
			b.Order = sim.LastInFirstOut
		default:
			return fmt.Errorf("it must be fifo or lifo")
		}
		return nil
	})
	f.DurationVar(&b.CoDel, f.field("codel", "Backend.CoDel"), b.CoDel, "refuse more and more waiting requests while all wait for longer than this (CoDel); 0 means off")
	f.DurationVar(&b.Patience, f.field("patience", "Backend.Patience"), b.Patience, "refuse requests that have waited in the queue for longer; 0 means never")
	f.IntVar(&b.ShedRetries, f.field("shed-retries", "Backend.ShedRetries"), b.ShedRetries, "refuse retries while this many requests wait; 0 means never")
	f.DurationVar(&b.RetryAfter, f.field("retry-after", "Backend.RetryAfter"), b.RetryAfter, "wait that a refusal asks for; 0 means none")
	f.BoolVar(&b.NoRetry, "no-retry", b.NoRetry, "refusals forbid retries, like X-Should-Retry: false")
	f.Float64Var(&b.RefusalCost, f.field("refusal-cost", "Backend.RefusalCost"), b.RefusalCost, "time that a refusal takes a worker, as a share of -service")
	f.Float64Var(&b.Crowding, f.field("crowding", "Backend.Crowding"), b.Crowding, "with a full queue, requests take longer by this many times; 0 means no longer")
	f.DurationVar(&b.Connect, f.field("connect", "Backend.Connect"), b.Connect, "extra work on an attempt after a timeout, for its new connection")
	f.Float64Var(&b.Cold, f.field("cold", "Backend.Cold"), b.Cold, "after the trigger, requests take this many times as long until the cache is full again; 0 means no cache")
	f.IntVar(&b.Refill, f.field("refill", "Backend.Refill"), b.Refill, "number of requests answered in time until the cache is full again")
	f.IntVar(&b.Instances, f.field("instances", "Backend.Instances"), b.Instances, "number of backends behind the name, each with -workers and -queue; 0 means one")
	f.IntVar(&b.Slow, f.field("slow", "Backend.Slow"), b.Slow, "number of backends that take -slow-by times as long")
	f.Float64Var(&b.SlowBy, f.field("slow-by", "Backend.SlowBy"), b.SlowBy, "how many times as long -slow backends take")
	f.IntVar(&b.Dead, f.field("dead", "Backend.Dead"), b.Dead, "number of backends that fail every attempt at once")
	f.needs("max-wait", "retry-after")
	f.needs("gate", "retry-after")
	f.needs("tail-times", "tail-share")
	f.needs("refill", "cold")
	f.needs("slow-by", "slow")
}
