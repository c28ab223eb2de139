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

// sample is a snapshot of the resources in use.
type sample struct {
	lab.Usage
	Hosts     int // in trouble, in all loads
	Strangers int // in trouble
}

// sampleCount is how many samples a run takes. A slow machine takes longer for
// the same number.
const sampleCount = 40

// watch takes samples at regular intervals over the duration and prints every
// fourth. It returns early when ctx ends.
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
		// Enough calls to fill the table at first, and to cycle through it many
		// times later.
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
		s := sample{Usage: lab.Resources(), Strangers: len(troubled(&down.Transport))}
		s.Heap -= notes
		for _, t := range transports {
			s.Hosts += len(troubled(t))
		}
		samples = append(samples, s)
		if len(samples)%4 == 0 {
			fmt.Printf("%8.1fs %9d %11d %12d %6d %10d\n", time.Since(began).Seconds(), s.Heap>>10, s.Goroutines, s.Descriptors, s.Hosts, s.Strangers)
		}
	}
	return samples, nil
}

// check compares a figure from an early part of a run with one from a late
// part, and has the limit for both.
type check struct {
	what               string
	early, late, limit int
}

func (c check) ok() bool { return max(c.early, c.late) <= c.limit }

func (c check) String() string {
	return fmt.Sprintf("%s: %d early, %d late, %d allowed", c.what, c.early, c.late, c.limit)
}

// Slack for the growth between the beginning and the end of a run. A leak in a
// long run exceeds it, however slow. A machine whose processors are busy with
// other work during a part of the run, and which therefore does less at a time,
// stays well within it.
const (
	heapSlack       = 16 << 10 // KiB
	goroutineSlack  = 100
	descriptorSlack = 150
)

// checks compares samples from early in a run with samples from late in it. A
// leaked resource is held at every moment, whereas other usage rises and falls
// with the load, so the checks use the minimum. The first quarter of the run is
// for warming up. For descriptors, they compare the maximum of each half.
//
// The number of hosts in trouble can't exceed the number of hosts. How many of
// them have tokens missing also varies with the load.
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
	strangers.limit = table + 1 // plus the overflow host
	return []check{
		least("heap in KiB", heapSlack, func(s sample) int { return int(s.Heap >> 10) }),
		least("goroutines", goroutineSlack, func(s sample) int { return s.Goroutines }),
		descriptors, hosts, strangers,
	}
}
