// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/testenv"
)

// The stores are exported for the tests of package fleet_test too.

// StoreFunc is what a store does.
type StoreFunc = Add

// FixedStore returns a store whose accounts always have the given level.
func FixedStore(level float64) StoreFunc {
	return func(context.Context, string, float64, float64) (float64, error) { return level, nil }
}

// FullStore returns a store whose accounts are always full, and which answers late.
func FullStore(took time.Duration) StoreFunc {
	return fullStore(func() time.Duration { return took })
}

func fullStore(took func() time.Duration) StoreFunc {
	return func(_ context.Context, _ string, _, size float64) (float64, error) {
		<-time.After(took())
		return size, nil
	}
}

// FailingStore returns a store that always fails with err.
func FailingStore(err error) StoreFunc {
	return func(context.Context, string, float64, float64) (float64, error) { return 0, err }
}

// HangingStore is the function of a store that never answers.
func HangingStore(ctx context.Context, _ string, _, _ float64) (float64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// ErrRefused is the error of a store to which there is no connection.
var ErrRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

// CodeError is an error with code of its own.
type CodeError struct{ Text func() string }

func (e CodeError) Error() string { return e.Text() }

// BrokenStores are the ways in which a store fails.
var BrokenStores = map[string]StoreFunc{
	"an error":      FailingStore(errors.New("WRONGTYPE Operation against a key holding the wrong kind of value")),
	"no connection": FailingStore(ErrRefused),
	"no answer":     HangingStore,
	"negative":      FixedStore(-1),
	"NaN":           FixedStore(math.NaN()),
	"infinite":      FixedStore(math.Inf(1)),
	"panics":        func(context.Context, string, float64, float64) (float64, error) { panic("store") },
	"nil pointer": func(context.Context, string, float64, float64) (float64, error) {
		*map[int]*int{}[0] = 1
		return 0, nil
	},
	"ends its goroutine": func(context.Context, string, float64, float64) (float64, error) {
		runtime.Goexit()
		return 0, nil
	},
	// For example a mock that calls t.FailNow.
	"an error ends its goroutine": FailingStore(CodeError{func() string { runtime.Goexit(); return "" }}),
}

// fragile is a store with full accounts, until it breaks, or some of them do.
type fragile struct {
	broken     StoreFunc
	down       atomic.Bool
	accounts   func(host int) bool // that are broken; nil: all
	took       time.Duration       // by an account that works
	operations atomic.Int32        // since it broke, for accounts that are broken then
}

func (f *fragile) add(ctx context.Context, host string, tokens, size float64) (float64, error) {
	var i int
	_, _ = fmt.Sscanf(host, "%d.example", &i)
	if f.accounts == nil || f.accounts(i) {
		f.operations.Add(1)
		if f.down.Load() {
			return f.broken(ctx, host, tokens, size)
		}
	}
	time.Sleep(f.took)
	return size, nil
}

// breaks breaks f.
func (f *fragile) breaks() {
	f.down.Store(true)
	f.operations.Store(0)
}

// A share of the accounts is broken, however the store says so. The others stay
// in use, and the broken ones are left alone for a while.
//
//retrip:promise P22
func TestAccounts_BrokenAccounts(t *testing.T) {
	for name, broken := range BrokenStores {
		for _, share := range []struct{ broken, of int }{{1, 2}, {1, 10}, {1, 3}, {33, 100}}[:testenv.Size(2, 4)] {
			if share.of < 10 && name[:3] == "no " {
				// An error of the connection without an answer for another
				// account just before.
				continue
			}
			testenv.Bubble(t, fmt.Sprint(name, share), func(t *testing.T) {
				store := fragile{broken: broken, accounts: func(i int) bool { return i%share.of < share.broken }, took: time.Millisecond}
				accounts := opened(t, store.add)
				store.breaks()
				// The first operation of a process is for an account that
				// works, so that an error of a connection has a witness.
				<-accounts.Ask(key(share.of-1), 500)
				seconds := testenv.Size(40, 60)
				for range seconds * 10 {
					for i := range share.of {
						accounts.Ask(key(i), 500)
						time.Sleep(100 * time.Millisecond / time.Duration(share.of))
					}
					for i := share.broken; i < share.of; i++ {
						_, known := accounts.Level(key(i), 500)
						assert.True(t, known, "levels of accounts that work")
					}
				}
				n := int(store.operations.Load())
				assert.LessOrEqual(t, n, share.broken*(seconds/5+1))
				assert.GreaterOrEqual(t, n, share.broken*(seconds/17-1), "they are tried again")
			})
		}
	}
}

// Errors of connections, and errors of several accounts, are those of the
// store, which the process then leaves alone.
//
//retrip:promise P22
func TestAccounts_BrokenStore(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		most int
	}{
		"refused":   {ErrRefused, 1},
		"reset":     {fmt.Errorf("read: %w", syscall.ECONNRESET), 1},
		"closed":    {fmt.Errorf("store: %w", net.ErrClosed), 1},
		"the end":   {io.EOF, 1},
		"torn":      {io.ErrUnexpectedEOF, 1},
		"timeout":   {context.DeadlineExceeded, 1},
		"read-only": {errors.New("READONLY You can't write against a read only replica."), several},
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			store := fragile{broken: FailingStore(test.err)}
			accounts := opened(t, store.add)
			for i := range 50 {
				accounts.Ask(key(i), 500)
			}
			time.Sleep(witness + 2)
			store.breaks()
			for i := range 50 {
				accounts.Ask(key(i), 500)
				time.Sleep(90 * time.Millisecond)
			}
			assert.EqualValues(t, test.most, store.operations.Load())
			_, known := accounts.Level(key(49), 500)
			assert.False(t, known)
			time.Sleep(16 * time.Second)
			store.down.Store(false)
			for i := range 50 {
				<-accounts.Ask(key(i), 500)
				_, known := accounts.Level(key(i), 500)
				assert.True(t, known, "the store is well again")
			}
		})
	}
}
