// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Command soak puts a Transport under load with faults, over HTTP/1.1, HTTPS
// with HTTP/2, and h2c at the same time. It exits with status 1 and a message
// if
//
//   - a caller gets no answer, another request's answer, or a wrong body;
//   - a caller gets a 2xx for a request that the server's ledger doesn't have;
//   - the server executes a request twice that must not be repeated, or a
//     request that no caller made, or one with a wrong body;
//   - heap, goroutines or descriptors grow between the beginning and the end,
//     or the table of hosts in trouble exceeds the number of hosts or its
//     bound;
//   - something is left at the end: a goroutine, a descriptor, the context of
//     a request, the state of a host that has healed.
//
// None of these checks depends on the speed of the machine. The servers and
// toxiproxy run in a separate process, so that their resources don't count.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"net"
	"net/http"
	"os"
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

// patience is how long callers may wait for an answer after the end of the
// load. No request's own limit is longer than a minute.
const patience = 2 * time.Minute

// soak runs the load and checks the results.
func soak(duration time.Duration, seed uint64, callers int) error {
	files, err := os.MkdirTemp("", "soak")
	if err != nil {
		return err
	}
	defer os.RemoveAll(files)
	far, hello, err := startPeer(seed)
	if err != nil {
		return err
	}

	before := lab.Resources()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var transports []*retrip.Transport
	var loads []*lab.Load
	for i, p := range lab.Protos {
		transport := &retrip.Transport{Base: base(p, hello), Metrics: retrip.NewMetrics(), Policy: retrip.Policy{
			MaxAttempts:    8,
			Backoff:        retrip.Backoff{Base: 10 * time.Millisecond, Cap: 300 * time.Millisecond},
			AttemptTimeout: time.Minute,
			Budget:         retrip.Budget{Size: 200}, // so that hosts often get into trouble and out of it
		}}
		load := &lab.Load{Client: &http.Client{Transport: transport}, URL: spread(p), Seed: seed + uint64(i), Callers: callers, Files: files}
		transports, loads = append(transports, transport), append(loads, load)
	}
	reports := make([]*lab.Report, len(loads))
	errs := make([]error, len(loads))
	var wg sync.WaitGroup
	for i, load := range loads {
		wg.Go(func() {
			if reports[i], errs[i] = load.Run(ctx, math.MaxInt); errs[i] != nil {
				cancel()
			}
		})
	}
	samples, err := watch(ctx, duration, loads, transports, newStrangers())
	cancel()
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		for i, p := range lab.Protos {
			err = errors.Join(err, fmt.Errorf("%s: %d callers without an answer for %v", p, loads[i].Unanswered(), patience))
		}
		return fmt.Errorf("%w\n%s", err, strings.Join(lab.Goroutines(), "\n\n"))
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}

	var problems []string
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, c := range checks(samples) {
		fmt.Println(c)
		if !c.ok() {
			problem("%v", c)
		}
	}
	calm, err := far.calm()
	if err != nil {
		return err
	}
	for i, p := range lab.Protos {
		transports[i].CloseIdleConnections() // the faults have left dead connections
		inTrouble := len(troubled(transports[i]))
		left, err := heal(transports[i], p)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %d hosts in trouble at the end, %d when all have healed\n", p, inTrouble, len(left))
		if len(left) > 0 {
			problem("%s: hosts that have healed and are remembered: %+v", p, left)
		}
		transports[i].CloseIdleConnections()
		if held := loads[i].Held(30 * time.Second); held > 0 {
			problem("%s: the contexts of %d requests are held by something", p, held)
		}
	}
	if after, ok := before.Back(30 * time.Second); !ok {
		problem("at the start %+v, at the end %+v:\n%s", before, after, strings.Join(lab.Goroutines(), "\n\n"))
	}

	account, err := far.end()
	if err != nil {
		return err
	}
	for i, p := range lab.Protos {
		r, audit := reports[i], loads[i].Audit(account.Executions[p])
		fmt.Printf("%s: %v\n%s: %v\n", p, r, p, audit)
		if r.Mixed > 0 || r.Unclosed > 0 {
			problem("%s: %d answers mixed up, %d bodies left open", p, r.Mixed, r.Unclosed)
		}
		if !audit.OK() {
			problem("%s: %v", p, audit)
		}
	}
	fmt.Printf("%d requests arrived; %d network faults, %d server faults; %d corrupt bodies\n",
		account.Arrivals, calm.Faults, account.Faults, account.Corrupt)
	if account.Corrupt > 0 {
		problem("%d corrupt bodies", account.Corrupt)
	}
	if len(problems) > 0 {
		return errors.New("failed:\n" + strings.Join(problems, "\n"))
	}
	fmt.Println("flat, nothing lost, no duplicates")
	return nil
}

// base returns a base transport for p that connects to the other process for
// any host.
func base(p lab.Proto, h hello) *http.Transport {
	var dialer net.Dialer
	b := &http.Transport{
		Protocols:           p.Protocols(),
		MaxIdleConns:        64,
		MaxIdleConnsPerHost: 32,
		IdleConnTimeout:     2 * time.Second,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, h.Addr[p])
		},
	}
	if p == lab.HTTP2 {
		roots := x509.NewCertPool()
		if cert, err := x509.ParseCertificate(h.Cert); err == nil {
			roots.AddCert(cert)
		}
		b.TLSClientConfig = &tls.Config{RootCAs: roots, ServerName: "example.com"}
	}
	return b
}
