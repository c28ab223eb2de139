// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
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
	"github.com/retrip/retrip/sim"
)

// flags are those of one command. They write to the fields of a model; names
// tells which flag stands for which field.
type flags struct {
	*flag.FlagSet
	names map[string]string // by field of the model

	out        string
	dark       bool
	plot       string
	policies   string
	host       string
	chosen     []sim.Policy // what policies and host come to, with override
	runs       int
	override   retrip.Policy
	jitter     string
	loadShare  float64 // 0 if -load is not set
	layerCount int
	services   []string
	noPicture  bool // there is none of what the command finds out
	conflicts  []conflict
}

// conflict is a flag that can't be given, at all or together with one of others.
type conflict struct {
	name    string
	others  []string
	instead string // what to use in its place, where it can't be given at all
	needs   string // what it does nothing without
}

func newFlags(command string) *flags {
	f := &flags{FlagSet: flag.NewFlagSet(command, flag.ContinueOnError), names: map[string]string{}}
	f.SetOutput(io.Discard)
	f.StringVar(&f.out, "o", "", "write to `file`: a picture (.svg, .png), the series (.csv), the table (.md) or everything (.json)")
	f.BoolVar(&f.dark, "dark", false, "a picture for a dark page")
	return f
}

// excludes declares that a flag can't be given together with any of others.
func (f *flags) excludes(name string, others ...string) {
	f.conflicts = append(f.conflicts, conflict{name: name, others: others})
}

// replaces declares that a flag of the command has the place of others.
func (f *flags) replaces(name string, others ...string) {
	for _, other := range others {
		f.conflicts = append(f.conflicts, conflict{name: other, instead: name})
	}
}

// needs declares that a flag does nothing without another.
func (f *flags) needs(name, other string) {
	f.conflicts = append(f.conflicts, conflict{name: name, needs: other})
}

// consistent returns an error that names two flags that contradict each other.
func (f *flags) consistent() error {
	for _, c := range f.conflicts {
		if !f.given(c.name) {
			continue
		}
		if c.needs != "" && !f.given(c.needs) {
			return fmt.Errorf("-%s does nothing without -%s", c.name, c.needs)
		}
		if c.instead != "" {
			return fmt.Errorf("-%s has no meaning here: use -%s", c.name, c.instead)
		}
		for _, other := range c.others {
			if f.given(other) {
				return fmt.Errorf("-%s and -%s contradict each other: give one of them", c.name, other)
			}
		}
	}
	return nil
}

func (f *flags) plots(kinds ...string) {
	f.StringVar(&f.plot, "plot", kinds[0], "what a picture shows: "+strings.Join(kinds, ", "))
	f.names["plot"] = strings.Join(kinds, ", ")
}

// choice declares the flags that say what clients follow.
func (f *flags) choice(policies string) {
	f.StringVar(&f.policies, "policy", policies, "what clients follow: `names` of policies or JSON files, with commas between")
	f.StringVar(&f.host, "host", "", "follow what the files' policies come to for this `host`, at port 443 unless it names one (default that for all hosts)")
	p := &f.override
	f.IntVar(&p.MaxAttempts, "max-attempts", 0, "attempts, instead of what the policy says")
	f.DurationVar(&p.Backoff.Base, "backoff-base", 0, "first window of waits, instead of what the policy says")
	f.DurationVar(&p.Backoff.Cap, "backoff-cap", 0, "longest window of waits, instead of what the policy says")
	f.StringVar(&f.jitter, "jitter", "", "full, equal, decorrelated or none, instead of what the policy says")
	f.Float64Var(&p.Budget.Size, "budget-size", 0, "tokens, instead of what the policy says; -1 is no budget")
	f.Float64Var(&p.Budget.Credit, "budget-credit", 0, "tokens back per success, instead of what the policy says")
	f.DurationVar(&p.MaxWait, "max-wait", 0, "longest wait a server may ask for, instead of what the policy says")
	f.BoolFunc("gate", "first attempts wait too when a server asks for it, instead of what the policy says", func(text string) error {
		on, err := strconv.ParseBool(text)
		p.Gate = retrip.Off
		if on {
			p.Gate = retrip.On
		}
		return err
	})
	f.DurationVar(&p.Breaker.Window, "breaker-window", 0, "of the breaker, instead of what the policy says")
	f.IntVar(&p.Breaker.MinVolume, "breaker-min-volume", 0, "results in the breaker's window, instead of what the policy says")
	f.DurationVar(&p.Breaker.OpenFor, "breaker-open-for", 0, "how long the breaker stays open, instead of what the policy says")
	f.IntVar(&p.Breaker.Probes, "breaker-probes", 0, "that close the breaker, instead of what the policy says")
	f.Float64Var(&p.Breaker.Ratio, "breaker-ratio", 0, "share of failures that opens the breaker, instead of what the policy says")
}

// timeouts declares those of a policy, for models in which requests have any.
func (f *flags) timeouts() {
	p := &f.override
	f.DurationVar(&p.AttemptTimeout, "attempt-timeout", 0, "of an attempt, instead of what the policy says; -1ns is none")
	f.DurationVar(&p.Deadline, "deadline", 0, "of a request, instead of what the policy says")
}

// throttled declares what a policy has for 429, for models in which a server
// answers that.
func (f *flags) throttled() {
	f.DurationVar(&f.override.Backoff.ThrottleBase, "throttle-base", 0,
		"first window of waits after a 429 that names none, instead of what the policy says; -1ns is none")
}

// repeats declares the number of runs.
func (f *flags) repeats(runs int) {
	f.IntVar(&f.runs, "runs", runs, "how often, with one seed after the other; medians are shown")
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
		return fmt.Errorf("%q is no flag", f.Arg(0))
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
		return fmt.Errorf("-o is %q: there is no picture of this: it must end in .csv, .md or .json", f.out)
	}
	return nil
}

// given reports whether a flag was set.
func (f *flags) given(name string) bool {
	found := false
	f.Visit(func(set *flag.Flag) { found = found || set.Name == name })
	return found
}

// inFlags says an error of a model in terms of the flags.
func (f *flags) inFlags(err error) error {
	var p *sim.ParameterError
	if errors.As(err, &p) {
		if name, ok := f.names[p.Field]; ok {
			return fmt.Errorf("-%s is %v: it must be %s", name, p.Value, p.Want)
		}
	}
	return err
}

// load returns the chosen policies, presets on top of base, and keeps them.
func (f *flags) load(base retrip.Policy) ([]sim.Policy, error) {
	f.chosen = nil
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
	if f.host != "" {
		host := f.host
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(host, "443")
		}
		if policy, err = (&retrip.Transport{Policy: policy, Hosts: hosts}).PolicyOf(host); err != nil {
			return sim.Policy{}, fmt.Errorf("-host: %w", err)
		}
	}
	if err := f.change(&policy); err != nil {
		return sim.Policy{}, err
	}
	short := strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	return sim.Policy{Name: short, Retry: policy}, f.checked(policy)
}

// change sets in p what flags say.
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
			p.Budget.Size = o.Budget.Size
		case "budget-credit":
			p.Budget.Credit = o.Budget.Credit
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
		case "breaker-probes":
			p.Breaker.Probes = o.Breaker.Probes
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

// policyFlags says the fields of a policy as flags.
var policyFlags = strings.NewReplacer(
	"retrip: Policy.MaxAttempts", "-max-attempts",
	"retrip: Policy.AttemptTimeout", "-attempt-timeout",
	"retrip: Policy.Deadline", "-deadline",
	"retrip: Policy.MaxWait", "-max-wait",
	"retrip: Policy.Backoff.Base", "-backoff-base",
	"retrip: Policy.Backoff.Cap", "-backoff-cap",
	"retrip: Policy.Backoff.ThrottleBase", "-throttle-base",
	"retrip: Policy.Budget.Size", "-budget-size",
	"retrip: Policy.Budget.Credit", "-budget-credit",
	"retrip: Policy.Breaker.Ratio", "-breaker-ratio",
	"retrip: Policy.Breaker.Window", "-breaker-window",
	"retrip: Policy.Breaker.MinVolume", "-breaker-min-volume",
	"retrip: Policy.Breaker.OpenFor", "-breaker-open-for",
	"retrip: Policy.Breaker.Probes", "-breaker-probes",
)

func (f *flags) checked(p retrip.Policy) error {
	if _, err := p.Rules(); err != nil {
		return errors.New(policyFlags.Replace(oneLine(err)))
	}
	return nil
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (f *flags) help(w io.Writer, about string) {
	fmt.Fprintf(w, "retripsim %s: %s\n\nFlags:\n\n", f.Name(), about)
	f.SetOutput(w)
	f.PrintDefaults()
}

// numbers is a flag with a list of numbers.
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
			return fmt.Errorf("it must be %ss with commas between", n.kind)
		}
		list = append(list, x)
	}
	*n.list = list
	return nil
}
