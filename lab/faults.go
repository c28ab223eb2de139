// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Faults is a proxy that does to connections what networks do to them, one
// thing after the other.
type Faults struct {
	server         *toxiproxy.ApiServer
	addr, upstream string
	proxy          *toxiproxy.Proxy
	draws          *rand.Rand

	mu     sync.Mutex
	counts map[string]int
}

// NewFaults starts a proxy in front of upstream, a host and port. The caller
// ends it with Stop.
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
		counts:   map[string]int{},
	}
	return f, f.start("")
}

// start starts the proxy with a toxic in it, if there is one. Adding one to
// connections that exist, or taking it away from them, can lock toxiproxy up
// for ever: so they get what is there when they are opened.
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

// Stop ends the proxy and all connections through it, after Run has returned.
func (f *Faults) Stop() { f.proxy.Stop() }

// Total returns how many faults there were.
func (f *Faults) Total() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := 0
	for _, n := range f.counts {
		sum += n
	}
	return sum
}

// String lists how many faults of each kind there were.
func (f *Faults) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprint(f.counts)
}

// networkFaults are toxics and their attributes, with a number to be drawn in
// each from the range. A timeout of 0 is a black hole.
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

// Run makes faults until ctx ends, in turn: a toxic for new connections, and an
// end of all connections with a moment in which nobody listens.
func (f *Faults) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		fault := networkFaults[f.draws.IntN(len(networkFaults))]
		direction := []string{"upstream", "downstream"}[f.draws.IntN(2)]
		toxicity := []float64{0.3, 0.6, 1}[f.draws.IntN(3)] // the share of connections it befalls
		number := fault.lo + f.draws.IntN(fault.hi-fault.lo+1)
		toxic := fmt.Sprintf(`{"name": "fault", "type": %q, "stream": %q, "toxicity": %v, "attributes": {%s}}`,
			fault.kind, direction, toxicity, fmt.Sprintf(fault.attributes, number))
		f.count(fault.kind)
		if err := f.restart(ctx, toxic, 0, 60); err != nil {
			return err
		}
		f.count("refuse")
		if err := f.restart(ctx, "", f.draws.IntN(20), 500); err != nil {
			return err
		}
	}
	return nil
}

// restart ends all connections, lets nobody listen for some milliseconds, and
// has the toxic for the connections opened after that, for a third of most
// milliseconds at least.
func (f *Faults) restart(ctx context.Context, toxic string, silence, most int) error {
	f.proxy.Stop()
	pause(ctx, time.Duration(silence)*time.Millisecond)
	if err := f.start(toxic); err != nil {
		return err
	}
	pause(ctx, time.Duration(most/3+f.draws.IntN(most-most/3))*time.Millisecond)
	return nil
}

func (f *Faults) count(kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[kind]++
}

// pause lets d pass, and reports whether ctx has not ended meanwhile.
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
