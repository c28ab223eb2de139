// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/internal/sim"
)

// flags holds the flags of one command. They write to the fields of a model;
// names maps each field to its flag.
type flags struct {
	*flag.FlagSet
	names map[string]string // flag names by field of the model

	policies  string
	host      string
	chosen    []sim.Policy // the resolved policies
	remarks   []string     // about the policies of files
	runs      int
	loadShare float64       // 0 if -load is not set
	full      time.Duration // -queue
	json      bool          // print the report as JSON
}

func newFlags(command string) *flags {
	f := &flags{FlagSet: flag.NewFlagSet(command, flag.ContinueOnError), names: map[string]string{}}
	f.SetOutput(io.Discard)
	f.BoolVar(&f.json, "json", false, "print the result as JSON")
	return f
}

// choice declares the flags that choose the clients' policies.
func (f *flags) choice(policies string) {
	f.StringVar(&f.policies, "policy", policies, "the clients' policies: `names` of presets or JSON files, separated by commas")
	f.StringVar(&f.host, "host", "", "use the policy that the files define for this `host`, at port 443 unless it names one (default the policy for all hosts)")
}

// queue declares the flag of the backend's queue.
func (f *flags) queue() {
	f.DurationVar(&f.full, "queue", 0, "how long a full queue takes to work off; if 0, three times as long as an attempt may take, and at least 1s")
}

// setQueue sets the queue of s, for its policy. One that is worked off while clients
// still wait is no test.
func (f *flags) setQueue(s *sim.Scenario) time.Duration {
	timeout := cmp.Or(max(0, s.Policy.Retry.AttemptTimeout), s.Fleet.Timeout)
	takes := cmp.Or(f.full, min(time.Minute, max(time.Second, 3*timeout)))
	s.Backend.Queue = max(1, int(float64(s.Backend.Workers)/s.Backend.Service.Seconds()*takes.Seconds()))
	return takes
}

func parseFloat(text string) (float64, error) { return strconv.ParseFloat(text, 64) }

// repeats declares the flag for the number of runs.
func (f *flags) repeats(runs int) {
	f.IntVar(&f.runs, "runs", runs, "`number` of runs, with consecutive seeds; the report shows medians, or ranges where the seeds differ much")
}

// field makes name the flag for a field of the model.
func (f *flags) field(name, field string) string {
	f.names[field] = name
	return name
}

func (f *flags) parse(args []string) error {
	f.VisitAll(func(one *flag.Flag) { one.Value = &typed{Value: one.Value} })
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if f.Lookup("runs") != nil && (f.runs < 1 || f.runs > 1000) {
		return fmt.Errorf("-runs is %s: it must be 1 to 1000", f.typed("runs", f.runs))
	}
	if f.full < 0 || f.full > time.Minute {
		return fmt.Errorf("-queue is %s: it must be 0 to 1m", f.typed("queue", f.full))
	}
	return nil
}

// given reports whether a flag was set.
func (f *flags) given(name string) bool {
	found := false
	f.Visit(func(set *flag.Flag) { found = found || set.Name == name })
	return found
}

// typed is a flag's value with the text that it was given.
type typed struct {
	flag.Value
	text string
}

func (t *typed) Set(text string) error {
	t.text = text
	err := t.Value.Set(text)
	if g, ok := t.Value.(flag.Getter); ok && err != nil {
		err = errNot(g.Get())
	}
	return err
}

// IsBoolFlag lets package flag accept -json without a value.
func (t *typed) IsBoolFlag() bool {
	b, ok := t.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// errNot is the error of a text that isn't of the type of x.
func errNot(x any) error {
	want := "a duration, such as 300ms"
	switch x.(type) {
	case bool:
		want = "true or false"
	case int:
		want = "a whole number"
	case uint64:
		want = "a whole number, 0 or more"
	case float64:
		want = "a number"
	}
	return errors.New("it must be " + want)
}

// typed returns a value as the user gave it to a flag, or as the program prints it if
// the flag wasn't given or has a list of values.
func (f *flags) typed(name string, value any) string {
	if t := f.Lookup(name).Value.(*typed); t.text != "" && !strings.Contains(t.text, ",") {
		return t.text
	}
	return fmt.Sprint(value)
}

// inFlags rewrites an error of a model in terms of the flags.
func (f *flags) inFlags(err error) error {
	var p *sim.ParameterError
	if !errors.As(err, &p) {
		return err
	}
	name, ok := f.names[p.Field]
	switch {
	case !ok:
		return err
	case name == "rate" && f.loadShare > 0 && !f.given("rate"):
		return fmt.Errorf("-load is %s: this makes %.6g requests per second, and they must be %s", f.typed("load", f.loadShare), p.Value, p.Want)
	}
	return fmt.Errorf("-%s is %s: it must be %s", name, f.typed(name, p.Value), p.Want)
}

// load resolves the chosen policies, with presets based on base, and stores
// them.
func (f *flags) load(base retrip.Policy) ([]sim.Policy, error) {
	f.chosen, f.remarks = nil, nil
	for name := range strings.SplitSeq(f.policies, ",") {
		p, err := f.one(strings.TrimSpace(name), base)
		if err != nil {
			return nil, err
		}
		f.chosen = append(f.chosen, p)
	}
	return f.chosen, nil
}

func (f *flags) one(name string, base retrip.Policy) (sim.Policy, error) {
	if slices.Contains(sim.PresetNames(), name) {
		return sim.Preset(name, base)
	}
	file, err := os.Open(name)
	if err != nil {
		if !strings.ContainsAny(name, "./\\") {
			return sim.Policy{}, fmt.Errorf("-policy is %q: it must be a file or one of %s", name, strings.Join(sim.PresetNames(), ", "))
		}
		return sim.Policy{}, fmt.Errorf("-policy: %w", err)
	}
	defer file.Close()
	policy, hosts, err := retrip.LoadPolicies(file)
	if err != nil {
		return sim.Policy{}, fmt.Errorf("-policy: %s: %s", name, oneLine(err))
	}
	if f.host == "" && len(hosts) > 0 {
		f.remarks = append(f.remarks, fmt.Sprintf("this is the policy for all hosts; %s has %d more, each of which -host names", name, len(hosts)))
	}
	if f.host != "" {
		host := f.host
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(host, "443")
		}
		t := &retrip.Transport{Policy: policy, Hosts: hosts}
		if policy, err = t.PolicyFor(host); err != nil {
			return sim.Policy{}, fmt.Errorf("-host: %w", err)
		}
		state, err := t.HostState(host)
		if err != nil {
			return sim.Policy{}, fmt.Errorf("-host: %w", err)
		}
		if state.Policy == "default" {
			return sim.Policy{}, fmt.Errorf("-host: no pattern of %s names %s: without -host, its policy for all hosts is checked", name, f.host)
		}
		f.remarks = append(f.remarks, fmt.Sprintf("%s follows the policy %s of %s", f.host, state.Policy, name))
	}
	f.remarks = append(f.remarks, (&retrip.Transport{Policy: policy}).Advice()...)
	short := strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	return sim.Policy{Name: short, Retry: policy}, nil
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// help lists the flags.
func (f *flags) help(about string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "retripsim %s: %s\n\nFlags:\n\n", f.Name(), about)
	plain := flag.NewFlagSet("", flag.ContinueOnError)
	f.VisitAll(func(one *flag.Flag) {
		plain.Var(one.Value.(*typed).Value, one.Name, one.Usage)
		plain.Lookup(one.Name).DefValue = one.DefValue
	})
	plain.SetOutput(&b)
	plain.PrintDefaults()
	return b.String()
}

// numbers is a flag that holds a list of numbers.
type numbers[T int | float64 | time.Duration] struct {
	list  *[]T
	parse func(string) (T, error)
	kind  string
}

func ints(list *[]int) *numbers[int] { return &numbers[int]{list, strconv.Atoi, "number"} }

func (n *numbers[T]) String() string {
	if n.list == nil {
		return ""
	}
	var parts []string
	for _, x := range *n.list {
		parts = append(parts, fmt.Sprint(x))
	}
	return strings.Join(parts, ",")
}

func (n *numbers[T]) Set(s string) error {
	var list []T
	for part := range strings.SplitSeq(s, ",") {
		x, err := n.parse(strings.TrimSpace(part))
		if err != nil {
			return fmt.Errorf("it must be %ss separated by commas", n.kind)
		}
		list = append(list, x)
	}
	*n.list = list
	return nil
}
