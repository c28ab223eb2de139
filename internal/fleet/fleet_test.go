// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/hostkey"
)

// opened returns accounts in the given store.
func opened(t *testing.T, store Add) *Accounts {
	a := &Accounts{}
	a.Open(store)
	t.Cleanup(func() { a.Close() })
	return a
}

//retrip:promise P22
func TestAccounts_Bounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, store := range map[string]Add{"memory": nil, "store": FixedStore(250)} {
			accounts := opened(t, store)
			for i := range mostViews + 500 {
				accounts.Ask(hostkey.Key{Host: fmt.Sprintf("%d.example", i), Port: "443"}, 500)
				accounts.Add(hostkey.Key{Host: fmt.Sprintf("%d.example", i), Port: "443"}, 500, -1)
				synctest.Wait()
			}
			assert.Len(t, accounts.views, mostViews, name)
			if m := accounts.own; m != nil {
				assert.LessOrEqual(t, len(m.accounts), memoryMost)
			}
			time.Sleep(2 * time.Minute)
			accounts.Ask(hostkey.Key{Host: "new.example", Port: "443"}, 500)
			synctest.Wait()
			assert.Len(t, accounts.views, 1, "%s: what nobody has asked for is forgotten", name)
			long := hostkey.Key{Host: strings.Repeat("x", 300), Port: "443"}
			assert.Nil(t, accounts.Ask(long, 500), "no host has such a name")
		}
	})
}

// The value with which a store panics may be an error with code of its own,
// which may take its time, so it must not run with the lock for which requests
// wait.
//
//retrip:promise P22
func TestAccounts_PanicWithError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var accounts *Accounts
		asked := 0
		accounts = opened(t, StoreFunc(func(context.Context, string, float64, float64) (float64, error) {
			panic(codeError{func() string {
				asked++
				if assert.True(t, accounts.mu.TryLock(), "no request waits for this text") {
					accounts.mu.Unlock()
				}
				return "text"
			}})
		}))
		accounts.Ask(hostkey.Key{Host: "a.example", Port: "80"}, 500)
		synctest.Wait()
		assert.Positive(t, asked)
	})
}

// An error may end the goroutine that asks for its text, for example a mock
// that calls t.FailNow. The Fleet can then still make operations.
//
//retrip:promise P22
func TestAccounts_ErrorEndsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sick, operations := true, 0
		accounts := opened(t, StoreFunc(func(_ context.Context, _ string, _, size float64) (float64, error) {
			if operations++; sick {
				return 0, codeError{func() string { runtime.Goexit(); return "" }}
			}
			return size, nil
		}))
		host := hostkey.Key{Host: "a.example", Port: "80"}
		for range atOnce + 1 {
			accounts.Ask(host, 500)
			time.Sleep(20 * time.Second)
			synctest.Wait()
		}
		assert.Equal(t, atOnce+1, operations)
		sick = false
		accounts.Ask(host, 500)
		time.Sleep(time.Second)
		_, known := accounts.Level(host, 500)
		assert.True(t, known, "the store is well again")
	})
}

// Transports with different sizes use one Fleet. An account that is empty for
// the smaller size says nothing about how much more is missing, so its level
// must not be taken for that of the larger size.
//
//retrip:promise P22
func TestAccounts_SmallerSizeHidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accounts := opened(t, nil)
		host := hostkey.Key{Host: "a.example", Port: "80"}
		accounts.Add(host, 500, -500)
		for range 10 {
			time.Sleep(1001 * time.Millisecond)
			accounts.Ask(host, 100)
			accounts.Ask(host, 500)
			level, known := accounts.Level(host, 500)
			assert.True(t, known)
			assert.Zero(t, level)
			level, known = accounts.Level(host, 100)
			assert.True(t, known)
			assert.Zero(t, level)
		}
	})
}

// What a Transport with a large account has spent isn't lost because one with a
// smaller account asks before the store has heard of it.
//
//retrip:promise P22
func TestAccounts_SmallerSizeLosesNoCharge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{accounts: map[string]memoryAccount{}}
		accounts := opened(t, StoreFunc(func(ctx context.Context, host string, tokens, size float64) (float64, error) {
			time.Sleep(10 * time.Millisecond)
			return m.Add(ctx, host, tokens, size)
		}))
		host := hostkey.Key{Host: "a.example", Port: "80"}
		answer := accounts.Ask(host, 500)
		accounts.Ask(host, 100)
		time.Sleep(5 * time.Millisecond)
		for range 300 { // while an operation is running
			accounts.Add(host, 500, -1)
		}
		accounts.Add(host, 100, -1)
		<-answer
		time.Sleep(2 * time.Second)
		<-accounts.Ask(host, 500)
		level, _ := accounts.Level(host, 500)
		assert.Equal(t, 199.0, level)
	})
}

// Operations that wait for their turn while the store is lost aren't made, and an
// operation that fails after that doesn't lose the store again.
func TestAccounts_IsLostOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var operations atomic.Int32
		accounts := opened(t, StoreFunc(func(ctx context.Context, _ string, _, _ float64) (float64, error) {
			operations.Add(1)
			<-ctx.Done()
			return 0, ctx.Err()
		}))
		now := func() link {
			accounts.mu.Lock()
			defer accounts.mu.Unlock()
			return accounts.link
		}
		first := hostkey.Key{Host: "0.example", Port: "80"}
		answer := accounts.Ask(first, 500)
		for i := range 3 * atOnce {
			accounts.Ask(hostkey.Key{Host: fmt.Sprint(i+1, ".example"), Port: "80"}, 500)
		}
		time.Sleep(account.OpTimeout)
		accounts.Overdue(first, answer)
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
// look empty to them.
//
//retrip:promise P22
func TestAccounts_Sizes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accounts := opened(t, nil)
		host := hostkey.Key{Host: "a.example", Port: "80"}
		level := func(size float64) float64 {
			t.Helper()
			time.Sleep(2 * time.Second)
			<-accounts.Ask(host, size)
			level, known := accounts.Level(host, size)
			require.True(t, known)
			return level
		}
		assert.Equal(t, 100.0, level(100))
		l, _ := accounts.Level(host, 500)
		assert.Equal(t, 500.0, l, "what is full for one is full for all")
		accounts.Add(host, 500, -300)
		assert.Equal(t, 200.0, level(500))
		assert.Equal(t, 0.0, level(100), "300 are spent")
		assert.Equal(t, 200.0, level(500), "and a look by others doesn't change that")
		accounts.Add(host, 100, -50)
		assert.Equal(t, 200.0, level(500), "the smaller account was empty already")
		accounts.Add(host, 100, 250)
		assert.Equal(t, 50.0, level(100))
		assert.Equal(t, 450.0, level(500))
		accounts.Add(host, 500, 1000)
		assert.Equal(t, 100.0, level(100))
		assert.Equal(t, 500.0, level(500))
	})
}

// If there are more hosts than a Fleet can know, it searches them at most once
// per second.
//
//retrip:promise P22
func TestAccounts_SweepsOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accounts := opened(t, StoreFunc(HangingStore))
		for i := range mostViews {
			accounts.views[hostkey.Key{Host: fmt.Sprint(i), Port: "80"}] = &view{busy: true}
		}
		time.Sleep(10 * time.Second)
		accounts.Ask(hostkey.Key{Host: "new", Port: "80"}, 500)
		swept := accounts.swept
		assert.Positive(t, swept)
		for _, v := range accounts.views {
			v.busy, v.asked = false, -time.Hour
		}
		assert.Nil(t, accounts.Ask(hostkey.Key{Host: "new", Port: "80"}, 500))
		assert.Equal(t, swept, accounts.swept)
		time.Sleep(time.Second)
		assert.NotNil(t, accounts.Ask(hostkey.Key{Host: "new", Port: "80"}, 500))
		assert.Len(t, accounts.views, 1)
	})
}

// codeError is an error with code of its own.
type codeError struct{ text func() string }

func (e codeError) Error() string { return e.text() }

// Tokens that are added while an operation runs go to the store right after it,
// even if nobody asks any more.
func TestAccounts_ChargesDuringAnOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var added []float64
		accounts := opened(t, StoreFunc(func(_ context.Context, _ string, tokens, size float64) (float64, error) {
			time.Sleep(10 * time.Millisecond)
			added = append(added, tokens)
			return size, nil
		}))
		host := hostkey.Key{Host: "a.example", Port: "80"}
		accounts.Add(host, 500, -1)
		time.Sleep(5 * time.Millisecond)
		accounts.Add(host, 500, -2)
		accounts.Add(host, 500, -3)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, []float64{-1, -5}, added)
	})
}

// A store that answers too late, and does so a second later too, is away, even if no
// request has waited for it. Its answers don't count.
func TestAccounts_SlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, took := range []time.Duration{account.OpTimeout, account.OpTimeout + 1} {
			accounts := opened(t, StoreFunc(func(_ context.Context, _ string, _, size float64) (float64, error) {
				time.Sleep(took)
				return size, nil
			}))
			host := hostkey.Key{Host: "a.example", Port: "80"}
			for range 2 {
				accounts.Ask(host, 500)
				time.Sleep(2 * time.Second)
				_, known := accounts.Level(host, 500)
				assert.Equal(t, took <= account.OpTimeout, known, took)
			}
			_, _, away := accounts.Tell()
			assert.Equal(t, took > account.OpTimeout, away != nil, took)
		}
	})
}
