// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
)

// withoutPlace fills the table of tr with hosts in use, until two hosts without a
// place share an entry.
func withoutPlace(tr *Transport) (one, other hostkey.Key, others *host.Entry) {
	first := map[*host.Entry]hostkey.Key{}
	for i := 0; ; i++ {
		key := hostkey.Key{Host: "host" + strconv.Itoa(i), Port: "443"}
		e := tr.hosts.PinNew(key, 0)
		if !e.Others {
			continue
		}
		if one, ok := first[e]; ok {
			return one, key, e
		}
		first[e] = key
	}
}

// Hosts without a place get their tokens back by successes, like other hosts.
//
//retrip:promise P15
func TestHostTable_OverflowRefills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := http.StatusServiceUnavailable
		tr := &Transport{Base: roundTripperFunc(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Body: http.NoBody}, nil
		})}
		get := func(key hostkey.Key) {
			drop(t, tr, must(http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+key.Host, nil)))
		}
		dead, alive, others := withoutPlace(tr)
		get(dead)
		get(dead)
		require.EqualValues(t, 2*budget.RetryCost, others.Debt.Missing())
		states := tr.HostStates()
		assert.Equal(t, HostState{Host: "others", Policy: "default", Held: true, Tokens: 4, Size: 5, FailedRetries: 2, Breaker: "closed"}, states[len(states)-1])
		assert.Equal(t, 2, must(tr.HostState(dead.String())).FailedRetries)

		status = http.StatusOK
		get(dead)
		assert.EqualValues(t, .8*budget.Token, others.Debt.Missing())
		for range 4 {
			get(alive)
		}
		assert.Zero(t, others.Debt.Missing(), "they share it")
		get(alive)
		assert.Nil(t, tr.hosts.PinGood(alive, 0))
	})
}
