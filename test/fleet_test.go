// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// answer returns a response to r with the given header lines.
func answer(r *http.Request, status int, lines ...string) *http.Response {
	resp, _ := play.Reply(status, lines...)(r)
	resp.Body, resp.Request = http.NoBody, r
	return resp
}

// getFrom returns the response to a GET, whose body it has closed.
func getFrom(t *testing.T, rt http.RoundTripper, url string) (*http.Response, error) {
	t.Helper()
	resp, err := rt.RoundTrip(play.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)))
	if resp != nil {
		resp.Body.Close()
	}
	return resp, err
}

//retrip:promise P14
func TestFleet_OutageCostsOneAttemptPerRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		perHost := map[string]int{}
		tr := &retrip.Transport{Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			perHost[r.URL.Host]++
			return answer(r, 503), nil
		})}
		const requests = 600 // ten minutes at one per second
		for range requests {
			for _, host := range []string{"a.example.com", "b.example.com"} {
				resp, err := getFrom(t, tr, "http://"+host+"/")
				require.NoError(t, err)
				require.Equal(t, 503, resp.StatusCode)
			}
			time.Sleep(time.Second)
		}
		assert.Equal(t, map[string]int{"a.example.com": requests + 7, "b.example.com": requests + 7}, perHost,
			"one attempt per request, and seven retries per host in all")
	})
}

//retrip:promise P14
func TestFleet_IndependentFailures(t *testing.T) {
	for _, tt := range []struct{ p, least float64 }{{0.1, 0.999}, {0.2, 0.99}, {0.3, 0.94}} {
		t.Run(fmt.Sprint(tt.p), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(1, 2))
				tr := &retrip.Transport{Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
					if random.Float64() < tt.p {
						return answer(r, 503), nil
					}
					return answer(r, 200), nil
				})}
				const requests = 20_000
				var ok int
				for range requests {
					if resp, err := getFrom(t, tr, "http://example.com/"); err == nil && resp.StatusCode == 200 {
						ok++
					}
				}
				assert.GreaterOrEqual(t, float64(ok)/requests, tt.least)
			})
		})
	}
}

// A Retry-After on a 503 holds back the retries of all requests to the host.
// Afterwards they come one by one.
//
//retrip:promise P9
func TestFleet_PauseIsHeardByTheWholeProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		var retries []time.Duration
		first := true
		tr := &retrip.Transport{Policy: retrip.Policy{Budget: retrip.Off}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			if since := time.Since(start); since > time.Second {
				retries = append(retries, since)
				return answer(r, 200), nil
			}
			if first {
				first = false
				return answer(r, 503, "Retry-After: 10"), nil
			}
			return answer(r, 500), nil // doesn't ask for a pause
		})}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				resp, err := getFrom(t, tr, "http://example.com/")
				assert.NoError(t, err)
				assert.Equal(t, 200, resp.StatusCode)
			})
			synctest.Wait() // the response with the Retry-After comes first
		}
		wg.Wait()
		require.Len(t, retries, 20)
		assert.GreaterOrEqual(t, retries[0], 10*time.Second, "never earlier than the server said")
		assert.Len(t, slices.Compact(slices.Clone(retries)), 20, "20 requests with the same Retry-After wait for 20 different times")
		assert.Greater(t, retries[19]-retries[0], 2*time.Second, "spread out")
		assert.Less(t, retries[19], 15*time.Second+time.Millisecond)
	})
}
