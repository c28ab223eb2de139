// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A host's name is part of the string of its URL. Whoever chooses URLs must not
// be able to make the program keep them all: a query may be long.
func TestFleet_KeepsNoURLs(t *testing.T) {
	const hosts, query = 100, 1 << 20
	fleet := NewFleet(nil)
	tr := &Transport{Fleet: fleet, Policy: Policy{Backoff: Backoff{Base: Off}}, Base: alwaysAnswers(503)}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range hosts {
		long := strings.Repeat("x", query)
		u := fmt.Sprintf([]string{"http://%d.example:8080/?%s", "http://%d.example:8080/%s", "http://%d.example:8080/#%s"}[i%3], i, long)
		if i%4 == 0 {
			u = fmt.Sprintf("http://%s@%d.example:8080/", long, i)
		}
		_, err := get(t, tr, u)
		require.NoError(t, err)
	}
	grown := int64(heap()) - int64(before)
	assert.Less(t, grown, int64(hosts*query/10), "bytes kept for %d hosts", hosts)
	assert.Len(t, fleet.views, hosts)
	assert.Len(t, tr.HostStates(), hosts)
	runtime.KeepAlive(tr)
}
