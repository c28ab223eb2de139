// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/testenv"
)

// opened returns accounts in the given store.
func opened(t *testing.T, store Add) *Accounts {
	a := &Accounts{}
	a.Open(store)
	t.Cleanup(func() { a.Close() })
	return a
}

// key returns the key of a host.
func key(i int) hostkey.Key { return hostkey.Key{Host: fmt.Sprint(i, ".example"), Port: "80"} }

//retrip:promise P22
func TestAccounts_Bounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, store := range map[string]Add{"memory": nil, "store": FixedStore(250)} {
			accounts := opened(t, store)
			for i := range mostViews + 500 {
				accounts.Ask(key(i), 500)
				accounts.Add(key(i), 500, -1)
				synctest.Wait()
			}
			assert.Len(t, accounts.views, mostViews, name)
			time.Sleep(2 * time.Minute)
			accounts.Ask(key(-1), 500)
			synctest.Wait()
			assert.Len(t, accounts.views, 1, "%s: what nobody has asked for is forgotten", name)
			assert.Nil(t, accounts.Ask(hostkey.Key{Host: strings.Repeat("x", 300), Port: "443"}, 500), "no host has such a name")
		}
	})
}

// What is charged while an operation runs goes to the store right after it, even if nobody
// asks any more, and isn't lost because a Transport with a smaller account asks before the
// store has heard of it.
//
//retrip:promise P22
func TestAccounts_ChargesDuringAnOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lacks float64
		var added []float64
		accounts := opened(t, func(_ context.Context, _ string, tokens, size float64) (float64, error) {
			time.Sleep(10 * time.Millisecond)
			added = append(added, tokens)
			lacks -= tokens
			return max(0, size-lacks), nil
		})
		accounts.Ask(key(0), 500)
		accounts.Ask(key(0), 100)
		time.Sleep(5 * time.Millisecond)
		for range 300 {
			accounts.Add(key(0), 500, -1)
		}
		accounts.Add(key(0), 100, -1)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, []float64{0, -301}, added)
		level, _ := accounts.Level(key(0), 500)
		assert.Equal(t, 199.0, level)
	})
}

// Operations that wait for their turn while the store is lost aren't made, and an
// operation that fails after that doesn't lose the store again.
func TestAccounts_IsLostOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var operations atomic.Int32
		accounts := opened(t, func(ctx context.Context, host string, tokens, size float64) (float64, error) {
			operations.Add(1)
			return HangingStore(ctx, host, tokens, size)
		})
		now := func() link {
			accounts.mu.Lock()
			defer accounts.mu.Unlock()
			return accounts.link
		}
		answer := accounts.Ask(key(0), 500)
		for i := range 3 * atOnce {
			accounts.Ask(key(i+1), 500)
		}
		time.Sleep(account.OpTimeout)
		accounts.Overdue(key(0), answer)
		assert.Zero(t, now().Link, "they may have waited for a processor")
		time.Sleep(patience)
		synctest.Wait()
		lost := now()
		time.Sleep(patience + time.Second)
		synctest.Wait()
		assert.EqualValues(t, atOnce, operations.Load())
		assert.Equal(t, lost, now())
	})
}

// Processes, and Transports of one process, may use different sizes for one
// account: during the roll-out of a new FleetBudget, and after SetPolicies. An
// account that is full for one of them must not be refilled for the others, nor
// look empty to them. One that is empty for the smaller size says nothing about
// how much more is missing.
//
//retrip:promise P22
func TestAccounts_Sizes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accounts := opened(t, nil)
		has := func(want, size float64, why string) {
			t.Helper()
			level, known := accounts.Level(key(0), size)
			require.True(t, known)
			assert.Equal(t, want, level, "%v: %s", size, why)
		}
		heard := func(want, size float64, why string) {
			t.Helper()
			time.Sleep(2 * time.Second)
			<-accounts.Ask(key(0), size)
			has(want, size, why)
		}
		heard(100, 100, "full")
		has(500, 500, "what is full for one is full for all")
		accounts.Add(key(0), 500, -300)
		heard(200, 500, "300 are spent")
		heard(0, 100, "300 are spent")
		heard(200, 500, "a look by others doesn't change that")
		accounts.Add(key(0), 100, -50)
		heard(200, 500, "the smaller account was empty already")
		accounts.Add(key(0), 100, 250)
		heard(50, 100, "250 are back")
		heard(450, 500, "250 are back")
		accounts.Add(key(0), 500, 1000)
		heard(100, 100, "full")
		heard(500, 500, "full")
		accounts.Add(key(0), 500, -500)
		for range 10 {
			heard(0, 100, "empty")
			accounts.Ask(key(0), 500)
			has(0, 500, "empty, and not 400 as a look with the smaller size may tell")
			has(0, 100, "empty")
		}
	})
}

// If there are more hosts than a Fleet can know, it searches them at most once
// per second.
//
//retrip:promise P22
func TestAccounts_SweepsOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accounts := opened(t, HangingStore)
		for i := range mostViews {
			accounts.views[key(i)] = &view{busy: true}
		}
		time.Sleep(10 * time.Second)
		accounts.Ask(key(-1), 500)
		swept := accounts.swept
		assert.Positive(t, swept)
		for _, v := range accounts.views {
			v.busy, v.asked = false, -time.Hour
		}
		assert.Nil(t, accounts.Ask(key(-1), 500))
		assert.Equal(t, swept, accounts.swept)
		time.Sleep(time.Second)
		assert.NotNil(t, accounts.Ask(key(-1), 500))
		assert.Len(t, accounts.views, 1)
	})
}

// A store that answers too late, and does so a second later too, is away, even if no
// request has waited for it. Its answers don't count.
func TestAccounts_SlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, took := range []time.Duration{account.OpTimeout, account.OpTimeout + 1} {
			accounts := opened(t, FullStore(took))
			for range 2 {
				accounts.Ask(key(0), 500)
				time.Sleep(2 * time.Second)
				_, known := accounts.Level(key(0), 500)
				assert.Equal(t, took <= account.OpTimeout, known, took)
			}
			_, _, away := accounts.News()
			assert.Equal(t, took > account.OpTimeout, away != nil, took)
		}
	})
}

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
