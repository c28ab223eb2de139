// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/lab"
)

// run returns the samples of a run whose usage rises and falls, modified by
// change.
func run(change func(i int, s *sample)) []sample {
	samples := make([]sample, sampleCount)
	for i := range samples {
		up := i % 5
		samples[i] = sample{
			Usage:     lab.Usage{Goroutines: 60 + 20*up, Descriptors: 30 + 10*up, Heap: uint64(8+2*up) << 20},
			Hosts:     5 + 10*up,
			Strangers: table,
		}
		if change != nil {
			change(i, &samples[i])
		}
	}
	return samples
}

func failed(samples []sample) (what []string) {
	for _, c := range checks(samples) {
		if !c.ok() {
			what = append(what, c.String())
		}
	}
	return what
}

func TestChecks_FlatRun(t *testing.T) {
	assert.Empty(t, failed(run(nil)))
}

// A machine that does little in one half of the run and much in the other shows
// no leak.
func TestChecks_StarvedInOneHalf(t *testing.T) {
	for name, starved := range map[string]func(int) bool{
		"first":  func(i int) bool { return i < sampleCount/2 },
		"second": func(i int) bool { return i >= sampleCount/2 },
	} {
		t.Run(name, func(t *testing.T) {
			assert.Empty(t, failed(run(func(i int, s *sample) {
				if starved(i) {
					s.Usage = lab.Usage{Goroutines: 20, Descriptors: 15, Heap: 3 << 20}
					s.Hosts = len(lab.Protos) * (others + 1)
				}
			})))
		})
	}
}

func TestChecks_SeeGrowth(t *testing.T) {
	for name, c := range map[string]struct {
		change func(i int, s *sample)
		want   string
	}{
		"heap": {
			func(i int, s *sample) { s.Heap += uint64(i) << 20 },
			"least heap in KiB: 18432 early, 38912 late, 34816 allowed",
		},
		"goroutines": {
			func(i int, s *sample) { s.Goroutines += 6 * i },
			"least goroutines: 120 early, 240 late, 220 allowed",
		},
		"descriptors": {
			func(i int, s *sample) { s.Descriptors += 8 * i },
			"most descriptors: 222 early, 382 late, 372 allowed",
		},
		"hosts": {
			func(i int, s *sample) { s.Hosts += i / 4 },
			"most hosts in trouble: 49 early, 54 late, 51 allowed",
		},
		"strangers": {
			func(i int, s *sample) { s.Strangers += 2 * (i / 39) },
			"most strangers in trouble: 4096 early, 4098 late, 4097 allowed",
		},
		"strangers, at first": {
			func(i int, s *sample) {
				if i == 0 {
					s.Strangers += 2
				}
			},
			"most strangers in trouble: 4098 early, 4096 late, 4097 allowed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, []string{c.want}, failed(run(c.change)))
		})
	}
}
