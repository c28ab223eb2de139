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
// in the order of scenarios. It calls progress, if not nil, after each run
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
	err := parallel(ctx, len(scenarios), progress, func(ctx context.Context, i int) (err error) {
		results[i], err = scenarios[i].Run(ctx)
		return err
	})
	return results, err
}

// parallel calls do for 0 to n-1, with as many goroutines as there are
// processors, and reports progress when a call ends. It stops at the first error
// and returns the one with the lowest index.
func parallel(ctx context.Context, n int, progress func(done float64), do func(ctx context.Context, i int) error) error {
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		mu         sync.Mutex
		next, done int
		failed     = n
		first      error
		wg         sync.WaitGroup
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
				err := do(ctx, i)
				mu.Lock()
				if err != nil {
					// A run that was canceled because of another run's error
					// has no error of its own.
					if i < failed && (ctx.Err() == nil || !errors.Is(err, context.Canceled)) {
						failed, first = i, err
					}
					cancel()
				} else if done++; progress != nil {
					progress(float64(done) / float64(n))
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
