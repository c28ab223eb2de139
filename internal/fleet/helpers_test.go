// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/fleet"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

var fixedStore, fullStore, failingStore = fleet.FixedStore, fleet.FullStore, fleet.FailingStore

// opened returns a Fleet that has to be closed without an error in the end.
func opened(t *testing.T, store fleet.StoreFunc) *retrip.Fleet {
	t.Helper()
	f := retrip.NewFleet(store)
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	return f
}

// ledger is a store whose accounts are full, unless they are all empty. It notes its operations.
type ledger struct {
	took  time.Duration // by each operation
	empty atomic.Bool

	mu         sync.Mutex
	asks, adds int
	spent      float64
	sizes      map[string]float64 // by account
}

func (l *ledger) add(_ context.Context, host string, tokens, size float64) (float64, error) {
	l.mu.Lock()
	if tokens == 0 {
		l.asks++
	} else {
		l.adds++
	}
	l.spent -= tokens
	if l.sizes == nil {
		l.sizes = map[string]float64{}
	}
	l.sizes[host] = size
	l.mu.Unlock()
	<-time.After(l.took)
	if l.empty.Load() {
		return 0, nil
	}
	return size, nil
}

// noted returns the numbers of operations since the last call, and the tokens spent in all.
func (l *ledger) noted() (asks, adds int, spent float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	asks, adds, spent = l.asks, l.adds, l.spent
	l.asks, l.adds = 0, 0
	return asks, adds, spent
}

// accounts returns the sizes of the accounts of which l has heard since the last call.
func (l *ledger) accounts() (sizes map[string]float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sizes, l.sizes = l.sizes, nil
	return sizes
}

// requestTo returns a request to a host of the given name.
func requestTo(t testing.TB, host any) *http.Request {
	return play.MustRequest(t, http.MethodGet, fmt.Sprintf("http://%v.example/", host), nil)
}

// get makes a request to a host of the given name, and doesn't read the response.
func get(t testing.TB, rt http.RoundTripper, host any) *http.Response {
	t.Helper()
	resp, err := rt.RoundTrip(requestTo(t, host))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp
}

// always is a Base that makes the same step for each request, and keeps none.
func always(step play.Step) testenv.RoundTripper { return testenv.RoundTripper(step) }

// steady makes up to four attempts, 100 ms apart.
var steady = retrip.Policy{Backoff: retrip.Backoff{Base: 100 * time.Millisecond, Cap: 100 * time.Millisecond, Jitter: retrip.NoJitter}}

// twice makes up to two attempts.
func twice(wait time.Duration) retrip.Policy {
	return retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: wait, Jitter: retrip.NoJitter}}
}
