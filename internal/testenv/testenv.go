// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package testenv decides which slow tests run, and how much of them.
package testenv

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

// Go126 reports whether net/http is that of Go 1.26. Later ones drain an HTTP/1 response
// body after an early Close, for at most 256 KiB and 50 ms, and keep the connection
// (https://go.dev/issue/77370); don't repeat a request after HTTP/2's PROTOCOL_ERROR; and
// let a handler that has answered read no body that the client has held back (Expect).
var Go126 = strings.HasPrefix(runtime.Version(), "go1.26")

// Slow skips a test that takes a second or more if -short is set.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: left out with -short")
	}
}

// OneGoroutine skips a slow test that starts no goroutine if the race detector
// is on: it could find nothing there, and takes ten times as long.
func OneGoroutine(t testing.TB) {
	t.Helper()
	if Race {
		t.Skip("no goroutines: left out with -race")
	}
}

// Tables reports whether `make tables` runs. It runs all rows, seeds and steps
// of the long tests; `go test` alone runs the most important.
func Tables() bool { return os.Getenv("RETRIP_TABLES") != "" }

// Size returns all if `make tables` runs, a quarter of usual with -race -short, and usual
// otherwise. A race that many seeds show, a few show too.
func Size(usual, all int) int {
	switch {
	case Tables():
		return all
	case Race && testing.Short():
		return (usual + 3) / 4
	}
	return usual
}

func Heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// RareGC is the TestMain of a package whose tests produce much garbage on a small
// heap, which would be collected again and again.
func RareGC(m *testing.M) {
	debug.SetGCPercent(1600)
	m.Run()
}
