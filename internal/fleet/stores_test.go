// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"math"
	"net"
	"runtime"
	"syscall"
	"time"
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
