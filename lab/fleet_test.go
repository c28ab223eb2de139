// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/contrib/fleetredis"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

func init() { redis.SetLogger(silent{}) }

// silent keeps go-redis from logging the faults that the tests cause.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// startRedis runs a redis-server for the test and returns its address.
func startRedis(t *testing.T) string {
	t.Helper()
	addr, err := FreeAddr()
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	startDaemon(t, "redis-server", "bind 127.0.0.1\nport "+port+"\nsave \"\"\nappendonly no\ndir $DIR\n", addr, "$DIR/config")
	return addr
}

// fleetClient is a program with a Fleet whose requests all fail.
type fleetClient struct {
	t         *testing.T
	transport *retrip.Transport
	hosts     int

	mu      sync.Mutex
	log     bytes.Buffer
	reasons map[retrip.Reason]int
	first   []time.Duration // time from the request to its first attempt
}

func (c *fleetClient) Write(line []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.Write(line)
}

func (c *fleetClient) lines(text string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Count(c.log.String(), text)
}

func newFleetClient(t *testing.T, store string) *fleetClient {
	t.Helper()
	accounts, err := fleetredis.Dial(&redis.UniversalOptions{Addrs: []string{store}}, fleetredis.Options{Fleet: "lab"})
	require.NoError(t, err)
	fleet := retrip.NewFleet(accounts.Add)
	t.Cleanup(func() {
		assert.NoError(t, fleet.Close())
		accounts.Close()
	})
	c := &fleetClient{t: t, reasons: map[retrip.Reason]int{}}
	c.transport = &retrip.Transport{
		Fleet: fleet, Logger: slog.New(slog.NewTextHandler(c, nil)),
		Policy: retrip.Policy{MaxAttempts: 2, FleetBudget: 10, Backoff: retrip.Backoff{Base: time.Millisecond, Cap: time.Millisecond}},
		Base:   play.Base(play.Reply(http.StatusServiceUnavailable)),
		Trace: &retrip.Trace{
			Attempt: func(e retrip.Event) {
				if e.Attempt == 1 {
					c.mu.Lock()
					defer c.mu.Unlock()
					c.first = append(c.first, e.Elapsed)
				}
			},
			Done: func(e retrip.Event) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.reasons[e.Reason]++
			},
		},
	}
	return c
}

// request makes a request to a new host, so that its level isn't known. It
// returns how long the request took, and the host.
func (c *fleetClient) request() (time.Duration, string) {
	c.t.Helper()
	c.hosts++
	host := fmt.Sprintf("%d.example", c.hosts)
	began := time.Now()
	testenv.Drop(c.t, c.transport, play.MustRequest(c.t, http.MethodGet, "http://"+host+"/", nil))
	return time.Since(began), host
}

// known makes a request, and reports whether the account answered in time.
func (c *fleetClient) known() bool {
	_, host := c.request()
	state, err := c.transport.HostState(host + ":80")
	require.NoError(c.t, err)
	return state.FleetSize > 0
}

// A store behind a network with faults never holds up requests, and works again
// when the faults end.
//
//retrip:promise P22
func TestFleet_StoreBehindFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("a store that was away is left alone for 5 to 15 s")
	}
	addr := startRedis(t)
	for name, toxic := range map[string]string{
		"latency":    `{"type": "latency", "attributes": {"latency": 2000}}`,
		"bandwidth":  `{"type": "bandwidth", "attributes": {"rate": 0}}`,
		"black hole": `{"type": "timeout", "attributes": {"timeout": 0}}`,
		"timeout":    `{"type": "timeout", "attributes": {"timeout": 2000}}`,
		"reset":      `{"type": "reset_peer", "attributes": {"timeout": 0}}`,
		"cut off":    `{"type": "limit_data", "attributes": {"bytes": 10}}`,
		"refused":    "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faults, err := NewFaults(1, addr)
			require.NoError(t, err)
			defer faults.Stop()
			c := newFleetClient(t, faults.Addr())
			require.True(t, within(time.Minute, c.known), "the store answers")

			faults.proxy.Stop()
			if toxic != "" {
				require.NoError(t, faults.start(toxic))
			}
			// A request that has asked just before may still get an answer.
			require.True(t, within(time.Minute, func() bool { return !c.known() }))
			clear(c.reasons)
			c.first = nil
			var took []time.Duration
			const requests = 200
			for range requests {
				d, _ := c.request()
				took = append(took, d)
			}
			slices.Sort(took)
			slices.Sort(c.first)
			assert.Equal(t, map[retrip.Reason]int{retrip.ReasonMaxAttempts: requests}, c.reasons, "the budgets alone")
			// On a real clock and a busy machine, the bound can't be tighter.
			// In virtual time, a test of internal/fleet checks the bound of
			// 50 ms.
			assert.Less(t, took[requests/2], 500*time.Millisecond, "nobody waits for a store that takes 2 s")
			assert.Less(t, took[requests-1], 2*time.Second)
			assert.Less(t, c.first[requests/2], 500*time.Millisecond)
			assert.Equal(t, 1, c.lines("the fleet's store is away"))

			if toxic != "" {
				faults.proxy.Stop()
			}
			require.NoError(t, faults.start(""))
			assert.True(t, within(2*time.Minute, c.known), "the store is back")
			assert.LessOrEqual(t, c.lines("the fleet's store is"), 4, "one line a minute")
		})
	}
}
