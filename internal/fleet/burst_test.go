// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/account"
)

// checks counts what retries learn.
type checks struct{ known, unknown int }

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
	for _, test := range []struct {
		name  string
		hosts []int
		took  func() time.Duration
	}{
		{"1ms", []int{50, 1000}, steady(time.Millisecond)},
		{"10ms", []int{50, 1000}, steady(10 * time.Millisecond)},
		{"40ms", []int{50, 1000, 3000}, steady(40 * time.Millisecond)},
		{"up to 90ms", []int{50, 1000}, func() time.Duration { return rand.N(90 * time.Millisecond) }},
		{"one in ten late", []int{50, 1000}, func() time.Duration {
			if rand.IntN(10) == 0 {
				return 200 * time.Millisecond
			}
			return 5 * time.Millisecond
		}},
	} {
		for _, hosts := range test.hosts {
			for _, every := range []time.Duration{300 * time.Millisecond, 3 * time.Second} {
				t.Run(fmt.Sprint(hosts, test.name, every), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						accounts := opened(t, StoreFunc(func(_ context.Context, _ string, _, size float64) (float64, error) {
							time.Sleep(test.took())
							return size, nil
						}))
						late := make(chan checks, hosts)
						began := time.Now()
						for i := range hosts {
							go func() {
								var c checks
								for time.Since(began) < 8*time.Second {
									if i%2 == 0 {
										accounts.Add(key(i), 500, -1)
									}
									switch known := retry(accounts, i); {
									case time.Since(began) < time.Second:
									case known:
										c.known++
									default:
										c.unknown++
									}
									time.Sleep(every/2 + rand.N(every))
								}
								late <- c
							}()
						}
						var sum checks
						for range hosts {
							c := <-late
							sum.known += c.known
							sum.unknown += c.unknown
						}
						share := float64(sum.known) / float64(sum.known+sum.unknown)
						assert.GreaterOrEqual(t, share, 0.95, "%+v", sum)
						t.Logf("%.1f %%", 100*share)
					})
				})
			}
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
				accounts := opened(t, StoreFunc(func(_ context.Context, _ string, _, size float64) (float64, error) {
					time.Sleep(took)
					return size, nil
				}))
				const hosts, perSecond, seconds = 100, 5000, 10
				var unknown int
				for i := range perSecond * seconds {
					if tokens := account.Deposit(size, rand.Uint64()); tokens > 0 {
						accounts.Add(key(rand.IntN(hosts)), size, tokens)
					}
					if i%100 == 0 {
						if !retry(accounts, rand.IntN(hosts)) {
							unknown++
						}
					}
					time.Sleep(time.Second / perSecond)
				}
				assert.Zero(t, unknown, "%v %v", took, size)
			})
		}
	}
}
