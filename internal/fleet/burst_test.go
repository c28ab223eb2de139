// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/testenv"
)

// retry is what a request does before a retry.
func retry(accounts *Accounts, host int) (known bool) {
	h := key(host)
	if answer := accounts.Ask(h, 500); answer != nil {
		select {
		case <-answer:
		case <-time.After(account.OpTimeout):
			accounts.Overdue(h, answer)
		}
	}
	_, known = accounts.Forbids(h, 500, rand.Uint64())
	return known
}

// Many hosts begin to fail at once. The store is as fast as it was, so the
// accounts decide.
//
//retrip:promise P22
func TestAccounts_ManyHostsAtOnce(t *testing.T) {
	steady := func(d time.Duration) func() time.Duration { return func() time.Duration { return d } }
	few := testenv.Size(100, 1000)
	for _, test := range []struct {
		name  string
		hosts int
		took  func() time.Duration
	}{
		{"1ms", few, steady(time.Millisecond)},
		{"10ms", few, steady(10 * time.Millisecond)},
		{"40ms", testenv.Size(1000, 3000), steady(40 * time.Millisecond)},
		{"up to 90ms", few, func() time.Duration { return rand.N(90 * time.Millisecond) }},
		{"one in ten late", few, func() time.Duration {
			if rand.IntN(10) == 0 {
				return 200 * time.Millisecond
			}
			return 5 * time.Millisecond
		}},
	} {
		for _, every := range []time.Duration{300 * time.Millisecond, 3 * time.Second} {
			testenv.Bubble(t, fmt.Sprint(test.hosts, test.name, every), func(t *testing.T) {
				accounts := opened(t, fullStore(test.took))
				var known, all atomic.Int64 // retries after the first second
				var work sync.WaitGroup
				began := time.Now()
				for i := range test.hosts {
					work.Go(func() {
						for time.Since(began) < 6*time.Second {
							if i%2 == 0 {
								accounts.Add(key(i), 500, -1)
							}
							if ok := retry(accounts, i); time.Since(began) >= time.Second {
								if all.Add(1); ok {
									known.Add(1)
								}
							}
							time.Sleep(every/2 + rand.N(every))
						}
					})
				}
				work.Wait()
				share := float64(known.Load()) / float64(all.Load())
				assert.GreaterOrEqual(t, share, 0.95)
				t.Logf("%.1f %% of %d", 100*share, all.Load())
			})
		}
	}
}

// Successes keep the store busy, and the checks know a level.
//
//retrip:promise P22
func TestAccounts_ManySuccesses(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 40 * time.Millisecond} {
		for _, size := range []float64{10, 500} {
			synctest.Test(t, func(t *testing.T) {
				accounts := opened(t, FullStore(took))
				const hosts, perSecond, seconds = 100, 5000, 3
				for i := range perSecond * seconds {
					if tokens := account.Deposit(size, rand.Uint64()); tokens > 0 {
						accounts.Add(key(rand.IntN(hosts)), size, tokens)
					}
					if i%100 == 0 {
						assert.True(t, retry(accounts, rand.IntN(hosts)), "%v %v", took, size)
					}
					time.Sleep(time.Second / perSecond)
				}
			})
		}
	}
}
