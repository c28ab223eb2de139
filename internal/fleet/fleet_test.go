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

	"github.com/retrip/retrip/internal/hostkey"
)

type storeFunc func(ctx context.Context, host string, tokens, size float64) (float64, error)

func (f storeFunc) Add(ctx context.Context, host string, tokens, size float64) (float64, error) {
	return f(ctx, host, tokens, size)
}

// fixedStore is a store whose accounts always have the given level.
func fixedStore(level float64) storeFunc {
	return func(context.Context, string, float64, float64) (float64, error) { return level, nil }
}

// opened returns accounts in the given store.
func opened(t *testing.T, store Store) *Accounts {
	a := &Accounts{}
	a.Open(store)
	t.Cleanup(func() { a.Close() })
	return a
}

func TestAccounts_Bounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, store := range map[string]Store{"memory": nil, "store": fixedStore(250)} {
			accounts := opened(t, store)
			for i := range Views + 500 {
				accounts.Ask(hostkey.Key{Host: fmt.Sprintf("%d.example", i), Port: "443"}, 500)
				accounts.Add(hostkey.Key{Host: fmt.Sprintf("%d.example", i), Port: "443"}, 500, -1)
				synctest.Wait()
			}
			assert.Len(t, accounts.Views, Views, name)
			if m, ok := accounts.Store.(*memory); ok {
				assert.LessOrEqual(t, len(m.Accounts), MemoryMost)
			}
			time.Sleep(2 * time.Minute)
			accounts.Ask(hostkey.Key{Host: "new.example", Port: "443"}, 500)
			synctest.Wait()
			assert.Len(t, accounts.Views, 1, "%s: what nobody has asked for is forgotten", name)
			long := hostkey.Key{Host: strings.Repeat("x", 300), Port: "443"}
			assert.Nil(t, accounts.Ask(long, 500), "no host has such a name")
		}
	})
}

// The value with which a store panics may be an error with code of its own,
// which may take its time, so it must not run with the lock for which requests
// wait.
func TestAccounts_PanicWithError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var accounts *Accounts
		asked := 0
		accounts = opened(t, storeFunc(func(context.Context, string, float64, float64) (float64, error) {
			panic(codeError{func() string {
				asked++
				if assert.True(t, accounts.Mu.TryLock(), "no request waits for this text") {
					accounts.Mu.Unlock()
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
// that calls t.FailNow. The Fleet then starts another worker.
func TestAccounts_ErrorEndsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sick, operations := true, 0
		accounts := opened(t, storeFunc(func(_ context.Context, _ string, _, size float64) (float64, error) {
			if operations++; sick {
				return 0, codeError{func() string { runtime.Goexit(); return "" }}
			}
			return size, nil
		}))
		host := hostkey.Key{Host: "a.example", Port: "80"}
		for range 2 * workers {
			accounts.Ask(host, 500)
			time.Sleep(20 * time.Second)
			synctest.Wait()
		}
		assert.Equal(t, 2*workers, operations)
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
func TestAccounts_SmallerSizeLosesNoCharge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{Accounts: map[string]memoryAccount{}}
		accounts := opened(t, storeFunc(func(ctx context.Context, host string, tokens, size float64) (float64, error) {
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

// Operations that wait for a worker while the store is lost aren't made, and an
// operation that fails after that doesn't lose the store again.
func TestAccounts_IsLostOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var operations atomic.Int32
		accounts := opened(t, storeFunc(func(ctx context.Context, _ string, _, _ float64) (float64, error) {
			operations.Add(1)
			<-ctx.Done()
			return 0, ctx.Err()
		}))
		first := hostkey.Key{Host: "0.example", Port: "80"}
		answer := accounts.Ask(first, 500)
		for i := range 3 * workers {
			accounts.Ask(hostkey.Key{Host: fmt.Sprint(i+1, ".example"), Port: "80"}, 500)
		}
		time.Sleep(50 * time.Millisecond)
		accounts.Overdue(first, answer)
		lost := accounts.Link
		time.Sleep(patience + time.Second)
		synctest.Wait()
		assert.EqualValues(t, workers, operations.Load())
		assert.Equal(t, lost, accounts.Link)
	})
}

// Processes, and Transports of one process, may use different sizes for one
// account: during the roll-out of a new FleetBudget, and after SetPolicies. An
// account that is full for one of them must not be refilled for the others, nor
// look empty to them.
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
func TestAccounts_SweepsOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accounts := opened(t, storeFunc(hangingStore))
		for i := range Views {
			accounts.Views[hostkey.Key{Host: fmt.Sprint(i), Port: "80"}] = &view{Busy: true}
		}
		time.Sleep(10 * time.Second)
		accounts.Ask(hostkey.Key{Host: "new", Port: "80"}, 500)
		swept := accounts.Swept
		assert.Positive(t, swept)
		for _, v := range accounts.Views {
			v.Busy, v.Asked = false, -time.Hour
		}
		assert.Nil(t, accounts.Ask(hostkey.Key{Host: "new", Port: "80"}, 500))
		assert.Equal(t, swept, accounts.Swept)
		time.Sleep(time.Second)
		assert.NotNil(t, accounts.Ask(hostkey.Key{Host: "new", Port: "80"}, 500))
		assert.Len(t, accounts.Views, 1)
	})
}

// codeError is an error with code of its own.
type codeError struct{ text func() string }

func (e codeError) Error() string { return e.text() }

func hangingStore(ctx context.Context, _ string, _, _ float64) (float64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}
