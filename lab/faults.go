// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Faults is a proxy that subjects connections to network faults, one kind after
// another.
type Faults struct {
	server         *toxiproxy.ApiServer
	addr, upstream string
	proxy          *toxiproxy.Proxy
	draws          *rand.Rand
	total          atomic.Int64
}

// NewFaults starts a proxy in front of upstream, a host and port. The caller
// must call Stop.
func NewFaults(seed uint64, upstream string) (*Faults, error) {
	zerolog.SetGlobalLevel(zerolog.Disabled) // some toxics log past the server's logger
	addr, err := FreeAddr()
	if err != nil {
		return nil, err
	}
	f := &Faults{
		server:   toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()),
		addr:     addr,
		upstream: upstream,
		draws:    rand.New(rand.NewPCG(seed, 2)),
	}
	return f, f.start("")
}

// start starts the proxy, with a toxic in it if there is one. Adding a toxic to
// existing connections, or removing one from them, can deadlock toxiproxy; so
// each connection keeps the toxic that was active when it was opened.
func (f *Faults) start(toxic string) error {
	f.proxy = toxiproxy.NewProxy(f.server, "lab", f.addr, f.upstream)
	if toxic != "" {
		if _, err := f.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			return err
		}
	}
	return f.proxy.Start()
}

// Addr returns the host and port to connect to.
func (f *Faults) Addr() string { return f.addr }

// Stop stops the proxy and closes all its connections. It must be called after
// Run has returned.
func (f *Faults) Stop() { f.proxy.Stop() }

// Total returns the number of faults.
func (f *Faults) Total() int { return int(f.total.Load()) }

// networkFaults are toxics with their attributes; each use draws the
// attribute's value from the range. A timeout of 0 is a black hole.
var networkFaults = []struct {
	kind       string
	attributes string
	lo, hi     int
}{
	{"latency", `"latency": %[1]d, "jitter": %[1]d`, 1, 40},
	{"timeout", `"timeout": %d`, 1, 40},
	{"timeout", `"timeout": %d`, 0, 0},
	{"reset_peer", `"timeout": %d`, 0, 10},
	{"slow_close", `"delay": %d`, 1, 40},
	{"limit_data", `"bytes": %d`, 0, 50000},
	{"bandwidth", `"rate": %d`, 50, 5000},
	{"slicer", `"average_size": %d, "size_variation": 16, "delay": 50`, 32, 1024},
}

// Run makes faults until ctx ends. It alternates between a toxic for new
// connections and a break of all connections, followed by a moment in which
// nothing listens.
func (f *Faults) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		fault := networkFaults[f.draws.IntN(len(networkFaults))]
		direction := []string{"upstream", "downstream"}[f.draws.IntN(2)]
		toxicity := []float64{0.3, 0.6, 1}[f.draws.IntN(3)] // share of the connections affected
		number := fault.lo + f.draws.IntN(fault.hi-fault.lo+1)
		toxic := fmt.Sprintf(`{"name": "fault", "type": %q, "stream": %q, "toxicity": %v, "attributes": {%s}}`,
			fault.kind, direction, toxicity, fmt.Sprintf(fault.attributes, number))
		f.total.Add(2)
		if err := f.restart(ctx, toxic, 0, 60); err != nil {
			return err
		}
		if err := f.restart(ctx, "", f.draws.IntN(20), 500); err != nil {
			return err
		}
	}
	return nil
}

// restart closes all connections, stops listening for some milliseconds, and
// then applies the toxic to new connections, for at least a third of most
// milliseconds.
func (f *Faults) restart(ctx context.Context, toxic string, silence, most int) error {
	f.proxy.Stop()
	pause(ctx, time.Duration(silence)*time.Millisecond)
	if err := f.start(toxic); err != nil {
		return err
	}
	pause(ctx, time.Duration(most/3+f.draws.IntN(most-most/3))*time.Millisecond)
	return nil
}

// pause sleeps for d and reports whether ctx is still active.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
