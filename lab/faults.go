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
	proxy *toxiproxy.Proxy
	draws *rand.Rand

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
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	f := &Faults{
		proxy:  toxiproxy.NewProxy(server, "lab", addr, upstream),
		draws:  rand.New(rand.NewPCG(seed, 2)),
		counts: map[string]int{},
	}
	return f, f.proxy.Start()
}

// Addr returns the host and port to connect to.
func (f *Faults) Addr() string { return f.proxy.Listen }

// Stop ends the proxy and all connections through it.
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
	{"limit_data", `"bytes": %d`, 0, 20000},
	{"bandwidth", `"rate": %d`, 50, 5000},
	{"slicer", `"average_size": %d, "size_variation": 16, "delay": 50`, 32, 1024},
	{"refuse", "", 0, 0}, // nobody listens, and all connections are gone
}

// Run makes faults until ctx ends: each for 5 to 40 ms, with a pause of up to
// 30 ms after it.
func (f *Faults) Run(ctx context.Context) error {
	for pause(ctx, time.Duration(f.draws.IntN(30))*time.Millisecond) {
		fault := networkFaults[f.draws.IntN(len(networkFaults))]
		last := time.Duration(5+f.draws.IntN(35)) * time.Millisecond
		f.mu.Lock()
		f.counts[fault.kind]++
		f.mu.Unlock()
		if fault.kind == "refuse" {
			f.proxy.Stop()
			pause(ctx, last)
			if err := f.proxy.Start(); err != nil {
				return err
			}
			continue
		}
		direction := []string{"upstream", "downstream"}[f.draws.IntN(2)]
		toxicity := []float64{0.3, 0.6, 1}[f.draws.IntN(3)] // the share of connections it befalls
		number := fault.lo + f.draws.IntN(fault.hi-fault.lo+1)
		toxic := fmt.Sprintf(`{"name": "fault", "type": %q, "stream": %q, "toxicity": %v, "attributes": {%s}}`,
			fault.kind, direction, toxicity, fmt.Sprintf(fault.attributes, number))
		if _, err := f.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			return err
		}
		pause(ctx, last)
		if err := f.proxy.Toxics.RemoveToxic(context.Background(), "fault"); err != nil {
			return err
		}
	}
	return nil
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
