// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Retripsim shows what a retry policy does to a backend before you ship it.
//
//	retripsim check -policy policies.json -clients 400 -rate 2000
//
// Run it without arguments to list its commands.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/retrip/retrip/internal/sim"
)

const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130 // the exit status that shells report after SIGINT; SIGTERM gets the same
)

// work makes the report of a command. It calls progress with the share that is
// complete. If ctx ends, it returns a partial report, or nil, and the error.
type work func(ctx context.Context, progress func(float64)) (*report, error)

// command is one subcommand.
type command struct {
	name, about string
	// setup declares the flags. It returns the work to do once they are parsed.
	setup func(f *flags) work
}

var commands = []command{
	{"check", "is this policy safe for my fleet? exit status 1 if it isn't", check},
	{"overload", "a brownout of 10 s under a steady load: does the backend recover?", overload},
	{"storm", "an outage of 200 ms, and the crowd that returns after it", storm},
	{"stadium", "25 million players who lose their CDN for 100 ms", stadium},
	{"hedge", "hedged requests: what they save and cost, and where they don't help", hedges},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr, terminal(os.Stdout) && terminal(os.Stderr))
	stop()
	os.Exit(code)
}

// run is main without access to the process. It returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, tty bool) int {
	name := ""
	fail := func(code int, err error) int {
		fmt.Fprintf(stderr, "retripsim%s: %v\n", name, err)
		return code
	}
	show := func(text string) int {
		if _, err := io.WriteString(stdout, text); err != nil {
			return fail(exitFailed, err)
		}
		return 0
	}
	if len(args) == 0 || slices.Contains([]string{"help", "-h", "-help", "--help"}, args[0]) {
		return show(usage())
	}
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		return fail(exitUsage, fmt.Errorf("unknown command %q: it must be one of %s", args[0], names()))
	}
	c := commands[i]
	name = " " + c.name
	f := newFlags(c.name)
	do := c.setup(f)
	switch err := f.parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return show(f.help(c.about))
	case err != nil:
		return fail(exitUsage, err)
	}
	shown := newProgress(stderr, tty)
	report, err := do(ctx, shown.set)
	shown.clear()
	interrupted := errors.Is(err, context.Canceled)
	switch {
	case interrupted && report == nil:
		return fail(exitInterrupted, errors.New("interrupted before the first result"))
	case err != nil && !interrupted:
		return fail(exitUsage, f.inFlags(err))
	}
	report.partial = interrupted
	if f.json {
		err = report.encode(stdout)
	} else {
		err = report.print(stdout)
	}
	switch {
	case err != nil:
		return fail(exitFailed, err)
	case interrupted:
		return exitInterrupted
	case report.failed:
		return exitFailed
	}
	return 0
}

func names() string {
	var list []string
	for _, c := range commands {
		list = append(list, c.name)
	}
	return strings.Join(list, ", ")
}

func usage() string {
	var b strings.Builder
	b.WriteString("retripsim shows what a retry policy does to a backend before you ship it.\n\n" +
		"    retripsim <command> [flags]\n\nCommands (-h after one lists its flags):\n\n")
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, c := range commands {
		fmt.Fprintf(t, "    %s\t%s\n", c.name, c.about)
	}
	fmt.Fprint(t, "\nPolicies for -policy, besides a file as retrip.LoadPolicies reads it:\n\n")
	for _, p := range sim.Presets {
		fmt.Fprintf(t, "    %s\t%s\n", p.Name, p.About)
	}
	t.Flush()
	return b.String()
}
