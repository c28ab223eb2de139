// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"runtime"
	"sync"
)

// RunAll runs scenarios in parallel on all processors and returns their results
// in the order of scenarios. It calls progress, if not nil, from time to time
// with the share that is complete; calls don't overlap. RunAll validates all
// parameters before the first run. If there is an error, some results may be
// nil and others partial.
func RunAll(ctx context.Context, scenarios []Scenario, progress func(done float64)) ([]*Result, error) {
	results := make([]*Result, len(scenarios))
	for _, s := range scenarios {
		if err := s.Validate(); err != nil {
			return results, err
		}
	}
	err := parallel(ctx, len(scenarios), progress, func(ctx context.Context, i int, within func(float64)) (err error) {
		results[i], err = scenarios[i].Run(ctx, within)
		return err
	})
	return results, err
}

// Seeds returns n copies of s with consecutive seeds.
func (s Scenario) Seeds(n int) []Scenario {
	list := make([]Scenario, n)
	for i := range list {
		list[i] = s
		list[i].Seed += uint64(i)
	}
	return list
}

// parallel calls do for 0 to n-1, with as many goroutines as there are
// processors. It reports progress when a call ends, and within a call if do
// reports it. It stops at the first error and returns the one with the lowest
// index.
func parallel(ctx context.Context, n int, progress func(done float64), do func(ctx context.Context, i int, within func(done float64)) error) error {
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		mu     sync.Mutex
		next   int
		done   int
		begun  float64 // progress of the calls in flight
		failed = n
		first  error
		wg     sync.WaitGroup
	)
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= n || ctx.Err() != nil {
					return
				}
				share := 0.0
				within := func(of float64) {
					mu.Lock()
					defer mu.Unlock()
					begun += of - share
					share = of
					progress((float64(done) + begun) / float64(n))
				}
				if progress == nil {
					within = nil
				}
				err := do(ctx, i, within)
				mu.Lock()
				begun -= share
				if err != nil {
					// A run that was canceled because of another run's error
					// has no error of its own.
					if i < failed && (ctx.Err() == nil || !errors.Is(err, context.Canceled)) {
						failed, first = i, err
					}
					cancel()
				} else if done++; progress != nil {
					progress((float64(done) + begun) / float64(n))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if err := outer.Err(); err != nil {
		return err
	}
	return first
}
