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

// size returns the number of hosts in t.
func (t *Table) size() (n int) {
	for i := range t.sets.Load() {
		if s := t.sets.Load()[i].Load(); s != nil {
			for j := range s.hosts {
				if s.hosts[j].Load() != nil {
					n++
				}
			}
		}
	}
	return n
}

// Each host has one state, and hosts that differ only in the port have two.
func TestTable(t *testing.T) {
	var table Table
	seen := map[*Host]bool{}
	for i := range 200 {
		key := keyOf(i)
		h := table.Host(key, 0)
		key.Port = "8443"
		seen[h], seen[table.Host(key, 0)] = true, true
	}
	assert.Len(t, seen, 400)
	for i := range 200 {
		assert.True(t, seen[table.Host(keyOf(i), 0)])
	}
	assert.Equal(t, 400, table.size())
}

// Keys with the same hash are two hosts.
func TestTable_SameHash(t *testing.T) {
	var table Table
	h := table.Host(keyOf(1), 0)
	hash := max(1, keyOf(1).Hash())
	assert.Same(t, h, table.set(hash).find(hash, keyOf(1)))
	assert.Nil(t, table.set(hash).find(hash, keyOf(2)))
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
	assert.Equal(t, sets*perSet, table.size())
	assert.LessOrEqual(t, testenv.Heap()-before, int64(1<<20))
	runtime.KeepAlive(&table)
}

// The host of a set that has not been used for longest makes room, and comes back
// without hedges.
func TestTable_LeastUsedGoes(t *testing.T) {
	var table Table
	hosts := map[int]*Host{}
	var keys []int
	for i := 0; len(keys) < perSet+2; i++ {
		if max(1, keyOf(i).Hash())%sets == 0 {
			keys = append(keys, i)
		}
	}
	for n, i := range keys[:perSet] {
		hosts[i] = table.Host(keyOf(i), time.Duration(n))
		hosts[i].Begin(time.Duration(n), 0)
		hosts[i].saved = MostSaved * whole
	}
	hosts[keys[0]].Begin(time.Hour, 0)
	newest := table.Host(keyOf(keys[perSet]), time.Hour)
	for _, i := range keys[:perSet] {
		if i != keys[1] {
			assert.Same(t, hosts[i], table.Host(keyOf(i), time.Hour))
		}
	}
	again := table.Host(keyOf(keys[1]), time.Hour)
	assert.NotSame(t, hosts[keys[1]], again)
	table.Host(keyOf(keys[perSet+1]), time.Hour)
	assert.Same(t, newest, table.Host(keyOf(keys[perSet]), time.Hour), "a host before its first request is not the next to go")
	assert.Zero(t, again.saved)
	assert.Zero(t, hosts[keys[1]].Begin(time.Hour, 0), "an evicted host still works")
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
			h.Answered(rule, ms, false)
			h.Late(rule, true)
			h.Hedged(i%2 == 0)
			h.TimedOut(ms)
			h.Delay()
		}
	})
	assert.LessOrEqual(t, table.size(), sets*perSet)
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
			h.Answered(rule, time.Duration(i+1)*ms, false)
		}
		if i%2 == 0 {
			want[key] = time.Duration(i+1) * ms
		}
	}
	got := map[hostkey.Key]time.Duration{}
	table.All(func(key hostkey.Key, delay time.Duration) { got[key] = delay })
	assert.Equal(t, want, got)
}
