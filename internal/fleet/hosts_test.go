// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
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
	"github.com/retrip/retrip/internal/testenv"
)

// A host has exactly one account, whose name is bounded and the same for all
// spellings of the host.
//
//retrip:promise P22
func TestFleet_HostNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := map[string]bool{}
		fleet := opened(t, storeFunc(func(_ context.Context, host string, _, size float64) (float64, error) {
			asked[host] = true
			return size, nil
		}))
		tr := &retrip.Transport{Fleet: fleet, Policy: steady, Base: alwaysAnswers(503)}
		for _, u := range []string{"http://a.example/", "http://A.Example/x", "http://a.example:80/", "http://u:p@a.example/"} {
			_, err := get(t, tr, u)
			require.NoError(t, err)
			time.Sleep(2 * time.Second)
		}
		assert.Equal(t, map[string]bool{"a.example:80": true}, asked)
		clear(asked)
		// The same goes for addresses, for what the Transport knows, and for its
		// policies.
		pattern := "[::1]"
		tr = &retrip.Transport{Fleet: fleet, Policy: steady, Base: alwaysAnswers(503), Hosts: map[string]retrip.Policy{pattern: {}}}
		for _, u := range []string{"http://[::1]/", "http://[0:0:0:0:0:0:0:1]/", "http://[::0001]:80/", "http://[0::1]:080/"} {
			_, err := get(t, tr, u)
			require.NoError(t, err)
			time.Sleep(2 * time.Second)
			states := tr.HostStates()
			require.Len(t, states, 1, u)
			assert.Equal(t, pattern, states[0].Policy, u)
		}
		assert.Equal(t, map[string]bool{"[::1]:80": true}, asked)
		clear(asked)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a.example/", nil)
		require.NoError(t, err)
		for _, host := range []string{strings.Repeat("x", 10_000), "a\r\nFLUSHALL\r\n", "{x}*?[", "a:b:c"} {
			req.URL.Host = host
			resp, err := tr.RoundTrip(req)
			if err == nil {
				resp.Body.Close()
			}
		}
		for host := range asked {
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
		fleet := retrip.NewFleet(nil)
		tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}, Base: alwaysAnswers(503)}
		before := testenv.Heap()
		for i := range hosts {
			long := strings.Repeat("x", query)
			u := fmt.Sprintf([]string{"http://%d.example:8080/?%s", "http://%d.example:8080/%s", "http://%d.example:8080/#%s"}[i%3], i, long)
			if i%4 == 0 {
				u = fmt.Sprintf("http://%s@%d.example:8080/", long, i)
			}
			_, err := get(t, tr, u)
			require.NoError(t, err)
		}
		grown := testenv.Heap() - before
		assert.Less(t, grown, int64(hosts*query/10), "bytes kept for %d hosts", hosts)
		states := tr.HostStates()
		assert.Len(t, states, hosts)
		for _, state := range states {
			assert.Equal(t, 175.0, state.FleetSize, "the Fleet knows %s", state.Host)
		}
		runtime.KeepAlive(tr)
	})
}
