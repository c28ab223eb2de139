// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Retripsim shows what a retry policy does to a backend before you ship it.
//
//	retripsim overload -policy policy.json -clients 400
//
// Run it without arguments to list its commands.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"golang.org/x/term"

	"github.com/retrip/retrip/sim"
)

const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130 // the exit status that shells report after SIGINT; SIGTERM gets the same
)

// command is one subcommand.
type command struct {
	name, about string
	// setup declares the flags. It returns the function that makes the report
	// once the flags are parsed.
	setup func(f *flags) func(ctx context.Context, progress func(float64)) (*report, error)
}

var commands = []command{
	{"check", "is this policy safe for my fleet? exit status 1 if it isn't", check},
	{"overload", "a brownout of 10 s under a steady load: does the backend recover?", overload},
	{"storm", "an outage of 200 ms, and the crowd that returns after it", storm},
	{"faults", "failures independent of load: the benefit of retries", faults},
	{"contention", "optimistic writers of one row: the effect of jitter", contention},
	{"stadium", "25 million players who lose their CDN for 100 ms", stadium},
	{"gate", "rate limits: how much of them pools of workers use", gate},
	{"compare", "the policies of many systems in the overload model, in one picture", compare},
	{"map", "fleet size × load: where a policy recovers from overload, where never", heatMap},
	{"triggers", "length of the brownout × requests per second and client: seconds to recover", triggers},
	{"queues", "load × queue or timeout: where retries recover, where never", queues},
	{"accounts", "the size of the fleet's account: what it costs after overloads, and in partial failures", accounts},
	{"price", "where retries or their budget cost most, and what helps: the fleet's account, shed, Size", price},
	{"sizes", "what the size of the budget costs fleets of several sizes", sizes},
	{"budget", "the cases for which retrip's budget was designed, with other budgets beside it", budget},
	{"hysteresis", "goodput by load, rising and falling from an overload", hysteresis},
	{"measured", "what lab/cmd/fleet measured with real processes, as a table and a picture", drawn},
	{"hedge", "hedged requests: what they save and cost, and where they don't help", hedges},
	{"limit", "the largest fleet, load, budget and attempts that still recover", limit},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	tty := term.IsTerminal(int(os.Stderr.Fd())) && term.IsTerminal(int(os.Stdout.Fd()))
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr, tty)
	stop()
	os.Exit(code)
}

// run is main without access to the process. It returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, tty bool) int {
	if len(args) == 0 || slices.Contains([]string{"help", "-h", "-help", "--help"}, args[0]) {
		usage(stdout)
		return 0
	}
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		fmt.Fprintf(stderr, "retripsim: unknown command %q: it must be one of %s\n", args[0], names())
		return exitUsage
	}
	c := commands[i]
	fail := func(code int, err error) int {
		fmt.Fprintf(stderr, "retripsim %s: %v\n", c.name, err)
		return code
	}
	f := newFlags(c.name)
	work := c.setup(f)
	switch err := f.parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		f.help(stdout, c.about)
		return 0
	case err != nil:
		return fail(exitUsage, err)
	}
	file, err := openOutput(f.out)
	if err != nil {
		return fail(exitFailed, err)
	}
	bar := newBar(stderr, tty)
	report, err := work(ctx, bar.set)
	bar.close()
	interrupted := errors.Is(err, context.Canceled)
	if err != nil && !(interrupted && report != nil) {
		file.discard()
		if interrupted {
			return fail(exitInterrupted, errors.New("interrupted before the first result"))
		}
		return fail(exitUsage, f.inFlags(err))
	}
	report.partial = interrupted
	if f.json {
		err = report.encode(stdout, ".json", f.dark)
		if err != nil {
			return fail(exitFailed, err)
		}
	} else {
		report.print(stdout, width(stdout))
	}
	if f.out != "" {
		if err := file.write(report, f.dark); err != nil {
			return fail(exitFailed, err)
		}
		if !f.json {
			fmt.Fprintf(stdout, "\nwritten: %s\n", f.out)
		}
	}
	if interrupted {
		return exitInterrupted
	}
	if report.failed {
		return exitFailed
	}
	return 0
}

// width returns the number of columns of the terminal w, or a generous number
// if w is no terminal.
func width(w io.Writer) int {
	if file, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(file.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return math.MaxInt
}

func names() string {
	var list []string
	for _, c := range commands {
		list = append(list, c.name)
	}
	return strings.Join(list, ", ")
}

func usage(w io.Writer) {
	fmt.Fprint(w, "retripsim shows what a retry policy does to a backend before you ship it.\n\n"+
		"    retripsim <command> [flags]\n\nCommands (-h after one lists its flags):\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range commands {
		fmt.Fprintf(t, "    %s\t%s\n", c.name, c.about)
	}
	fmt.Fprint(t, "\nPolicies for -policy, besides a file as retrip.LoadPolicies reads it:\n\n")
	for _, name := range sim.PresetNames() {
		fmt.Fprintf(t, "    %s\t%s\n", name, sim.DescribePreset(name))
	}
	t.Flush()
}
