// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Fleet exposes one server to an outage under the load of 10 000 clients in 64
// processes, with and without a fleet account in a real Redis. docs/fleet.md
// shows its output. All connections are on loopback, and all clocks are real.
//
// Each client behaves like a program with one Transport: it has a budget, a
// Fleet and a view of the account of its own. The clients of a process share
// connections.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/retrip/retrip/internal/storm"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case processCommand:
			exit(process(os.Stdin, os.Stdout))
		case guardCommand:
			exit(guard(os.Args[2:]))
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	processes := flags.Int("processes", 64, "processes, which share the clients")
	clients := flags.Int("clients", 10_000, "clients, each with a budget of its own")
	end := flags.Duration("end", 48*time.Second, "length of a run; the server is slow from 3 s to 13 s")
	out := flags.String("o", "", "write the series to this `file`, as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	server, load := storm.Brownout(*clients)
	load.End = *end
	switch {
	case *processes < 1 || *processes > 1000:
		return fmt.Errorf("-processes is %d: it must be 1 to 1000", *processes)
	case *clients < *processes:
		return fmt.Errorf("-clients is %d: it must be at least -processes, %d", *clients, *processes)
	case *end < load.TriggerEnd+5*time.Second:
		return fmt.Errorf("-end is %v: it must be at least %v", *end, load.TriggerEnd+5*time.Second)
	}
	store, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer store.stop()
	m := storm.Measured{
		Clients: *clients, Processes: *processes, Rate: load.Rate,
		Capacity: float64(server.Workers) / server.Service.Seconds(), From: load.Trigger.Seconds(), To: load.TriggerEnd.Seconds(),
	}
	fmt.Fprintf(stdout, "%d clients in %d processes make %.0f requests/s to a server that can do %.0f, and 303 from %.0f s to %.0f s\n\n",
		m.Clients, m.Processes, m.Rate, m.Capacity, m.From, m.To)
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(storm.TableHead, "\t"))
	for _, rule := range rules {
		r, err := measure(ctx, rule, load, m, store)
		if err != nil {
			return err
		}
		m.Runs = append(m.Runs, r)
		fmt.Fprintln(table, strings.Join(m.Row(r), "\t"))
		fmt.Fprintf(os.Stderr, "%s: recovery %s\n", rule, m.Recovered(r))
	}
	table.Flush()
	if *out == "" {
		return nil
	}
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(*out, append(data, '\n'), 0o644)
}
