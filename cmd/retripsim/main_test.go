// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"image/png"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/sim"
)

// call runs the command as a process would.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs, false)
	return code, out.String(), errs.String()
}

// measuredFile is what docs/fleet.md shows.
const measuredFile = "../../docs/fleet.json"

// quick makes each command small enough for a test.
var quick = map[string][]string{
	"overload":   {"-horizon", "50s", "-runs", "1"},
	"storm":      {"-crowd", "herd"},
	"faults":     {"-horizon", "5s", "-rates", "0.1,0.3"},
	"contention": {"-trials", "2", "-clients", "10,20"},
	"stadium":    {"-players", "10000", "-capacity", "3000"},
	"compare":    {"-horizon", "50s", "-runs", "1", "-policy", "no-retries,retrip"},
	"map":        {"-horizon", "50s", "-fleets", "10,100", "-loads", "0.5,0.7"},
	"triggers":   {"-horizon", "50s", "-runs", "1", "-lengths", "1s,2s", "-per-client", "7", "-loads", "0.5,0.7"},
	"queues":     {"-horizon", "50s", "-runs", "1", "-queues", "100,1000", "-loads", "0.5,0.7"},
	"hysteresis": {"-horizon", "70s", "-loads", "0.5,0.7", "-policy", "no-budget,retrip"},
	"accounts":   {"-runs", "1", "-rates", "7", "-sizes", "20"},
	"sizes":      {"-runs", "1", "-fleets", "10,100"},
	"budget":     {"-runs", "1", "-policy", "no-retries"},
	"limit":      {"-trigger-for", "1s", "-clients", "50"},
	"price":      {"-runs", "1", "-policy", "no-budget"},
	"check":      {"-lengths", "1s", "-loads", "0.7", "-price=false"},
	"gate":       {"-only", "one pause"},
	"hedge":      {"-only", "1 % of the answers", "-clients", "10", "-runs", "1"},
	"measured":   {"-in", measuredFile},
}

func TestEveryCommandPrintsATable(t *testing.T) {
	for _, c := range commands {
		code, out, errs := call(t, append([]string{c.name}, quick[c.name]...)...)
		assert.Zero(t, code, "%s: %s", c.name, errs)
		assert.Empty(t, errs, "no progress bar without a terminal")
		assert.Contains(t, out, "policy", c.name)
		assert.NotContains(t, out, "partial", c.name)
		// These commands have tables with few numbers, or draw a chart
		// themselves.
		chart := !slices.Contains([]string{"map", "triggers", "queues", "sizes", "budget", "limit", "gate", "check", "hedge", "accounts", "price"}, c.name)
		assert.Equal(t, chart, strings.Contains(out, "; all from 0 to "), "%s: %s", c.name, out)
	}
	_, out, _ := call(t, "faults", "-horizon", "5s", "-rates", "0.1,0.3", "-policy", "no-retries,retrip")
	assert.Contains(t, out, "% success over p = 10, 30 %; all from 0 to 100:")
	_, out, _ = call(t, "faults", "-horizon", "5s", "-rates", "0.1")
	assert.NotContains(t, out, "; all from 0 to ", "a single point is not a line")
}

func TestEveryCommandWritesFiles(t *testing.T) {
	dir := t.TempDir()
	for _, c := range commands {
		for _, ext := range outputs {
			name := filepath.Join(dir, c.name+ext)
			code, _, errs := call(t, append([]string{c.name, "-o", name}, quick[c.name]...)...)
			if slices.Contains([]string{"sizes", "budget", "limit", "gate", "accounts", "price"}, c.name) && (ext == ".svg" || ext == ".png") {
				assert.Equal(t, exitUsage, code)
				assert.Contains(t, errs, "no picture")
				assert.NoFileExists(t, name)
				continue
			}
			require.Zero(t, code, "%s: %s", name, errs)
			data, err := os.ReadFile(name)
			require.NoError(t, err)
			switch ext {
			case ".png":
				picture, err := png.Decode(bytes.NewReader(data))
				require.NoError(t, err)
				assert.Greater(t, picture.Bounds().Dx(), 1000)
			case ".svg":
				assert.NoError(t, xml.Unmarshal(data, new(any)))
			case ".csv":
				rows, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
				require.NoError(t, err)
				assert.Greater(t, len(rows), 1, c.name)
			case ".md":
				assert.Regexp(t, `^\| policy .*\|\n\|---\|.*\n\| `, regexp.MustCompile(`^\| (case|workers) `).ReplaceAllString(string(data), "| policy "), c.name)
			case ".json":
				var all struct {
					Title   string
					Partial bool
					Results []any
				}
				require.NoError(t, json.Unmarshal(data, &all))
				assert.NotEmpty(t, all.Title)
				assert.NotEmpty(t, all.Results, c.name)
			}
		}
	}
}

func TestEveryPlot(t *testing.T) {
	for name, kinds := range map[string]string{"compare": "load goodput waits", "storm": "served load waits",
		"faults": "success attempts", "contention": "calls time when"} {
		for kind := range strings.FieldsSeq(kinds) {
			file := filepath.Join(t.TempDir(), "plot.svg")
			code, _, errs := call(t, append([]string{name, "-plot", kind, "-o", file}, quick[name]...)...)
			assert.Zero(t, code, "%s %s: %s", name, kind, errs)
			assert.FileExists(t, file)
		}
	}
}

// An error fits on one line and names the flag and its bound.
func TestBadInput(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.json")
	require.NoError(t, os.WriteFile(bad, []byte("{\n \"max_attempts\": -4\n}"), 0o600))
	for _, c := range []struct{ args, want string }{
		{"overlord", `unknown command "overlord"`},
		{"overload -clients 0", "-clients is 0: it must be 1 to 1000000"},
		{"overload -clients many", "clients"},
		{"overload -rate -3", "-rate is -3: it must be 0.001 to 10000000"},
		{"overload -load 0", "load"},
		{"overload -load 70", "it must be a share, more than 0 and at most 10: 0.7 is 70 %"},
		{"overload -load 0.7 -rate 700", "-load and -rate conflict: give one of them"},
		{"overload -unequal -regular", "-unequal and -regular conflict"},
		{"overload -at-once -requests 5 -rate 7", "-at-once and -rate conflict"},
		{"overload -timeout 1s -attempt-timeout 2s", "-attempt-timeout and -timeout conflict"},
		{"faults -failures 0.1 -rates 0.2", "-failures has no meaning here: use -rates"},
		{"map -clients 7", "-clients has no meaning here: use -fleets"},
		{"triggers -rate 7", "-rate has no meaning here: use -loads"},
		{"triggers -lengths 1s,ages", "it must be durations separated by commas"},
		{"triggers -lengths 1s,0s", "-lengths is 0s: each must be positive"},
		{"triggers -lengths 300s", "-trigger-at is 30s: it must be such that At + For is within the horizon"},
		{"triggers -per-client 7,0", "-per-client is 0: each must be more than 0"},
		{"queues -queue 7", "-queue: use -queues"},
		{"queues -queues 7 -timeouts 1s", "-queues and -timeouts conflict"},
		{"queues -queues 10,-1", "-queues is -1: it must be 0 to"},
		{"overload -load 0.5 -workers 0", "-load is 0.5: with -workers 0"},
		{"overload -service 0s", "-service is 0s: it must be"},
		{"overload -trigger-at 119s", "-trigger-at is 1m59s: it must be such that At + For is within the horizon, 2m0s"},
		{"overload -horizon 100h", "-horizon is 100h0m0s: it must be 1ms to 24h0m0s"},
		{"overload -runs 0", "-runs is 0: it must be 1 to 1000"},
		{"overload -max-attempts -2", "-max-attempts is -2: it must be positive"},
		{"overload -budget-size 0.5", "-budget-size is 0.5: it must be 1 to 1e+06"},
		{"overload -breaker-ratio 2", "-breaker-ratio is 2: it must be 0.01 to 1"},
		{"overload -jitter some", `-jitter is "some": it must be full, equal, decorrelated or none`},
		{"overload -policy netflix", `-policy is "netflix": it must be a file or one of`},
		{"overload -policy ./missing.json", "missing.json"},
		{"overload -policy " + bad, "bad.json: "},
		{"overload -plot heat", `-plot is "heat": it must be one of load, goodput, waits`},
		{"overload -o picture.gif", `-o is "picture.gif": it must end in one of .svg, .png, .csv, .md, .json`},
		{"overload -nonsense", "nonsense"},
		{"overload nonsense", `unexpected argument "nonsense"`},
		{"overload -gate", "-gate has no effect without -retry-after"},
		{"storm -max-wait 3s", "-max-wait has no effect without -retry-after"},
		{"overload -order random", "it must be fifo or lifo"},
		{"overload -instances 3 -dead 4", "-dead is 4: it must be 0 to 3"},
		{"overload -instances 3 -slow 1", "-slow-by is 0: it must be positive, since some are slow"},
		{"overload -cold 3", "-refill is 0: it must be positive, for the cache to fill"},
		{"overload -shed-retries -1", "-shed-retries is -1: it must be 0 to"},
		{"overload -codel -1s", "-codel is -1s: it must be 0s to"},
		{"overload -tail-times 3", "-tail-times has no effect without -tail-share"},
		{"overload -layers 7", "-layers is 7: it must be 1 to 6"},
		{"overload -layers 2 -layer :3", "-layers and -layer conflict"},
		{"overload -layer netflix", `-layer is "netflix": -policy is "netflix": it must be a file or one of`},
		{"overload -layer :x", `-layer is ":x": "x" is not a number of replicas`},
		{"overload -layer ::1", `-layer is "::1": "1" is not a timeout`},
		{"overload -layer :::x", `-layer is ":::x": "x" must be detached or empty`},
		{"overload -layer :::::", `-layer is ":::::": it must be policy:replicas:timeout`},
		{"overload -layer :-3", "-layer is -3: it must be 0 to 1000000"},
		{"storm -crowd continuing -at-once -requests 9", "-at-once and -crowd continuing conflict"},
		{"storm -crowd herd -regular=false", "-regular and -crowd herd conflict"},
		{"storm -crowd mob", `-crowd is "mob": it must be passing, continuing or herd`},
		{"faults -rates 0.1,2", "-rates is 2: it must be 0 to 1"},
		{"contention -clients 0", "-clients is 0: it must be 1 to 100000"},
		{"contention -trials -1", "-trials is -1"},
		{"contention -attempt-timeout 1s", "attempt-timeout"},
		{"stadium -deadline 1s", "deadline"},
		{"stadium -max-wait -2s", "-max-wait is -2s: it must be positive"},
		{"stadium -throttle-base -2s", "-throttle-base is -2s: it must be positive"},
		{"stadium -refusal 500", "-refusal is 500: it must be 503 or 429"},
		{"overload -throttle-base 2s", "throttle-base"},
		{"stadium -players 0", "-players is 0: it must be 1 to 100000000"},
		{"stadium -policy finagle", "-policy is finagle: it must be a retrip.Policy"},
		{"map -loads 0.5,0", "-loads is 0: each must be more than 0 and at most 10"},
		{"map -loads NaN", "-loads is NaN: each must be more than 0 and at most 10"},
		{"map -workers 0", "-workers is 0: it must be positive"},
		{"map -fleets 10,100,0", "-fleets is 0: it must be 1 to 1000000"},
		{"limit -trigger-for 0s", "-trigger-for is 0s: it must be positive"},
	} {
		code, out, errs := call(t, strings.Fields(c.args)...)
		assert.Equal(t, exitUsage, code, c.args)
		assert.Empty(t, out, c.args)
		assert.Contains(t, errs, c.want, c.args)
		assert.Equal(t, 1, strings.Count(errs, "\n"), "%s: %s", c.args, errs)
	}
	_, _, errs := call(t, "overload", "-policy", bad)
	assert.Contains(t, errs, "line 2")
	assert.Contains(t, errs, "max_attempts")
}

// A file that can't be written is an error before the run, and a run that fails
// leaves files unchanged.
func TestOutputIsCheckedFirst(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing", "out.json")
	code, out, errs := call(t, "stadium", "-o", missing)
	assert.Equal(t, exitFailed, code)
	assert.Empty(t, out)
	assert.Contains(t, errs, missing)

	kept, made := filepath.Join(dir, "kept.json"), filepath.Join(dir, "made.json")
	require.NoError(t, os.WriteFile(kept, []byte("precious"), 0o600))
	for _, name := range []string{kept, made} {
		code, _, _ = call(t, "overload", "-clients", "0", "-o", name)
		assert.Equal(t, exitUsage, code)
	}
	data, err := os.ReadFile(kept)
	require.NoError(t, err)
	assert.Equal(t, "precious", string(data))
	assert.NoFileExists(t, made)

	long := bytes.Repeat([]byte("x"), 1<<20)
	require.NoError(t, os.WriteFile(kept, long, 0o600))
	code, _, errs = call(t, append([]string{"overload", "-o", kept}, quick["overload"]...)...)
	require.Zero(t, code, errs)
	data, err = os.ReadFile(kept)
	require.NoError(t, err)
	assert.True(t, json.Valid(data), "no old content is left")
}

// The length of the brownout and each client's rate decide how long budgets
// prolong the overload.
func TestTriggers(t *testing.T) {
	code, out, errs := call(t, "triggers", "-runs", "1", "-horizon", "120s", "-lengths", "1s,10s", "-per-client", "7,0.7", "-loads", "0.7")
	require.Zero(t, code, errs)
	assert.Regexp(t, `(?m)^retrip +70 % +7 +[23] s \(1 s\) +3 s \(3 s\)$`, out)
	assert.Regexp(t, `(?m)^retrip +70 % +0\.7 +[678] s \(1 s\) +3 s \(3 s\)$`, out)
	assert.Contains(t, out, "within 2.33 of its own requests")
	assert.Contains(t, out, "not within the 1m20s")
}

// Without a budget, the backend recovers if its full queue takes no longer than
// clients wait.
func TestQueues(t *testing.T) {
	code, out, errs := call(t, "queues", "-runs", "1", "-queues", "250,350", "-loads", "0.7", "-policy", "no-budget,retrip")
	require.Zero(t, code, errs)
	assert.Contains(t, out, "250: 250ms  350: 350ms")
	assert.Regexp(t, `(?m)^no-budget +70 % +0 s +never$`, out)
	assert.Regexp(t, `(?m)^retrip +70 % +0 s +1 s$`, out)
	code, out, errs = call(t, "queues", "-runs", "1", "-timeouts", "500ms,2s", "-loads", "0.7", "-policy", "no-budget")
	require.Zero(t, code, errs)
	assert.Contains(t, out, "a full queue, of 1000, takes 1s")
	assert.Regexp(t, `(?m)^no-budget +70 % +never +0 s$`, out)
}

// The report says what each layer sent on average and at its peak.
func TestLayers(t *testing.T) {
	code, out, errs := call(t, "overload", "-layers", "3", "-clients", "1000", "-slowdown", "0", "-trigger-failures", "1", "-runs", "1", "-horizon", "50s")
	require.Zero(t, code, errs)
	assert.Regexp(t, `retrip: clients made 1\.\d\d attempts per request, and 2\d\d\d in the worst second; service 1 .*; service 2 made .* and 7\d\d\d in the worst second`, out)
	code, out, errs = call(t, "overload", "-layer", "no-retries:7:1s:detached", "-layer", ":0:300ms", "-runs", "1", "-horizon", "50s")
	require.Zero(t, code, errs)
	assert.Regexp(t, `service 1 made 1\.00 attempts per request`, out)
}

// A herd that jitter spreads out makes attempts during the outage.
func TestHerdAttemptsInTheOutage(t *testing.T) {
	_, out, _ := call(t, "storm", "-crowd", "herd")
	assert.Contains(t, out, "during the outage")
	assert.Regexp(t, `(?m)^no-jitter .* 3\.00 +2\.00 `, out)
	assert.Regexp(t, `(?m)^full .* 3\.88 +2\.88 `, out)
}

func TestPolicyFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mine.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"max_attempts": 4, "attempt_timeout": "300ms", "budget": {"size": "off"}}`), 0o600))
	code, out, errs := call(t, "overload", "-policy", "retrip,"+file, "-runs", "1")
	require.Zero(t, code, errs)
	assert.Regexp(t, `(?m)^mine +never`, out)
	assert.Regexp(t, `(?m)^retrip +3 s`, out)
	// A flag overrides the file.
	_, out, _ = call(t, "overload", "-policy", file, "-runs", "1", "-budget-size", "5")
	assert.Regexp(t, `(?m)^mine +3 s`, out)
}

// Flags set what the origin asks of players, and whether players honour it.
func TestStadiumFlags(t *testing.T) {
	results := func(args string) (r sim.StadiumResult) {
		file := filepath.Join(t.TempDir(), "out.json")
		code, _, errs := call(t, append([]string{"stadium", "-o", file, "-players", "10000", "-for", "0s", "-capacity", "2000", "-retry-after", "3s"}, strings.Fields(args)...)...)
		require.Zero(t, code, errs)
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		var all struct{ Results []sim.StadiumResult }
		require.NoError(t, json.Unmarshal(data, &all))
		return all.Results[0]
	}
	plain := results("")
	assert.Positive(t, plain.Retries)
	assert.Zero(t, results("-max-wait 2s").Retries)
	assert.Less(t, results("-gate").Fetches, plain.Fetches)
	// soon counts the retries in the first second.
	const soon = "-retry-after 0s -at 0s -horizon 1s -refusal "
	assert.Less(t, results(soon+"429").Retries, results(soon+"503").Retries)
	assert.Less(t, results(soon+"429 -throttle-base 4s").Retries, results(soon+"429").Retries)
	assert.Equal(t, results(soon+"429 -throttle-base -1ns"), results(soon+"503"))
}

// The note on slow recoveries uses the policies that run, with flags applied.
func TestLawOfThePolicy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mine.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"max_attempts": 3, "budget": {"size": 70}}`), 0o600))
	for _, c := range []struct{ args, want string }{
		{"", "retrip: when everything fails, the budget of a client stops its retries in about 333.3ms"},
		{"-budget-size 50 -max-attempts 2", "retrip: when everything fails, the budget of a client stops its retries in about 4.29s"},
		{"-policy " + file, "mine: when everything fails, the budget of a client stops its retries in about 5.93s"},
		{"-policy no-retries,finagle,no-budget", ""},
	} {
		code, out, errs := call(t, append([]string{"overload"}, append(quick["overload"], strings.Fields(c.args)...)...)...)
		require.Zero(t, code, errs)
		assert.Contains(t, out, c.want)
		assert.Equal(t, c.want != "", strings.Contains(out, "the budget of a client"), c.args)
	}
}

// An interrupt shows the results so far, marked as partial.
func TestInterrupt(t *testing.T) {
	for _, args := range []string{"contention -trials 100000", "check", "compare -runs 100 -horizon 1h", "stadium -players 5000000", "limit"} {
		var out, errs bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		f := newFlags("")
		name := strings.Fields(args)[0]
		var work func(context.Context, func(float64)) (*report, error)
		for _, c := range commands {
			if c.name == name {
				work = c.setup(f)
			}
		}
		require.NoError(t, f.parse(strings.Fields(args)[1:]))
		r, err := work(ctx, func(float64) { cancel() })
		cancel()
		require.ErrorIs(t, err, context.Canceled, args)
		require.NotNil(t, r, args)
		r.partial = true
		r.print(&out, 80)
		assert.Contains(t, out.String(), "partial")

		// An interrupt before the first result says that there are none.
		assert.Equal(t, exitInterrupted, run(ctx, strings.Fields("limit"), &out, &errs, false))
		assert.Contains(t, errs.String(), "interrupted")
	}
}

func TestHelp(t *testing.T) {
	code, out, _ := call(t)
	assert.Zero(t, code)
	for _, c := range commands {
		assert.Contains(t, out, c.name)
		code, help, _ := call(t, c.name, "-h")
		assert.Zero(t, code)
		assert.Contains(t, help, "-o file")
		assert.NotContains(t, help, "More flags", "a flag of %s without a group", c.name)
		for _, line := range regexp.MustCompile(`(?m)^  -[a-z-]+`).FindAllString(help, -1) {
			assert.Equal(t, 1, strings.Count(help, line+" ")+strings.Count(help, line+"\n"), "%s:%s", c.name, line)
		}
	}
	assert.Contains(t, out, "finagle")
}

// check says whether a policy is safe, in its table, a sentence, JSON and its exit
// status, whatever the size of the fleet.
func TestCheck(t *testing.T) {
	slow := filepath.Join(t.TempDir(), "slow.json")
	require.NoError(t, os.WriteFile(slow, []byte(`{"attempt_timeout": "2s"}`), 0o600))
	hosts := filepath.Join(t.TempDir(), "hosts.json")
	require.NoError(t, os.WriteFile(hosts, []byte(`{"hosts": {"*.example.com": {"max_attempts": 2}}}`), 0o600))
	for _, c := range []struct {
		args, says string
		code       int
	}{
		{"", "retrip recovers as fast as without retries", 0},
		{"-clients 1 -rate 5", "retrip recovers as fast as without retries", 0},
		{"-clients 7 -rate 30", "retrip recovers as fast as without retries", 0},
		{"-clients 400 -rate 2000", "after 1s in which work takes 3.3 × as long, retrip takes 9s to recover; without retries it takes 3s", exitFailed}, // README.md
		{"-clients 10000", "in time is up to about 1018 clients", exitFailed},
		{"-policy no-budget -lengths 1s -loads 0.7", "no fleet size recovers in time", exitFailed},
		{"-policy no-budget -clients 1 -rate 10 -lengths 1s -loads 0.7", "1 clients with 10 requests/s each", exitFailed},
		{"-breaker-ratio 0.5 -breaker-open-for 60s -lengths 1s -loads 0.7", "without its breaker it recovers in time", exitFailed},
		{"-policy " + slow, "slow recovers as fast as without retries", 0}, // attempts of 2 s, so clients wait longer than a queue of 1 s
		{"-policy " + hosts + " -lengths 1s -loads 0.7", "this is the policy for all hosts; " + hosts + " has 1 more", 0},
		{"-policy " + hosts + " -lengths 1s -loads 0.7 -host api.example.com", "api.example.com follows the policy *.example.com of " + hosts, 0},
		{"-policy " + hosts + " -lengths 1s -loads 0.7 -host api.exmaple.com", "api.exmaple.com follows the policy default of " + hosts, 0},
		{"-queue 100ms -policy no-budget", "any policy recovers here: a full queue of 100ms", 0},
		{"-timeout 250ms", "retrip sets no AttemptTimeout: an attempt is taken to end after 250ms", 0},
		{"-policy testdata/hedge.json -clients 10 -lengths 1s", "where only the queue makes requests late: the 99th percentile is ", 0},
		{"-policy testdata/hedge.json -clients 700 -rate 350 -lengths 1s -loads 0.5", "hedge has no hedges here: each client sends 0.5 requests/s to the host, fewer than 2", 0},
	} {
		code, out, errs := call(t, append([]string{"check", "-price=false"}, strings.Fields(c.args)...)...)
		assert.Equal(t, c.code, code, c.args)
		assert.Empty(t, errs, c.args)
		assert.Contains(t, out, c.says, c.args)
		assert.Equal(t, code != 0, strings.Contains(out, "FAILS"), c.args)

		code, out, _ = call(t, append([]string{"check", "-price=false", "-json"}, strings.Fields(c.args)...)...)
		assert.Equal(t, c.code, code, c.args)
		var all struct{ Results []checked }
		require.NoError(t, json.Unmarshal([]byte(out), &all), c.args)
		require.Len(t, all.Results, 1)
		assert.Equal(t, code == 0, all.Results[0].OK, c.args)
		assert.NotEmpty(t, all.Results[0].Cases, c.args)
	}
	for args, says := range map[string]string{
		"-queue -1s":   "-queue is -1s: it must be 0 to 1m",
		"-loads 1.5":   "-loads is 1.5: it must be less than 1",
		"-clients 0":   "-clients is 0",
		"-lengths 1ms": "-lengths is 1ms",
	} {
		code, _, errs := call(t, append([]string{"check"}, strings.Fields(args)...)...)
		assert.Equal(t, exitUsage, code, args)
		assert.Contains(t, errs, says, args)
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

	run := func(file string) int {
		args := strings.Fields(strings.Replace(line, "policies.json", file, 1))
		code, _, errs := call(t, append(args, "-price=false")...)
		require.Empty(t, errs)
		return code
	}
	assert.Zero(t, run(dir+"policies.json"))
	policies, err := os.ReadFile(dir + "policies.json")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "policies.json")
	require.NoError(t, os.WriteFile(file, bytes.Replace(policies, []byte(`"deadline": "1s"`), []byte(`"deadline": "1s", "budget": {"size": "off"}`), 1), 0o600))
	assert.Equal(t, exitFailed, run(file))
}

// price says what retries cost and what helps, and check says what they cost the
// fleet in question.
func TestPrice(t *testing.T) {
	file := filepath.Join(t.TempDir(), "price.json")
	code, out, errs := call(t, "price", "-runs", "3", "-policy", "retrip,no-budget", "-o", file)
	require.Zero(t, code, errs)
	assert.Regexp(t, `no-budget +90 % .* – `, out, "without a budget there is no account and no Size")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	var all struct{ Results []priced }
	require.NoError(t, json.Unmarshal(data, &all))
	find := func(words, remedy string) priced {
		for _, p := range all.Results {
			if p.Policy == "retrip" && strings.Contains(p.Case, words) && p.Remedy == remedy {
				return p
			}
		}
		require.Fail(t, "no such row", "%s, %s", words, remedy)
		return priced{}
	}
	for _, fleet := range []string{" 3000 clients", "90 % load on ten backends, 10000 clients"} {
		assert.Greater(t, find(fleet, "without retries").Least, 98.0)
		assert.Less(t, find(fleet, "as it is").Least, 98.0)
		assert.Greater(t, find(fleet, "servers shed retries").Least, 99.0)
	}
	refuse := "3 of them refuse"
	assert.Less(t, find(refuse, "as it is").Most, find(refuse, "without retries").Least)
	assert.Greater(t, find(refuse, "with the fleet's account").Least, find(refuse, "without retries").Most)
	assert.Less(t, find("outage of 200ms", "as it is").Most, 5.0)
	assert.Greater(t, find("outage of 200ms", "Size 200").Least, 80.0)

	_, out, errs = call(t, "check", "-lengths", "1s", "-loads", "0.7", "-clients", "300")
	assert.Empty(t, errs)
	assert.Contains(t, out, "what retrip costs clients with 2.33 requests/s each: at a steady 90 % load on ten backends chosen at random 80–100 % of the requests succeed, without retries 99.2 %")
}

// limit and check agree.
func TestLimitAgreesWithCheck(t *testing.T) {
	_, out, _ := call(t, "limit", "-o", filepath.Join(t.TempDir(), "x.json"))
	largest, err := strconv.Atoi(strings.Fields(strings.Split(out, "\n")[3])[1])
	require.NoError(t, err, out)
	for clients, want := range map[int]int{largest * 9 / 10: 0, largest * 5 / 4: exitFailed} {
		code, out, _ := call(t, "check", "-price=false", "-loads", "0.7", "-clients", strconv.Itoa(clients))
		assert.Equal(t, want, code, out)
	}
}

// A gate raises the share of a rate limit that clients use.
//
//retrip:promise P23
func TestGate(t *testing.T) {
	row := func(args ...string) string {
		code, out, errs := call(t, append([]string{"gate", "-only", "10/s, burst 10, exact"}, args...)...)
		require.Zero(t, code, errs)
		return regexp.MustCompile(`(?m)^10/s.*`).FindString(out)
	}
	assert.Regexp(t, `^10/s, burst 10, exact +retrip +(99|100)\.\d % +[23]\.\d % `, row())
	assert.NotRegexp(t, ` [0-9]\.\d % `, row("-gate=false"))
	code, _, errs := call(t, "gate", "-only", "nothing like this")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, errs, `-only is "nothing like this": no case name contains it`)
}
