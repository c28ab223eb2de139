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
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/hostkey"
)

func key(i int) hostkey.Key { return hostkey.Key{Host: fmt.Sprint(i, ".example"), Port: "80"} }

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

// A share of the accounts is broken, however the store says so. The others stay
// in use, and the broken ones are left alone for a while.
//
//retrip:promise P22
func TestAccounts_BrokenAccounts(t *testing.T) {
	kinds := map[string]StoreFunc{
		"wrong type": func(context.Context, string, float64, float64) (float64, error) {
			return 0, errors.New("WRONGTYPE Operation against a key holding the wrong kind of value")
		},
		"panics": func(context.Context, string, float64, float64) (float64, error) { panic("store") },
		"ends its goroutine": func(context.Context, string, float64, float64) (float64, error) {
			runtime.Goexit()
			return 0, nil
		},
		"impossible": FixedStore(math.NaN()),
		"a node refuses connections": func(context.Context, string, float64, float64) (float64, error) {
			return 0, errRefused
		},
		"a node hangs": HangingStore,
	}
	for name, broken := range kinds {
		for _, share := range []struct{ broken, of int }{{1, 2}, {1, 10}, {1, 3}, {33, 100}} {
			if share.broken == 1 && share.of < 10 && name[:2] == "a " {
				// An error of the connection without an answer for another
				// account just before.
				continue
			}
			t.Run(fmt.Sprint(name, share), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var onBroken atomic.Int32
					accounts := opened(t, StoreFunc(func(ctx context.Context, host string, tokens, size float64) (float64, error) {
						var i int
						fmt.Sscanf(host, "%d.example", &i)
						if i%share.of < share.broken {
							onBroken.Add(1)
							return broken(ctx, host, tokens, size)
						}
						time.Sleep(time.Millisecond)
						return size, nil
					}))
					// The first operation of a process is for an account that
					// works, so that an error of a connection has a witness.
					<-accounts.Ask(key(share.of-1), 500)
					const seconds = 60
					unknown := 0
					for range seconds * 10 {
						for i := range share.of {
							accounts.Ask(key(i), 500)
							time.Sleep(100 * time.Millisecond / time.Duration(share.of))
						}
						for i := share.broken; i < share.of; i++ {
							if _, known := accounts.Level(key(i), 500); !known {
								unknown++
							}
						}
					}
					assert.Zero(t, unknown, "levels of accounts that work")
					assert.LessOrEqual(t, int(onBroken.Load()), share.broken*(seconds/5+1))
					assert.GreaterOrEqual(t, int(onBroken.Load()), share.broken*(seconds/17-1), "they are tried again")
				})
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
		"refused":   {errRefused, 1},
		"reset":     {fmt.Errorf("read: %w", syscall.ECONNRESET), 1},
		"closed":    {fmt.Errorf("store: %w", net.ErrClosed), 1},
		"the end":   {io.EOF, 1},
		"torn":      {io.ErrUnexpectedEOF, 1},
		"timeout":   {context.DeadlineExceeded, 1},
		"read-only": {errors.New("READONLY You can't write against a read only replica."), several},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var operations atomic.Int32
				var down atomic.Bool
				accounts := opened(t, StoreFunc(func(_ context.Context, _ string, _, size float64) (float64, error) {
					operations.Add(1)
					if down.Load() {
						return 0, test.err
					}
					return size, nil
				}))
				for i := range 50 {
					accounts.Ask(key(i), 500)
				}
				time.Sleep(witness + 2)
				down.Store(true)
				operations.Store(0)
				for i := range 50 {
					accounts.Ask(key(i), 500)
					time.Sleep(90 * time.Millisecond)
				}
				assert.EqualValues(t, test.most, operations.Load())
				_, known := accounts.Level(key(49), 500)
				assert.False(t, known)
				time.Sleep(16 * time.Second)
				down.Store(false)
				for i := range 50 {
					<-accounts.Ask(key(i), 500)
					_, known := accounts.Level(key(i), 500)
					assert.True(t, known, "the store is well again")
				}
			})
		})
	}
}

// A store that stops working in the middle of much traffic costs each account
// at most one operation.
func TestAccounts_StoreBreaksUnderLoad(t *testing.T) {
	for name, broken := range map[string]StoreFunc{
		"refused": func(context.Context, string, float64, float64) (float64, error) { return 0, errRefused },
		"hangs":   HangingStore,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const hosts = 100
				var operations atomic.Int32
				var down atomic.Bool
				accounts := opened(t, StoreFunc(func(ctx context.Context, host string, tokens, size float64) (float64, error) {
					operations.Add(1)
					if down.Load() {
						return broken(ctx, host, tokens, size)
					}
					return size, nil
				}))
				for range 3 {
					for i := range hosts {
						accounts.Ask(key(i), 500)
						time.Sleep(11 * time.Millisecond)
					}
				}
				down.Store(true)
				operations.Store(0)
				waited := 0
				for range 5 {
					for i := range hosts {
						if answer := accounts.Ask(key(i), 500); answer != nil {
							waited++
							began := time.Now()
							select {
							case <-answer:
							case <-time.After(11 * time.Millisecond):
								time.AfterFunc(39*time.Millisecond, func() { accounts.Overdue(key(i), answer) })
							}
							time.Sleep(11*time.Millisecond - time.Since(began))
						} else {
							time.Sleep(11 * time.Millisecond)
						}
					}
				}
				assert.LessOrEqual(t, int(operations.Load()), hosts)
				assert.LessOrEqual(t, waited, hosts, "requests that waited")
				assert.Positive(t, waited)
			})
		})
	}
}
