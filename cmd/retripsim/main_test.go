// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/sim"
	"github.com/retrip/retrip/internal/testenv"
)

var update = flag.Bool("update", false, "write what the commands of testdata print")

// call runs the command as a process would.
func call(t *testing.T, args string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), strings.Fields(args), &out, &errs, false)
	return code, out.String(), errs.String()
}

// The commands of testdata print the same bytes as ever, on any machine.
func TestSameBytes(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		command, want, _ := strings.Cut(string(data), "\n")
		args, slow := strings.CutPrefix(command, "$ slow ")
		if slow && !testenv.Tables() {
			continue
		}
		_, out, errs := call(t, strings.TrimPrefix(args, "$ "))
		require.Empty(t, errs, file)
		if *update {
			require.NoError(t, os.WriteFile(file, []byte(command+"\n"+out), 0o644))
			continue
		}
		assert.Equal(t, want, out, command)
	}
}

// An error fits on one line and names the flag and its bound.
func TestBadInput(t *testing.T) {
	named := filepath.Join(t.TempDir(), "named.json")
	require.NoError(t, os.WriteFile(named, []byte(`{"hosts": {"fraud.internal": {"max_attempts": 2}}}`), 0o600))
	bad := filepath.Join(t.TempDir(), "bad.json")
	require.NoError(t, os.WriteFile(bad, []byte("{\n \"max_attempts\": -4\n}"), 0o600))
	for _, c := range []struct{ args, want string }{
		{"overlord", `unknown command "overlord": it must be one of check, overload, storm, stadium, hedge`},
		{"overload -clients 0", "-clients is 0: it must be 1 to 1000000"},
		{"overload -clients many", `"many" for flag -clients: it must be a whole number`},
		{"overload -timeout 5", `"5" for flag -timeout: it must be a duration, such as 300ms`},
		{"overload -seed -1", `"-1" for flag -seed: it must be a whole number, 0 or more`},
		{"overload -rate -3", "-rate is -3: it must be 0.001 to 10000000"},
		{"overload -load 70", "it must be a share, more than 0 and at most 10: 0.7 is 70 %"},
		{"overload -load 0.7 -rate 700 -workers 10", "-load, -rate and -workers conflict: give two of them"},
		{"overload -rate 100", "-rate is 100: at 70 % load, a backend has 1.4 workers; give -workers, or a longer -service"},
		{"overload -queue 1000", `"1000" for flag -queue: it must be a duration`},
		{"overload -queue 2m", "-queue is 2m: it must be 0 to 1m"},
		{"overload -load 0.5 -workers 0", "-load is 0.5: with -workers 0"},
		{"overload -load 1e-9", "-load is 1e-9: this makes 1e-06 requests per second, and they must be 0.001 to 10000000"},
		{"overload -service 0s", "-service is 0s: it must be"},
		{"overload -trigger-at 119s", "-trigger-at is 119s: it must be early enough that the trigger ends within 2m0s"},
		{"overload -horizon 100h", "-horizon is 100h: it must be 1ms to 24h0m0s"},
		{"overload -runs 0", "-runs is 0: it must be 1 to 1000"},
		{"overload -policy netflix", `-policy is "netflix": it must be a file or one of`},
		{"overload -policy ./missing.json", "missing.json"},
		{"overload -policy " + bad, "bad.json: "},
		{"check -host fruad.internal -policy " + named, "named.json names fruad.internal: without -host, its policy for all hosts is checked"},
		{"overload -nonsense", "nonsense"},
		{"overload nonsense", `unexpected argument "nonsense"`},
		{"storm -crowd mob", `-crowd is "mob": it must be passing, continuing or herd`},
		{"stadium -policy envoy", "-policy is envoy: it must be a retrip.Policy"},
		{"hedge -table none", `-table is "none": it must be one of tails, load, recovery`},
		{"hedge -only nothing", `-only is "nothing": no case contains it`},
		{"hedge -hedge 7", "Policy.Hedge is 7: it must be"},
		{"check -queue -1s", "-queue is -1s: it must be 0 to 1m"},
		{"check -loads 1.5", "-loads is 1.5: it must be more than 0 and less than 1: 0.7 is 70 % of the capacity"},
		{"check -loads 0.7,1", "-loads is 1: it must be more than 0 and less than 1"},
		{"check -clients 0", "-clients is 0"},
		{"check -rate 1e8 -clients 1000", "-rate is 1e8: it must be 0.001 to 10000000"},
		{"check -clients 1000000 -rate 5", "-rate is 5: with 1000000 clients it must be at least "},
		{"check -service 20m", "-service is 20m: 700 requests/s would keep more than 1000000 workers busy"},
		{"check -service 25h", "-service is 25h: it must be 1ns to 24h0m0s"},
		{"check -lengths 1ms", "-lengths is 1ms"},
		{"check -lengths 1s,ages", "it must be durations separated by commas"},
	} {
		code, out, errs := call(t, c.args)
		assert.Equal(t, exitUsage, code, c.args)
		assert.Empty(t, out, c.args)
		assert.Contains(t, errs, c.want, c.args)
		assert.Equal(t, 1, strings.Count(errs, "\n"), "%s: %s", c.args, errs)
	}
	_, _, errs := call(t, "overload -policy "+bad)
	assert.Contains(t, errs, "line 2")
	assert.Contains(t, errs, "max_attempts")
}

// fullDisk is an output that takes no byte.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// A command whose output is lost says so, and its exit status tells.
func TestOutputFails(t *testing.T) {
	few := map[string]string{
		"check":    "-price=false -policy no-retries -lengths 1s -loads 0.7 -well 0",
		"overload": "-runs 1 -horizon 41s",
		"storm":    "-policy full",
		"stadium":  "-players 10000 -capacity 3000",
		"hedge":    "-only 5 -clients 10 -runs 1",
	}
	list := []string{"", "help"}
	for _, c := range commands {
		require.Contains(t, few, c.name)
		list = append(list, c.name+" -h", c.name+" "+few[c.name])
	}
	list = append(list, "storm -json "+few["storm"])
	for _, args := range list {
		var errs bytes.Buffer
		assert.Equal(t, exitFailed, run(t.Context(), strings.Fields(args), fullDisk{}, &errs, false), args)
		assert.Contains(t, errs.String(), syscall.ENOSPC.Error(), args)
	}
}

// An interrupt shows the results so far, marked as partial, or says that there are
// none.
func TestInterrupt(t *testing.T) {
	for _, args := range []string{"check", "stadium -players 500000"} {
		var out, errs bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		f := newFlags("")
		name, rest, _ := strings.Cut(args, " ")
		for _, c := range commands {
			if c.name != name {
				continue
			}
			do := c.setup(f)
			require.NoError(t, f.parse(strings.Fields(rest)))
			r, err := do(ctx, func(done float64) {
				if done > 0.1 {
					cancel()
				}
			})
			require.ErrorIs(t, err, context.Canceled, args)
			require.NotNil(t, r, args)
			r.partial = true
			require.NoError(t, r.print(&out))
			assert.Contains(t, out.String(), "partial")
		}
		cancel()
		assert.Equal(t, exitInterrupted, run(ctx, []string{"overload"}, &out, &errs, false))
		assert.Contains(t, errs.String(), "interrupted before the first result")
	}
}

func TestHelp(t *testing.T) {
	code, out, _ := call(t, "")
	assert.Zero(t, code)
	for _, c := range commands {
		assert.Contains(t, out, c.name)
		code, help, _ := call(t, c.name+" -h")
		assert.Zero(t, code)
		assert.Contains(t, help, "-json")
		for _, line := range regexp.MustCompile(`(?m)^  -[a-z-]+`).FindAllString(help, -1) {
			assert.Equal(t, 1, strings.Count(help, line+" ")+strings.Count(help, line+"\n"), "%s:%s", c.name, line)
		}
	}
	assert.Contains(t, out, "envoy")
}

// What differs from seed to seed is a range.
func TestRanges(t *testing.T) {
	run := func(recovery time.Duration, succeeded int64) *sim.Result {
		return &sim.Result{Recovery: recovery, Requests: 1000, Succeeded: succeeded}
	}
	for _, c := range []struct {
		group             []*sim.Result
		recovery, success string
	}{
		{[]*sim.Result{run(3*time.Second, 900), run(4*time.Second, 920), run(5*time.Second, 940)}, "4 s", "92.0 %"},
		{[]*sim.Result{run(sim.Never, 312), run(sim.Never, 320)}, "never", "32.0 %"},
		{[]*sim.Result{run(sim.Never, 312), run(7*time.Second, 900), run(5*time.Second, 999)}, "5 s–never", "31–100 %"},
	} {
		assert.Equal(t, c.recovery, recovery(c.group))
		assert.Equal(t, c.success, successText(c.group))
	}
}

// check says whether a policy is safe, in its table, a sentence, JSON and its exit
// status, whatever the size of the fleet. A policy that isn't gets a change with which
// it is.
func TestCheck(t *testing.T) {
	slow := filepath.Join(t.TempDir(), "slow.json")
	require.NoError(t, os.WriteFile(slow, []byte(`{"attempt_timeout": "2s"}`), 0o600))
	hosts := filepath.Join(t.TempDir(), "hosts.json")
	require.NoError(t, os.WriteFile(hosts, []byte(`{"hosts": {"*.example.com": {"attempt_timeout": "300ms", "deadline": "1s", "idempotent_methods": ["POST"]}}}`), 0o600))
	trips := filepath.Join(t.TempDir(), "trips.json")
	require.NoError(t, os.WriteFile(trips, []byte(`{"backoff": {"cap": "1s"}, "breaker": {"ratio": 0.5, "open_for": "60s"}}`), 0o600))
	const short = " -lengths 1s -loads 0.7 -well 0"
	for _, c := range []struct {
		args, says string // all of the parts of says, divided by |
		code       int
		slow       bool
	}{
		{"", "retrip recovers as fast as without retries", 0, true},
		{"-clients 1 -rate 5", "retrip recovers as fast as without retries", 0, true},
		{"-clients 7 -rate 30", "retrip recovers as fast as without retries", 0, true},
		{"-clients 400 -rate 2000", "retrip recovers as fast as without retries", 0, true}, // README.md
		{"-clients 10000 -well 0", "passes with: the fleet's account with fleet_budget 175", exitFailed, true},
		{"-clients 28572 -rate 2000" + short, "passes with: the fleet's account with fleet_budget 500", exitFailed, true},
		{"-clients 300 -lengths 1s -loads 0.95 -well 0", "passes with: nothing that check tried: budget 2; budget 1; the fleet's account with fleet_budget 175; budget 1 and the fleet's account with fleet_budget 175. What is left: servers that shed", exitFailed, true},
		{"-clients 400 -lengths 10s,100ms -loads 0.7 -queue 2s", "queues that take 2s when they are full", 0, true},
		{"-clients 900 -lengths 10s,1s -loads 0.7 -well 0", "after 1s in which work takes 3.3 × as long, retrip is borderline, since it recovers in time with 7 of 15 seeds", 0, false},
		{"-policy no-budget" + short, "no-budget passes with: budget 2", exitFailed, true},
		{"-policy no-budget -clients 1 -rate 10" + short, "1 clients with 10 requests/s each", exitFailed, true},
		{"-policy " + trips + short, "trips passes with: breaker off", exitFailed, false},
		{"-well 0 -policy " + slow, "slow recovers as fast as without retries", 0, true}, // attempts of 2 s, so clients wait longer than a queue of 1 s
		{"-gateway 300ms -policy " + hosts + short, "this is the policy for all hosts; " + hosts + " has 1 more|a gateway that answers 504 after 300ms, while the backend works on", 0, false},
		{"-host api.example.com -policy " + hosts + short, "api.example.com follows the policy *.example.com of " + hosts +
			"|Policy.IdempotentMethods lists POST: after a lost response, every POST to these hosts runs twice" +
			"|Policy.Deadline is 1s: 4 attempts of 300ms with waits of up to 700ms in total need 1.9s", 0, false},
		{"-queue 100ms -policy no-budget" + short, "any policy recovers here: a full queue of 100ms", 0, false},
		{"-timeout 250ms" + short, "it sets no AttemptTimeout: an attempt is taken to end after 250ms", 0, true},
		{"-policy testdata/hedge.json -clients 10" + short, "where only the queue makes requests late: the 99th percentile is ", 0, false},
		{"-policy testdata/hedge.json -rate 100" + short, "hedge has no hedges here: each client sends 1 requests/s to the host, fewer than 2", 0, false},
	} {
		if c.slow && !testenv.Tables() {
			continue
		}
		code, out, errs := call(t, "check -price=false "+c.args)
		assert.Equal(t, c.code, code, c.args)
		assert.Empty(t, errs, c.args)
		for says := range strings.SplitSeq(c.says, "|") {
			assert.Contains(t, out, says, c.args)
		}
		assert.Equal(t, code != 0, strings.Contains(out, "FAILS"), c.args)
		bad := strings.Contains(out, "FAILS") || strings.Contains(out, "is borderline")
		assert.Equal(t, bad, strings.Contains(out, " passes with: "), c.args)
		assert.Equal(t, bad, regexp.MustCompile(`\npolicy .*\n.*  (FAILS|borderline)\n`).MatchString(out), "%s: the worst case is first", c.args)
	}
}

// -rate, -load and -queue mean the same in overload as in check: a fleet's rate makes no
// load, and the queue is a time.
func TestSizes(t *testing.T) {
	for args, want := range map[string][2]float64{ // the load, and requests per second
		"":                         {0.7, 700},
		"-load 0.9":                {0.9, 900},
		"-rate 2100":               {0.7, 2100},
		"-rate 1800 -load 0.9":     {0.9, 1800},
		"-rate 2100 -service 20ms": {0.7, 2100},
		"-rate 2100 -workers 10":   {2.1, 2100},
		"-load 0.9 -workers 20":    {0.9, 1800},
		"-rate 700 -workers 0":     {0, 700},
		"-rate 2000":               {2000.0 / 2900, 2000}, // 29 workers
	} {
		code, out, errs := call(t, "overload -json -runs 1 -horizon 4s -trigger-at 1s -trigger-for 1s "+args)
		require.Zero(t, code, errs)
		var all struct{ Results [][]sim.Result }
		require.NoError(t, json.Unmarshal([]byte(out), &all))
		r := all.Results[0][0]
		assert.InDelta(t, want[0], r.Load, 1e-9, args)
		assert.InEpsilon(t, 4*want[1], r.Requests, 0.1, args)
	}
	s := sim.Overload()
	s.Backend.Workers = 30
	file := func(timeout string) string {
		name := filepath.Join(t.TempDir(), "p.json")
		require.NoError(t, os.WriteFile(name, []byte(`{"attempt_timeout": "`+timeout+`"}`), 0o600))
		return "-policy " + name
	}
	for args, want := range map[string]int{"": 3000, "-queue 2s": 6000, "-queue 1ms": 3, file("2s"): 18_000, file("off"): 3000} {
		for _, command := range []func(*flags) work{check, overload} {
			f := newFlags("")
			command(f)
			require.NoError(t, f.parse(strings.Fields(args)))
			p, err := f.load(s.Policy.Retry)
			require.NoError(t, err)
			s.Policy = p[0]
			f.setQueue(&s)
			assert.Equal(t, want, s.Backend.Queue, args)
		}
	}
}

// The workflow of examples/check passes, and fails once somebody removes the budget.
// docs/platform-engineers.md has the same command.
func TestCheckInAWorkflow(t *testing.T) {
	const dir = "../../examples/check/"
	workflow, err := os.ReadFile(dir + ".github/workflows/policies.yml")
	require.NoError(t, err)
	command := regexp.MustCompile(`(?m)run: go -C retrip run \./cmd/retripsim (check -policy "\$GITHUB_WORKSPACE/policies\.json" .*)$`).FindSubmatch(workflow)
	require.NotNil(t, command)
	line := strings.ReplaceAll(string(command[1]), `"$GITHUB_WORKSPACE/policies.json"`, "policies.json")
	docs, err := os.ReadFile("../../docs/platform-engineers.md")
	require.NoError(t, err)
	assert.Contains(t, string(docs), "\n    go run ./cmd/retripsim "+line+"\n")

	run := func(file, only string) (code int, out string) {
		code, out, errs := call(t, strings.Replace(line, "policies.json", file, 1)+" -price=false"+only)
		require.Empty(t, errs)
		return code, out
	}
	const one = " -lengths 1s -loads 0.6 -well 0" // what fails in one case fails in all
	if testenv.Tables() {
		code, _ := run(dir+"policies.json", "")
		assert.Zero(t, code)
	}
	code, _ := run(dir+"policies.json", one)
	assert.Zero(t, code)
	policies, err := os.ReadFile(dir + "policies.json")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "policies.json")
	require.NoError(t, os.WriteFile(file, bytes.Replace(policies, []byte(`"deadline": "1s"`), []byte(`"deadline": "1s", "budget": "off"`), 1), 0o600))
	code, out := run(file, one)
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, out, " passes with: budget 2")
}
