// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/sim"
)

// A percentile has as many digits as the bins of a result can tell apart.
func TestPercentile(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                          "–",
		973_100 * time.Microsecond: "≈ 970 ms",
		994 * time.Millisecond:     "≈ 990 ms",
		996 * time.Millisecond:     "≈ 1 s",
		1040 * time.Millisecond:    "≈ 1 s",
		1540 * time.Millisecond:    "≈ 1.5 s",
		12_345 * time.Millisecond:  "≈ 12 s",
		7630 * time.Microsecond:    "≈ 7.6 ms",
		347 * time.Microsecond:     "≈ 350 µs",
	} {
		one := []*sim.Result{{P99: d}}
		assert.Equal(t, want, percentile(one, func(r *sim.Result) time.Duration { return r.P99 }))
	}
	for _, args := range []string{"overload -horizon 50s -runs 1", "storm -crowd herd -policy full"} {
		_, out, _ := call(t, strings.Fields(args)...)
		assert.Regexp(t, ` ≈ (\d\d?|\d\.\d|\d\d0) m?s\n`, out)
		assert.NotRegexp(t, `[0-9]m?s\n`, strings.Split(out, "\n")[3])
	}
}

// What differs from seed to seed is a range, and an interrupted run proves nothing.
func TestRanges(t *testing.T) {
	run := func(recovery time.Duration, succeeded int64, partial bool) *sim.Result {
		return &sim.Result{Recovery: recovery, Requests: 1000, Succeeded: succeeded, Partial: partial}
	}
	for _, c := range []struct {
		group             []*sim.Result
		recovery, success string
	}{
		{[]*sim.Result{run(3*time.Second, 900, false), run(4*time.Second, 920, false), run(5*time.Second, 940, false)}, "4 s", "92.0 %"},
		{[]*sim.Result{run(sim.Never, 312, false), run(sim.Never, 320, false)}, "never", "32.0 %"},
		{[]*sim.Result{run(sim.Never, 312, false), run(7*time.Second, 900, false), run(5*time.Second, 999, false)}, "5 s–never", "31–100 %"},
		{[]*sim.Result{run(sim.Never, 999, true)}, "not yet", "99.9 %"},
	} {
		assert.Equal(t, c.recovery, recovery(c.group))
		assert.Equal(t, c.success, successText(c.group))
	}
	s := sim.Overload()
	assert.NotContains(t, recoveryFinding(s, [][]*sim.Result{{run(sim.Never, 0, true)}}), "recovered")
	assert.Contains(t, recoveryFinding(s, [][]*sim.Result{{run(sim.Never, 0, false)}}), "has not recovered")

	// Of the runs that an interrupt cuts off, those that ended count.
	whole, cut := run(3*time.Second, 900, false), run(sim.Never, 900, true)
	assert.Equal(t, []*sim.Result{whole}, ended([]*sim.Result{whole, cut, nil}))
	assert.Equal(t, []*sim.Result{cut}, ended([]*sim.Result{cut, nil}))
	assert.Empty(t, ended([]*sim.Result{nil}))
}

// The peak of a chart is the peak of the table, in a run that has it.
func TestPeaksAgree(t *testing.T) {
	for _, args := range []string{"overload -policy no-budget,retrip", "overload -bin 100ms -horizon 50s", "overload -trigger-at 30.3s -horizon 60s", "storm -runs 5 -policy full,equal"} {
		_, out, errs := call(t, strings.Fields(args)...)
		require.Empty(t, errs)
		head, _, _ := strings.Cut(out, "; all from 0")
		column := strings.Split(regexp.MustCompile(`(?m)^policy .*`).FindString(head), "peak")[0]
		for name := range strings.FieldsSeq("no-budget retrip full equal") {
			row := regexp.MustCompile(`(?m)^` + name + ` .*`).FindString(head)
			if row == "" {
				continue
			}
			peak := strings.Fields(row[len(column)-1:])[0]
			if strings.HasPrefix(args, "storm") {
				peak = strings.Fields(row)[1]
			}
			assert.Regexp(t, `(?m)^`+name+` +at most `+peak+`( in a second)?$`, out, args)
		}
	}
}
