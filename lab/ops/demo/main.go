// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/retrip/retrip/lab/ops"
)

func main() {
	stay := flag.Bool("stay", false, "after the walk, leave everything up until it is interrupted")
	alerts := flag.String("alerts", "alerts.yml", "the rules, with the windows of production")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *alerts, *stay); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// show is a running demo.
type show struct {
	server
	backend  *backend
	replicas []*replica
	began    time.Time

	mu  sync.Mutex
	out io.Writer
}

// run runs the whole demo and cleans up.
func run(ctx context.Context, out io.Writer, alerts string, stay bool) (err error) {
	text, err := os.ReadFile(filepath.Clean(alerts))
	if err != nil {
		return err
	}
	rules, err := scaled(string(text))
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "retrip-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "rules.yml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		return err
	}

	s := &show{backend: newBackend(), began: time.Now(), out: out}
	defer s.backend.Close()
	// The output of one of five identical replicas is enough.
	var targets []string
	for i := range replicas {
		var log io.Writer = io.Discard
		if i == 0 {
			log = &hostRecords{to: func(line string) { s.say("    log of replica 1: %s", line) }}
		}
		r, err := newReplica(s.backend, log)
		if err != nil {
			return err
		}
		defer r.close()
		s.replicas = append(s.replicas, r)
		targets = append(targets, r.metrics.URL)
	}
	ctx, cancel := context.WithCancel(ctx)
	if s.Server, err = ops.Start(ctx, dir, file, "shop", 500*time.Millisecond, targets); err != nil {
		cancel()
		return err
	}
	var wg sync.WaitGroup
	for _, r := range s.replicas {
		wg.Go(func() { r.run(ctx) })
	}
	wg.Go(func() { s.tellAlerts(ctx) })
	defer func() {
		cancel()
		wg.Wait()
		<-s.Done
	}()
	s.began = time.Now()
	if err := s.walk(ctx); err != nil || !stay {
		return err
	}
	s.say("That was the demo. Prometheus keeps running at %s until Ctrl-C.", s.URL)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.Done:
		return errors.New("prometheus ended by itself")
	}
}

func (s *show) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Since(s.began).Round(time.Second)
	fmt.Fprintf(s.out, "%02d:%02d  %s\n", int(at.Minutes()), int(at.Seconds())%60, fmt.Sprintf(format, args...))
}

// tellAlerts prints when an alert starts to fire and when it stops.
func (s *show) tellAlerts(ctx context.Context) {
	var before map[string]alert
	for {
		now, err := s.firing(ctx)
		if err == nil {
			for _, key := range slices.Sorted(maps.Keys(now)) {
				if _, known := before[key]; !known {
					a := now[key]
					s.say(">>> %s %s: %s", map[string]string{"page": "PAGE", "ticket": "ticket"}[a.Labels["severity"]], a.Labels["alertname"], a.Annotations["summary"])
				}
			}
			for _, key := range slices.Sorted(maps.Keys(before)) {
				if _, still := now[key]; !still {
					s.say("<<< over: %s", key)
				}
			}
			before = now
		}
		if !sleep(ctx, 250*time.Millisecond) {
			return
		}
	}
}

// walk runs through the outages.
func (s *show) walk(ctx context.Context) error {
	acts := []struct {
		at time.Duration // since the start
		do func()
	}{
		{0, func() {
			s.say("%d replicas call %s (GET, one request in 50 fails) and %s (POST).", replicas, inventory, payments)
			s.say("The alerts are those of lab/ops/alerts.yml, with windows %d times shorter: an hour is a minute, five minutes are five seconds.", scale)
			s.say("Requests by outcome: %s", s.graph(`sum by (policy, outcome) (rate(retrip_requests_total[5s]))`))
			s.say("Retries per request: %s", s.graph(`sum by (policy) (rate(retrip_retries_total[5s])) / sum by (policy) (rate(retrip_requests_total[5s]))`))
			s.say("Alerts:              %s", s.page("alerts"))
			s.say("Status of replica 1: %s/debug/retrip", s.replicas[0].metrics.URL)
			s.say("For half a minute all is well: retries hide the failures (outcome recovered).")
		}},
		{30 * time.Second, func() {
			s.backend.inventoryDown.Store(true)
			s.say("%s is down: each request gets a 503.", inventory)
			s.say("Expect a page about %s in seconds. The budgets stop the retries, which fall to 0 per request: the fleet adds no load to the outage.", inventory)
		}},
		{50 * time.Second, func() {
			s.say("The hosts that fail or are in trouble, as the status page of replica 1 shows them:")
			for _, state := range s.replicas[0].transport.HostStates() {
				s.say("    %s: %d requests failed, last with %s; %.1f of %.0f tokens left", state.Host, state.Failed, state.LastFailure, state.Tokens, state.Size)
			}
		}},
		{60 * time.Second, func() {
			s.backend.inventoryDown.Store(false)
			s.say("%s is back. Nobody has to reset anything: successes refill the budgets, and the page ends after half a minute without failures.", inventory)
		}},
		{85 * time.Second, func() {
			s.backend.paymentsDown.Store(true)
			s.say("%s fails: its POSTs may have been processed, so none is retried.", payments)
			s.say("Expect a page about %s, and a ticket with the reason not_idempotent.", payments)
		}},
		{105 * time.Second, func() {
			s.backend.paymentsDown.Store(false)
			s.say("%s is back. Page and tickets end after half a minute without failures.", payments)
		}},
		{2 * time.Minute, func() {}},
	}
	for _, act := range acts {
		if !sleep(ctx, time.Until(s.began.Add(act.at))) {
			return ctx.Err()
		}
		act.do()
	}
	return nil
}

// sleep sleeps for d and reports whether ctx is still active.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
