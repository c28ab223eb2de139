// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// limitBench is the server of a RateLimit as a RoundTripper on the bubble's
// time: no event queue.
type limitBench struct {
	m       RateLimit
	began   time.Time
	servers []limitServer

	mu                sync.Mutex
	network           *source
	accepted, refused int
	last              time.Duration
}

func (b *limitBench) way() {
	b.mu.Lock()
	d := b.m.DelayLow + time.Duration(b.network.below(uint64(b.m.DelayHigh-b.m.DelayLow)+1))
	b.mu.Unlock()
	time.Sleep(d)
}

func (b *limitBench) RoundTrip(req *http.Request) (*http.Response, error) {
	tenant, _ := strconv.Atoi(req.Header.Get("Tenant"))
	b.way()
	b.mu.Lock()
	ok, exact := b.servers[tenant].arrive(time.Since(b.began))
	b.mu.Unlock()
	resp := answer(req, http.StatusOK)
	if ok {
		time.Sleep(b.m.Service)
		b.mu.Lock()
		leave(b.servers[tenant])
		b.mu.Unlock()
	} else {
		resp.StatusCode = http.StatusTooManyRequests
		if word := b.m.Limit.Word.of(exact); word > 0 {
			resp.Header = http.Header{"Retry-After-Ms": {strconv.FormatInt((word + time.Millisecond - 1).Milliseconds(), 10)}}
		}
	}
	b.way()
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Since(b.began)
	if now >= b.m.WarmUp && now < b.m.Horizon {
		if ok {
			b.accepted++
		} else {
			b.refused++
		}
	}
	if ok {
		b.last = now
	}
	return resp, nil
}

// Real Transports get the share of the limits that the simulator predicts,
// within 3 points; 6 in the single minute after a limit falls, and where processes share a limit,
// since chance sometimes lets both find their pace again.
//
//retrip:promise P23
func TestRateLimit_Transports(t *testing.T) {
	for _, name := range []string{
		"1/s, burst 1, 50 workers",
		"0.1/s, burst 1, always 10 s",
		"10/s, burst 10, always 1 s",
		"10/s, burst 10, no word",
		"10/s, burst 1, no word",
		"10/s, burst 10, always 5 s, 600 workers",
		"600 in each 60 s, MaxWait 60 s",
		"one pause of 8 s, 200 at once",
		"100/s falls to 10/s: the minute after",
		"10/s, burst 10, 2 processes",
		"keys with 1/s and 100/s, a gate each",
	} {
		if brief && strings.Contains(name, "600 workers") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := rateLimitCase(t, name)
			want := m.run(t)
			synctest.Test(t, func(t *testing.T) {
				b := &limitBench{m: m, began: time.Now(), servers: m.servers(), network: newSource(m.Seed+7, 1)}
				policy := m.Policy
				policy.Dialects = []string{"retry-after-ms"}
				if m.GatePerTenant {
					policy.Gate.Key = func(r *http.Request) string { return r.Header.Get("Tenant") }
				}
				var wg sync.WaitGroup
				for range m.Processes {
					tr := &retrip.Transport{Base: b, Policy: policy}
					send := func(k int) {
						req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/", nil)
						require.NoError(t, err)
						req.Header.Set("Tenant", strconv.Itoa(k%len(b.servers)))
						if resp, err := tr.RoundTrip(req); err != nil || resp.StatusCode != http.StatusOK {
							time.Sleep(50 * time.Millisecond)
						}
					}
					for k := range m.Workers {
						wg.Go(func() {
							for time.Since(b.began) < m.Horizon {
								send(k)
							}
						})
					}
					for k := range m.Burst {
						wg.Go(func() {
							time.Sleep(m.BurstAt)
							send(k)
						})
					}
				}
				wg.Wait()
				if want.Used > 0 {
					allowed := 0.0
					for _, s := range b.servers {
						allowed += s.allows(m.WarmUp, m.Horizon)
					}
					used := float64(b.accepted) / allowed
					t.Logf("%.1f %% and %.1f %% refused, simulated %.1f and %.1f", 100*used, 100*float64(b.refused)/float64(b.accepted), 100*want.Used, 100*want.Refusals)
					delta := .03
					if m.Limit.Meanwhile > 0 || m.Processes > 1 {
						delta = .06
					}
					assert.InDelta(t, want.Used, used, delta)
					assert.InDelta(t, want.Refusals, float64(b.refused)/float64(b.accepted), delta)
				} else {
					assert.InDelta(t, want.Last.Seconds(), b.last.Seconds(), 1.5)
				}
			})
		})
	}
}
