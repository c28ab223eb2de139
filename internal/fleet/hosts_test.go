// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// A host has exactly one account, whose name is bounded and the same for all
// spellings of the host. So have what the Transport knows, and its policies.
//
//retrip:promise P22
func TestFleet_HostNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		f, base := opened(t, l.add), play.Base(play.Reply(503))
		for pattern, spellings := range map[string][]string{
			"a.example": {"a.example", "A.Example", "a.example:80", "u:p@a.example"},
			"[::1]":     {"[::1]", "[0:0:0:0:0:0:0:1]", "[::0001]:80", "[0::1]:080"},
		} {
			tr := &retrip.Transport{Fleet: f, Policy: steady, Base: base, Hosts: map[string]retrip.Policy{pattern: {}}}
			for _, host := range spellings {
				testenv.Drop(t, tr, play.MustRequest(t, http.MethodGet, "http://"+host+"/x", nil))
				time.Sleep(2 * time.Second)
				states := tr.HostStates()
				require.Len(t, states, 1, host)
				assert.Equal(t, pattern, states[0].Policy, host)
			}
			assert.Equal(t, map[string]float64{pattern + ":80": 175}, l.accounts())
		}
		tr := &retrip.Transport{Fleet: f, Policy: steady, Base: base}
		for _, host := range []string{strings.Repeat("x", 10_000), "a\r\nFLUSHALL\r\n", "{x}*?[", "a:b:c"} {
			req := requestTo(t, "a")
			req.URL.Host = host
			_ = testenv.Try(tr, req)
		}
		for host := range l.accounts() {
			assert.LessOrEqual(t, len(host), len(":65535")+255)
		}
	})
}

// A host's name is part of the string of its URL. Whoever chooses URLs must not
// be able to make the program keep them all: a query may be long.
//
//retrip:promise P22
func TestFleet_KeepsNoURLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hosts, query = 100, 1 << 20
		tr := &retrip.Transport{Fleet: retrip.NewFleet(nil), Policy: play.AtOnce, Base: always(play.Reply(503))}
		before := testenv.Heap()
		for i := range hosts {
			url := fmt.Sprintf([]string{
				"http://%[1]d.example:8080/?%[2]s", "http://%[1]d.example:8080/%[2]s", "http://%[1]d.example:8080/#%[2]s", "http://%[2]s@%[1]d.example:8080/",
			}[i%4], i, strings.Repeat("x", query))
			testenv.Drop(t, tr, play.MustRequest(t, http.MethodGet, url, nil))
		}
		assert.Less(t, testenv.Heap()-before, int64(hosts*query/10), "bytes kept for %d hosts", hosts)
		states := tr.HostStates()
		assert.Len(t, states, hosts)
		for _, state := range states {
			assert.Equal(t, 175.0, state.FleetSize, "the Fleet knows %s", state.Host)
		}
		runtime.KeepAlive(tr)
	})
}
