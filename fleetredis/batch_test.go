// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleetredis

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// far forwards connections to address, whose answers it delays.
func far(t *testing.T, address string, delay time.Duration) (through string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	type piece struct {
		at   time.Time
		data []byte
	}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", address)
			if err != nil {
				near.Close()
				continue
			}
			go func() {
				defer server.Close()
				for buf := make([]byte, 64<<10); ; {
					n, err := near.Read(buf)
					if _, failed := server.Write(buf[:n]); err != nil || failed != nil {
						return
					}
				}
			}()
			pieces := make(chan piece, 10_000)
			go func() {
				defer close(pieces)
				for {
					buf := make([]byte, 64<<10)
					n, err := server.Read(buf)
					pieces <- piece{time.Now().Add(delay), buf[:n]}
					if err != nil {
						return
					}
				}
			}()
			go func() {
				defer near.Close()
				for p := range pieces {
					<-time.After(time.Until(p.at))
					near.Write(p.data)
				}
			}()
		}
	}()
	return l.Addr().String()
}

// Many hosts begin to fail at once, with few connections to a server that is
// far away. The accounts, which are all empty, decide about the retries. How many
// depends here on what else the machine does: TestAccounts_ManyHostsAtOnce bounds it in
// virtual time.
//
//retrip:promise P22
func TestFleet_ManyHostsFarAway(t *testing.T) {
	for _, delay := range []time.Duration{0, 40 * time.Millisecond} {
		t.Run(delay.String(), func(t *testing.T) {
			const hosts = 1000
			srv := start(t, "")
			near := dial(t, srv.address, Options{})
			for i := range hosts {
				add(t, near, fmt.Sprintf("%d.example:80", i), -10, 10)
			}
			store := dial(t, far(t, srv.address, delay), Options{})
			require.Eventually(t, func() bool { return store.client.PoolStats().IdleConns > 0 }, 10*time.Second, 10*time.Millisecond)
			fleet := retrip.NewFleet(store.Add)
			defer fleet.Close()
			var decided, requests atomic.Int64
			var watching atomic.Bool
			tr := &retrip.Transport{
				Fleet: fleet, Policy: retrip.Policy{MaxAttempts: 2, FleetBudget: 10, Backoff: retrip.Backoff{Base: 100 * time.Millisecond}},
				Base: baseFunc(func(r *http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: 503, Body: http.NoBody, Request: r}, nil
				}),
				Trace: &retrip.Trace{GiveUp: func(e retrip.Event) {
					if watching.Load() {
						requests.Add(1)
						if e.Reason == retrip.ReasonFleetBudget {
							decided.Add(1)
						}
					}
				}},
			}
			began := time.Now()
			var clients sync.WaitGroup
			for i := range hosts {
				clients.Go(func() {
					for time.Since(began) < 4*time.Second {
						req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://%d.example/", i), nil)
						if !assert.NoError(t, err) {
							return
						}
						resp, err := tr.RoundTrip(req)
						if !assert.NoError(t, err) {
							return
						}
						resp.Body.Close()
						<-time.After(700 * time.Millisecond)
					}
				})
			}
			<-time.After(time.Until(began.Add(time.Second)))
			watching.Store(true)
			clients.Wait()
			assert.Positive(t, decided.Load(), "of %d", requests.Load())
			assert.LessOrEqual(t, store.client.PoolStats().TotalConns, uint32(lines))
			t.Logf("%d of %d", decided.Load(), requests.Load())
		})
	}
}

// An operation whose caller has gone isn't sent.
func TestStore_GoneCallers(t *testing.T) {
	srv := start(t, "")
	s := dial(t, srv.address, Options{})
	server := &queue{lines: lines} // all round trips are under way
	s.queues.all = map[redis.UniversalClient]*queue{s.client: server}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := s.Add(ctx, "gone.example:80", -1, 10)
		failed <- err
	}()
	go func() {
		_, err := s.Add(t.Context(), "here.example:80", -1, 10)
		failed <- err
	}()
	due := func() bool {
		s.queues.mu.Lock()
		defer s.queues.mu.Unlock()
		return len(server.due) == 2
	}
	require.Eventually(t, due, 10*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	s.queues.send(s.client, server)
	require.NoError(t, <-failed)
	keys, err := s.client.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	assert.Equal(t, []string{s.prefix + "here.example:80"}, keys)
}

// Each operation of a round trip has a result of its own.
func TestStore_BatchWithErrors(t *testing.T) {
	srv := start(t, "")
	s := dial(t, srv.address, Options{})
	require.NoError(t, s.client.LPush(t.Context(), s.prefix+"1.example:80", "x").Err())
	require.NoError(t, s.client.ScriptFlush(t.Context()).Err())
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			level, err := s.Add(t.Context(), fmt.Sprintf("%d.example:80", i), -float64(i), 1000)
			if i == 1 {
				assert.True(t, redis.HasErrorPrefix(err, "WRONGTYPE"), "%v", err)
			} else if assert.NoError(t, err) {
				assert.Equal(t, 1000-float64(i), level)
			}
		})
	}
	wg.Wait()
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	assert.Empty(t, s.queues.all)
}
