// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Command soak puts a Transport under load with faults, over HTTP/1.1,
// HTTPS+HTTP/2 and h2c at once, and watches what the process holds: heap,
// goroutines, connections, states of hosts. It exits with status 1 if one of
// them grows, or if something is left at the end, or if a POST without a key
// was executed twice.
//
// The servers and toxiproxy run in a process of their own, so that what they
// hold is not counted.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/lab"
)

func main() {
	log.SetFlags(0)
	duration := flag.Duration("duration", 10*time.Second, "how long to run")
	seed := flag.Uint64("seed", 1, "of requests and faults")
	callers := flag.Int("callers", 8, "per protocol")
	serve := flag.Bool("serve", false, "be the other process: servers behind faults, until standard input ends")
	flag.Parse()
	run := func() error { return soak(*duration, *seed, *callers) }
	if *serve {
		run = func() error { return servers(*seed) }
	}
	if err := run(); err != nil {
		log.Fatal("soak: ", err)
	}
}

// far is what the other process says at its start.
type far struct {
	Addr map[lab.Proto]string
	Cert []byte // DER
}

// sums are what it says at its end.
type sums struct{ Arrivals, NetworkFaults, ServerFaults, Duplicates, Corrupt int }

// servers runs a server behind faults for each protocol.
func servers(seed uint64) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	hello := far{Addr: map[lab.Proto]string{}}
	var ledgers []*lab.Ledger
	var proxies []*lab.Faults
	var stops []func()
	var wg sync.WaitGroup
	errs := make(chan error, len(lab.Protos))
	for i, p := range lab.Protos {
		ledger := lab.NewLedger(seed+uint64(i), 0.05)
		server := lab.Serve(p, ledger)
		proxy, err := lab.NewFaults(seed+uint64(i), server.Listener.Addr().String())
		if err != nil {
			return err
		}
		if p == lab.HTTP2 {
			hello.Cert = server.Certificate().Raw
		}
		hello.Addr[p] = proxy.Addr()
		ledgers, proxies = append(ledgers, ledger), append(proxies, proxy)
		stops = append(stops, proxy.Stop, server.Close)
		wg.Go(func() { errs <- proxy.Run(ctx) })
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(hello); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	wg.Wait()
	for _, stop := range stops {
		stop()
	}
	for range lab.Protos {
		if err := <-errs; err != nil {
			return err
		}
	}
	var s sums
	for i := range ledgers {
		s.Arrivals += ledgers[i].Arrivals()
		s.ServerFaults += ledgers[i].Faults()
		s.NetworkFaults += proxies[i].Total()
		s.Duplicates += ledgers[i].Duplicates()
		s.Corrupt += ledgers[i].Corrupt()
	}
	return out.Encode(s)
}

// sample is what is held at a moment.
type sample struct {
	lab.Usage
	Hosts int // whose state is remembered
}

// most is how many hosts are remembered at most, and some to spare for one
// that is being looked at while it is dropped.
const most = 4096 + 64

// soak runs the load and judges.
func soak(duration time.Duration, seed uint64, callers int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	files, err := os.MkdirTemp("", "soak")
	if err != nil {
		return err
	}
	defer os.RemoveAll(files)
	other := exec.Command(self, "-serve", "-seed", fmt.Sprint(seed))
	other.Stderr = os.Stderr
	end, err := other.StdinPipe()
	if err != nil {
		return err
	}
	says, err := other.StdoutPipe()
	if err != nil {
		return err
	}
	if err := other.Start(); err != nil {
		return err
	}
	in := json.NewDecoder(bufio.NewReader(says))
	var hello far
	if err := in.Decode(&hello); err != nil {
		return err
	}

	before := lab.Resources()
	ctx, cancel := context.WithTimeout(context.Background(), duration)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var problems []string
	problem := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		problems = append(problems, fmt.Sprintf(format, args...))
	}
	var transports []*retrip.Transport
	var loads []*lab.Load
	reports := make([]*lab.Report, len(lab.Protos))
	for i, p := range lab.Protos {
		transport := &retrip.Transport{Base: base(p, hello), Metrics: retrip.NewMetrics(), Policy: retrip.Policy{
			MaxAttempts:    8,
			Backoff:        retrip.Backoff{Base: 10 * time.Millisecond, Cap: 300 * time.Millisecond},
			AttemptTimeout: time.Minute,
			Budget:         retrip.Budget{Size: 1000},
		}}
		load := &lab.Load{Client: &http.Client{Transport: transport}, URL: spread(p), Seed: seed + uint64(i), Callers: callers, Files: files}
		transports, loads = append(transports, transport), append(loads, load)
		wg.Go(func() {
			r, err := load.Run(ctx, math.MaxInt)
			if err != nil {
				problem("%v", err)
				cancel()
			}
			reports[i] = r
		})
	}

	samples := watch(ctx, duration, transports)
	wg.Wait()
	for i, p := range lab.Protos {
		if r := reports[i]; r != nil {
			fmt.Printf("%s: %v\n", p, r)
			if r.Mixed > 0 || r.Unclosed > 0 {
				problem("%s: %d answers mixed up, %d bodies left open", p, r.Mixed, r.Unclosed)
			}
		}
		transports[i].CloseIdleConnections()
		if held := loads[i].Held(5 * time.Second); held > 0 {
			problem("%s: the contexts of %d requests are held by something", p, held)
		}
	}
	if after, ok := before.Back(10 * time.Second); !ok {
		problem("at the start %+v, at the end %+v:\n%s", before, after, strings.Join(lab.Goroutines(), "\n\n"))
	}
	for _, grown := range growth(samples) {
		problem("%s", grown)
	}

	end.Close()
	var s sums
	if err := in.Decode(&s); err != nil {
		return err
	}
	if err := other.Wait(); err != nil {
		return err
	}
	fmt.Printf("%d requests arrived; %d network faults, %d server faults; %d duplicates, %d corrupt bodies\n",
		s.Arrivals, s.NetworkFaults, s.ServerFaults, s.Duplicates, s.Corrupt)
	if s.Duplicates > 0 || s.Corrupt > 0 {
		problem("%d duplicates, %d corrupt bodies", s.Duplicates, s.Corrupt)
	}
	if len(problems) > 0 {
		return fmt.Errorf("not flat:\n%s", strings.Join(problems, "\n"))
	}
	fmt.Println("flat")
	return nil
}

// base returns a base transport for p that reaches the other process whatever
// the host.
func base(p lab.Proto, hello far) *http.Transport {
	var dialer net.Dialer
	b := &http.Transport{
		Protocols:           p.Protocols(),
		MaxIdleConns:        64,
		MaxIdleConnsPerHost: 32,
		IdleConnTimeout:     2 * time.Second,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, hello.Addr[p])
		},
	}
	if p == lab.HTTP2 {
		roots := x509.NewCertPool()
		if cert, err := x509.ParseCertificate(hello.Cert); err == nil {
			roots.AddCert(cert)
		}
		b.TLSClientConfig = &tls.Config{RootCAs: roots, ServerName: "example.com"}
	}
	return b
}

// spread sends most requests to one host and the rest to ten thousand others,
// more than are remembered.
func spread(p lab.Proto) func(int) string {
	return func(id int) string {
		if id%16 != 0 {
			return p.Scheme() + "://one.test/"
		}
		return fmt.Sprintf("%s://host-%d.test/", p.Scheme(), id/16%10_000)
	}
}

// watch takes 40 samples in the time, and prints every fourth.
func watch(ctx context.Context, duration time.Duration, transports []*retrip.Transport) []sample {
	var samples []sample
	ticker := time.NewTicker(duration / 41)
	defer ticker.Stop()
	fmt.Println("     time  heap KiB  goroutines  descriptors  hosts")
	began := time.Now()
	for len(samples) < 40 {
		select {
		case <-ctx.Done():
			return samples
		case <-ticker.C:
		}
		s := sample{Usage: lab.Resources()}
		for _, t := range transports {
			s.Hosts = max(s.Hosts, len(t.HostStates()))
		}
		samples = append(samples, s)
		if len(samples)%4 == 0 {
			fmt.Printf("%8.1fs %9d %11d %12d %6d\n", time.Since(began).Seconds(), s.Heap>>10, s.Goroutines, s.Descriptors, s.Hosts)
		}
	}
	return samples
}

// growth compares the last quarter with the second: the first is for warming
// up.
func growth(samples []sample) (grown []string) {
	if len(samples) < 8 {
		return []string{"too few samples: the machine is too slow for so short a run"}
	}
	quarter := len(samples) / 4
	mean := func(part []sample, value func(sample) float64) float64 {
		sum := 0.0
		for _, s := range part {
			sum += value(s)
		}
		return sum / float64(len(part))
	}
	check := func(what string, share, slack float64, value func(sample) float64) {
		early, late := mean(samples[quarter:2*quarter], value), mean(samples[len(samples)-quarter:], value)
		if late > early*share+slack {
			grown = append(grown, fmt.Sprintf("%s: %.0f on average in the second quarter, %.0f in the last", what, early, late))
		}
	}
	check("heap", 1.25, 4<<20, func(s sample) float64 { return float64(s.Heap) })
	check("goroutines", 1.5, 50, func(s sample) float64 { return float64(s.Goroutines) })
	check("descriptors", 1.5, 50, func(s sample) float64 { return float64(s.Descriptors) })
	for _, s := range samples {
		if s.Hosts > most {
			return append(grown, fmt.Sprintf("states of %d hosts", s.Hosts))
		}
	}
	return grown
}
