// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/statuspage"
)

const (
	replicas  = 5
	inventory = "inventory.internal" // gets GETs
	payments  = "payments.internal"  // gets POSTs without a key
)

// backend is the server for both hosts. It fails one request in fifty and, on
// cue, all requests for a host.
type backend struct {
	*httptest.Server
	inventoryDown, paymentsDown atomic.Bool
}

func newBackend() *backend {
	b := &backend{}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		down := &b.inventoryDown
		if r.Host == payments {
			down = &b.paymentsDown
		}
		if down.Load() || r.Host == inventory && rand.IntN(50) == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	return b
}

// replica is one program of the fleet.
type replica struct {
	transport *retrip.Transport
	base      *http.Transport
	metrics   *httptest.Server // serves /metrics and /debug/retrip
}

func newReplica(b *backend, log io.Writer) (*replica, error) {
	base := &http.Transport{
		MaxIdleConnsPerHost: 10,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, b.Listener.Addr().String())
		},
	}
	metrics := &retrip.Metrics{}
	registry := prometheus.NewRegistry()
	if err := registry.Register(metrics); err != nil {
		return nil, err
	}
	transport := &retrip.Transport{
		Base:    base,
		Policy:  retrip.Policy{AttemptTimeout: time.Second, Backoff: retrip.Backoff{Base: 20 * time.Millisecond, Cap: 200 * time.Millisecond}},
		Hosts:   map[string]retrip.Policy{inventory: {}, payments: {}},
		Metrics: metrics,
		// Records of single requests would fill the screen.
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: brief})),
	}
	if err := transport.Validate(); err != nil {
		return nil, err
	}
	transport.HostStates() // creates the series, at zero, before the first request
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/debug/retrip", statuspage.Handler(map[string]*retrip.Transport{"shop": transport}))
	return &replica{transport, base, httptest.NewServer(mux)}, nil
}

// brief omits attributes that only clutter the screen.
func brief(_ []string, a slog.Attr) slog.Attr {
	switch a.Key {
	case slog.TimeKey, "open_for", "paused_for", "breaker", "policy":
		return slog.Attr{}
	}
	return a
}

// hostRecords passes on only the log records about hosts.
type hostRecords struct {
	mu sync.Mutex
	to func(line string)
}

func (h *hostRecords) Write(record []byte) (int, error) {
	if line := string(record); strings.Contains(line, `"retrip: host"`) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.to(strings.TrimSpace(line))
	}
	return len(record), nil
}

// run makes requests until ctx ends: 20 GETs and 4 POSTs a second.
func (r *replica) run(ctx context.Context) {
	client := &http.Client{Transport: r.transport, Timeout: 2 * time.Second}
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		wg.Go(func() { call(ctx, client, http.MethodGet, inventory) })
		if i%5 == 0 {
			wg.Go(func() { call(ctx, client, http.MethodPost, payments) })
		}
	}
}

func call(ctx context.Context, client *http.Client, method, host string) {
	req, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://%s/", host), nil)
	if err != nil {
		panic(err) // the arguments are constants
	}
	if resp, err := client.Do(req); err == nil {
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

func (r *replica) close() {
	r.metrics.Close()
	r.base.CloseIdleConnections()
}
