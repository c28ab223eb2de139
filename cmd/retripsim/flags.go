// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/internal/lend"
	"github.com/retrip/retrip/sim"
)

// flags holds the flags of one command. They write to the fields of a model;
// names maps each field to its flag.
type flags struct {
	*flag.FlagSet
	names map[string]string // flag names by field of the model

	out        string
	dark       bool
	plot       string
	policies   string
	host       string
	chosen     []sim.Policy // the resolved policies, with override applied
	remarks    []string     // about the policies of files
	runs       int
	override   retrip.Policy
	jitter     string
	loadShare  float64 // 0 if -load is not set
	layerCount int
	services   []string
	noPicture  bool     // the command's report has no picture
	json       bool     // print the report as JSON
	first      []string // flags that the help names first; if nil, all are alike
	conflicts  []conflict
}

// conflict declares a flag invalid, or invalid together with other flags.
type conflict struct {
	name    string
	others  []string
	instead string // the flag to use instead, where this one is never valid
	needs   string // the flag without which it has no effect
}

func newFlags(command string) *flags {
	f := &flags{FlagSet: flag.NewFlagSet(command, flag.ContinueOnError), names: map[string]string{}}
	f.SetOutput(io.Discard)
	f.StringVar(&f.out, "o", "", "write to `file`: a picture (.svg, .png), the series (.csv), the table (.md) or everything (.json)")
	f.BoolVar(&f.dark, "dark", false, "draw the picture for a dark page")
	return f
}

// excludes declares that a flag can't be combined with any of others.
func (f *flags) excludes(name string, others ...string) {
	f.conflicts = append(f.conflicts, conflict{name: name, others: others})
}

// replaces declares that a flag of the command replaces others.
func (f *flags) replaces(name string, others ...string) {
	for _, other := range others {
		f.conflicts = append(f.conflicts, conflict{name: other, instead: name})
	}
}

// needs declares that a flag has no effect without another.
func (f *flags) needs(name, other string) {
	f.conflicts = append(f.conflicts, conflict{name: name, needs: other})
}

// consistent returns an error that names two conflicting flags.
func (f *flags) consistent() error {
	for _, c := range f.conflicts {
		if !f.given(c.name) {
			continue
		}
		if c.needs != "" && !f.given(c.needs) {
			return fmt.Errorf("-%s has no effect without -%s", c.name, c.needs)
		}
		if c.instead != "" {
			return fmt.Errorf("-%s has no meaning here: use -%s", c.name, c.instead)
		}
		for _, other := range c.others {
			if f.given(other) {
				return fmt.Errorf("-%s and -%s conflict: give one of them", c.name, other)
			}
		}
	}
	return nil
}

func (f *flags) plots(kinds ...string) {
	f.StringVar(&f.plot, "plot", kinds[0], "what a picture shows: "+strings.Join(kinds, ", "))
	f.names["plot"] = strings.Join(kinds, ", ")
}

// choice declares the flags that choose the clients' policies.
func (f *flags) choice(policies string) {
	f.StringVar(&f.policies, "policy", policies, "the clients' policies: `names` of presets or JSON files, separated by commas")
	f.StringVar(&f.host, "host", "", "use the policy that the files define for this `host`, at port 443 unless it names one (default the policy for all hosts)")
	p := &f.override
	f.IntVar(&p.MaxAttempts, "max-attempts", 0, "attempts, overriding the policy")
	f.DurationVar(&p.Backoff.Base, "backoff-base", 0, "ceiling of the first wait, overriding the policy")
	f.DurationVar(&p.Backoff.Cap, "backoff-cap", 0, "highest ceiling of a wait, overriding the policy")
	f.StringVar(&f.jitter, "jitter", "", "jitter of the waits: full, equal, decorrelated or none, overriding the policy")
	f.Float64Var(&p.Budget, "budget-size", 0, "tokens of the budget, overriding the policy; -1 for no budget")
	f.DurationVar(&p.MaxWait, "max-wait", 0, "longest wait that a server may ask for, overriding the policy")
	f.BoolFunc("gate", "first attempts wait too when a server asks for it, overriding the policy", func(text string) error {
		on, err := strconv.ParseBool(text)
		p.Gate.Enabled = retrip.Off
		if on {
			p.Gate.Enabled = retrip.On
		}
		return err
	})
	f.DurationVar(&p.Breaker.Window, "breaker-window", 0, "window of the breaker, overriding the policy")
	f.IntVar(&p.Breaker.MinVolume, "breaker-min-volume", 0, "results in the breaker's window, overriding the policy")
	f.DurationVar(&p.Breaker.OpenFor, "breaker-open-for", 0, "how long the breaker stays open, overriding the policy")
	f.Float64Var(&p.Breaker.Ratio, "breaker-ratio", 0, "share of failures that opens the breaker, overriding the policy")
}

// timeouts declares the timeout flags of a policy, for models in which requests
// can time out.
func (f *flags) timeouts() {
	p := &f.override
	f.DurationVar(&p.AttemptTimeout, "attempt-timeout", 0, "timeout of an attempt, overriding the policy; -1ns for none")
	f.DurationVar(&p.Deadline, "deadline", 0, "deadline of a request, overriding the policy")
}

// throttled declares the flags of a policy that concern 429, for models in
// which a server answers 429.
func (f *flags) throttled() {
	f.DurationVar(&f.override.Backoff.ThrottleBase, "throttle-base", 0,
		"first window of waits after a 429 without Retry-After, overriding the policy; -1ns for none")
}

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
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if err := f.consistent(); err != nil {
		return err
	}
	if f.Lookup("runs") != nil && (f.runs < 1 || f.runs > 1000) {
		return fmt.Errorf("-runs is %d: it must be 1 to 1000", f.runs)
	}
	if kinds := f.names["plot"]; kinds != "" && !slices.Contains(strings.Split(kinds, ", "), f.plot) {
		return fmt.Errorf("-plot is %q: it must be one of %s", f.plot, kinds)
	}
	if f.out != "" && !slices.Contains(outputs, filepath.Ext(f.out)) {
		return fmt.Errorf("-o is %q: it must end in one of %s", f.out, strings.Join(outputs, ", "))
	}
	if ext := filepath.Ext(f.out); f.noPicture && (ext == ".svg" || ext == ".png") {
		return fmt.Errorf("-o is %q: this command draws no picture: it must end in .csv, .md or .json", f.out)
	}
	return nil
}

// given reports whether a flag was set.
func (f *flags) given(name string) bool {
	found := false
	f.Visit(func(set *flag.Flag) { found = found || set.Name == name })
	return found
}

// inFlags rewrites an error of a model in terms of the flags.
func (f *flags) inFlags(err error) error {
	var p *sim.ParameterError
	if errors.As(err, &p) {
		if name, ok := f.names[p.Field]; ok {
			return fmt.Errorf("-%s is %v: it must be %s", name, p.Value, p.Want)
		}
	}
	return err
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
	if err := f.change(&base); err != nil {
		return sim.Policy{}, err
	}
	if slices.Contains(sim.PresetNames(), name) {
		p, err := sim.Preset(name, base)
		if err == nil {
			err = f.checked(p.Retry)
		}
		return p, err
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
		f.remarks = append(f.remarks, fmt.Sprintf("%s follows the policy %s of %s", f.host, state.Policy, name))
	}
	if err := f.change(&policy); err != nil {
		return sim.Policy{}, err
	}
	short := strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	return sim.Policy{Name: short, Retry: policy}, f.checked(policy)
}

// change applies the flags that override fields of a policy to p.
func (f *flags) change(p *retrip.Policy) error {
	o := f.override
	f.Visit(func(set *flag.Flag) {
		switch set.Name {
		case "max-attempts":
			p.MaxAttempts = o.MaxAttempts
		case "backoff-base":
			p.Backoff.Base = o.Backoff.Base
		case "backoff-cap":
			p.Backoff.Cap = o.Backoff.Cap
		case "throttle-base":
			p.Backoff.ThrottleBase = o.Backoff.ThrottleBase
		case "budget-size":
			p.Budget = o.Budget
		case "attempt-timeout":
			p.AttemptTimeout = o.AttemptTimeout
		case "deadline":
			p.Deadline = o.Deadline
		case "max-wait":
			p.MaxWait = o.MaxWait
		case "gate":
			p.Gate = o.Gate
		case "breaker-window":
			p.Breaker.Window = o.Breaker.Window
		case "breaker-min-volume":
			p.Breaker.MinVolume = o.Breaker.MinVolume
		case "breaker-open-for":
			p.Breaker.OpenFor = o.Breaker.OpenFor
		case "breaker-ratio":
			p.Breaker.Ratio = o.Breaker.Ratio
		}
	})
	if f.jitter == "" {
		return nil
	}
	for j := retrip.FullJitter; j <= retrip.NoJitter; j++ {
		if j.String() == f.jitter {
			p.Backoff.Jitter = j
			return nil
		}
	}
	return fmt.Errorf("-jitter is %q: it must be full, equal, decorrelated or none", f.jitter)
}

// policyFlags replaces the names of policy fields by the names of their flags.
var policyFlags = strings.NewReplacer(
	"retrip: Policy.MaxAttempts", "-max-attempts",
	"retrip: Policy.AttemptTimeout", "-attempt-timeout",
	"retrip: Policy.Deadline", "-deadline",
	"retrip: Policy.MaxWait", "-max-wait",
	"retrip: Policy.Backoff.Base", "-backoff-base",
	"retrip: Policy.Backoff.Cap", "-backoff-cap",
	"retrip: Policy.Backoff.ThrottleBase", "-throttle-base",
	"retrip: Policy.Budget", "-budget-size",
	"retrip: Policy.Hedge", "-hedge",
	"retrip: Policy.Breaker.Ratio", "-breaker-ratio",
	"retrip: Policy.Breaker.Window", "-breaker-window",
	"retrip: Policy.Breaker.MinVolume", "-breaker-min-volume",
	"retrip: Policy.Breaker.OpenFor", "-breaker-open-for",
)

func (f *flags) checked(p retrip.Policy) error {
	if _, _, err := lend.Rules(p); err != nil {
		return errors.New(policyFlags.Replace(oneLine(err)))
	}
	return nil
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// groups are the titles under which help lists the flags of a scenario, after the
// most important ones.
var groups = []struct{ title, names string }{
	{"The fleet", "clients fleets rate rates per-client load loads unequal timeout timeouts requests regular at-once layers layer"},
	{"The policy", "sizes max-attempts attempt-timeout deadline max-wait backoff-base backoff-cap jitter budget-size gate breaker-ratio breaker-window breaker-min-volume breaker-open-for"},
	{"The fleet's account", "account-size account-shards store-delay store-lag store-down-at store-down-for"},
	{"The backend", "workers service fixed spread tail-share tail-times queue queues order patience codel shed-retries refusal-cost retry-after no-retry drop-abandoned crowding cold refill instances"},
	{"The trigger of the overload", "crowd overload trigger-at trigger-for lengths slowdown surge trigger-failures trigger-retry-after answer-delay"},
	{"What fails at any time", "failures broken broken-silent dead slow slow-by silent dead-clients"},
	{"The network", "delay connect"},
	{"The run and its output", "seed runs horizon bin price plot o dark"},
}

// help lists the flags: those of f.first before all others, which are in groups.
func (f *flags) help(w io.Writer, about string) {
	fmt.Fprintf(w, "retripsim %s: %s\n", f.Name(), about)
	left := map[string]*flag.Flag{}
	f.VisitAll(func(one *flag.Flag) { left[one.Name] = one })
	list := func(title string, names []string) {
		set := flag.NewFlagSet("", flag.ContinueOnError)
		set.SetOutput(w)
		any := false
		for _, name := range names {
			if one := left[name]; one != nil {
				set.Var(one.Value, name, one.Usage)
				set.Lookup(name).DefValue = one.DefValue
				delete(left, name)
				any = true
			}
		}
		if any {
			fmt.Fprintf(w, "\n%s:\n\n", title)
			set.PrintDefaults()
		}
	}
	title := "Flags"
	if f.first != nil {
		list(title, f.first)
		for _, g := range groups {
			list(g.title, strings.Fields(g.names))
		}
		title = "More flags"
	}
	list(title, slices.Collect(maps.Keys(left)))
}

// numbers is a flag that holds a list of numbers.
type numbers[T int | float64 | time.Duration] struct {
	list  *[]T
	parse func(string) (T, error)
	kind  string
}

func ints(list *[]int) *numbers[int] { return &numbers[int]{list, strconv.Atoi, "number"} }

func durations(list *[]time.Duration) *numbers[time.Duration] {
	return &numbers[time.Duration]{list, time.ParseDuration, "duration"}
}

func floats(list *[]float64) *numbers[float64] {
	return &numbers[float64]{list, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }, "number"}
}

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
