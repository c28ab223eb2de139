// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/lab"
)

// sample is what is held at a moment.
type sample struct {
	lab.Usage
	Hosts     int // in trouble, of all loads
	Strangers int // in trouble
}

// sampleCount is how many there are in a run: on a slow machine it lasts longer
// for that.
const sampleCount = 40

// watch takes the samples, spread over the duration, and prints every fourth.
// It ends early with ctx.
func watch(ctx context.Context, duration time.Duration, loads []*lab.Load, transports []*retrip.Transport, down *strangers) ([]sample, error) {
	var samples []sample
	ticker := time.NewTicker(duration / sampleCount)
	defer ticker.Stop()
	fmt.Println("     time  heap KiB  goroutines  descriptors  hosts  strangers")
	began := time.Now()
	for len(samples) < sampleCount {
		select {
		case <-ctx.Done():
			return samples, nil
		case <-ticker.C:
		}
		// Enough at first to fill the table, and later to go through it often.
		calls := table / 4
		if len(samples) == 0 {
			calls = 3 * table
		}
		if err := down.call(calls); err != nil {
			return samples, err
		}
		var notes uint64
		for _, l := range loads {
			notes += uint64(l.Notes())
		}
		s := sample{Usage: lab.Resources(), Strangers: len(down.HostStates())}
		s.Heap -= notes
		for _, t := range transports {
			s.Hosts += len(t.HostStates())
		}
		samples = append(samples, s)
		if len(samples)%4 == 0 {
			fmt.Printf("%8.1fs %9d %11d %12d %6d %10d\n", time.Since(began).Seconds(), s.Heap>>10, s.Goroutines, s.Descriptors, s.Hosts, s.Strangers)
		}
	}
	return samples, nil
}

// check is a figure of an early and of a late part of a run, and how high both
// may be.
type check struct {
	what               string
	early, late, limit int
}

func (c check) ok() bool { return max(c.early, c.late) <= c.limit }

func (c check) String() string {
	return fmt.Sprintf("%s: %d early, %d late, %d allowed", c.what, c.early, c.late, c.limit)
}

// What a run may hold more at its end than at its beginning. No leak is so slow
// that a long run hides in it, and a machine that is starved of its processors
// for a part of a run, and does less at a time then, stays well within.
const (
	heapSlack       = 16 << 10 // KiB
	goroutineSlack  = 100
	descriptorSlack = 150
)

// checks compares what was held early in a run with what was held late. What
// leaks is held at every moment: so the least counts of what follows the load up
// and down, after a quarter of the run to warm up in. Descriptors have the most
// of each half compared.
//
// The hosts in trouble can't be more than there are: that is their plateau. How
// many of them have tokens missing follows the load, too.
func checks(samples []sample) []check {
	quarter, half := len(samples)/4, len(samples)/2
	compare := func(what string, early, late []sample, pick func([]int) int, value func(sample) int) check {
		of := func(part []sample) int {
			var values []int
			for _, s := range part {
				values = append(values, value(s))
			}
			return pick(values)
		}
		return check{what: what, early: of(early), late: of(late)}
	}
	least := func(what string, slack int, value func(sample) int) check {
		c := compare("least "+what, samples[quarter:2*quarter], samples[len(samples)-quarter:], slices.Min[[]int], value)
		c.limit = c.early + slack
		return c
	}
	most := func(what string, value func(sample) int) check {
		return compare("most "+what, samples[:half], samples[half:], slices.Max[[]int], value)
	}
	descriptors := most("descriptors", func(s sample) int { return s.Descriptors })
	descriptors.limit = descriptors.early + descriptorSlack
	hosts := most("hosts in trouble", func(s sample) int { return s.Hosts })
	hosts.limit = len(lab.Protos) * (others + 1)
	strangers := most("strangers in trouble", func(s sample) int { return s.Strangers })
	strangers.limit = table + 1 // those without a place are one more
	return []check{
		least("heap in KiB", heapSlack, func(s sample) int { return int(s.Heap >> 10) }),
		least("goroutines", goroutineSlack, func(s sample) int { return s.Goroutines }),
		descriptors, hosts, strangers,
	}
}
