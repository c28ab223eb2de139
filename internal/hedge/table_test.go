// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package hedge

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/testenv"
)

func keyOf(i int) hostkey.Key {
	return hostkey.Key{Host: fmt.Sprintf("host-%d.example.com", i), Port: "443"}
}

// The table is bounded in hosts and in memory, also by what the caller's keys keep.
func TestTable_Bound(t *testing.T) {
	testenv.OneGoroutine(t)
	var table Table
	before := testenv.Heap()
	for i := range 50_000 {
		url := strings.Repeat("x", 1000) + keyOf(i).Host
		table.Host(hostkey.Key{Host: url[1000:], Port: "443"}, time.Duration(i))
	}
	assert.Equal(t, most, len(table.hosts))
	assert.LessOrEqual(t, testenv.Heap()-before, int64(1<<20))
	runtime.KeepAlive(&table)
}

// Of the hosts that are compared, the one that has not been used for longest makes room,
// and comes back without hedges.
func TestTable_LeastUsedGoes(t *testing.T) {
	var table Table
	hosts := map[hostkey.Key]*Host{}
	for i := range compared {
		h := table.Host(keyOf(i), 0)
		h.Begin(time.Duration(i+1), 0)
		h.saved = MostSaved * whole
		hosts[keyOf(i)] = h
	}
	oldest := keyOf(3)
	hosts[oldest].last = 0
	table.makeRoom()
	require.Len(t, table.hosts, compared-1)
	for key, h := range table.hosts {
		assert.Same(t, hosts[key], h)
	}
	again := table.Host(oldest, time.Hour)
	assert.NotSame(t, hosts[oldest], again)
	assert.Zero(t, again.saved)
	table.makeRoom()
	assert.Same(t, again, table.Host(oldest, time.Hour), "a host before its first request is not the next to go")
	assert.Zero(t, hosts[oldest].Begin(time.Hour, 0), "an evicted host still works")
}

// Whoever comes first makes a host, and all get the same one, also while others go.
func TestTable_Concurrent(t *testing.T) {
	var table Table
	const goroutines, few, many = 8, 100, 5000
	var got [goroutines][few]*Host
	each := func(f func(g int)) {
		var done sync.WaitGroup
		for g := range goroutines {
			done.Go(func() { f(g) })
		}
		done.Wait()
	}
	each(func(g int) {
		for i := range few {
			got[g][i] = table.Host(keyOf(i), 0)
		}
	})
	for g := range goroutines {
		for i := range few {
			require.Same(t, got[0][i], got[g][i])
		}
	}
	each(func(g int) {
		for i := range many {
			h := table.Host(keyOf(i), time.Duration(i))
			h.Begin(time.Duration(i), 0)
			h.RecordAnswer(rule, ms, false)
			h.Late(rule, ms, true)
			h.RecordHedge(i%2 == 0)
			h.RecordTimeout(rule, ms)
			h.Delay()
		}
	})
	assert.LessOrEqual(t, len(table.hosts), most)
}

// All has the hosts whose delay is known, and no others.
func TestTable_All(t *testing.T) {
	var table Table
	table.All(func(hostkey.Key, time.Duration) { t.Error("there is no host") })
	want := map[hostkey.Key]time.Duration{}
	for i := range 300 {
		key := hostkey.Key{Host: fmt.Sprint("host-", i), Port: "443"}
		h := table.Host(key, 0)
		for range Warmup - i%2 {
			h.RecordAnswer(rule, time.Duration(i+1)*ms, false)
		}
		if i%2 == 0 {
			want[key] = time.Duration(i+1) * ms
		}
	}
	got := map[hostkey.Key]time.Duration{}
	table.All(func(key hostkey.Key, delay time.Duration) { got[key] = delay })
	assert.Equal(t, want, got)
}
