// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

var (
	seed    = flag.Uint64("seed", 1, "seed of the first world")
	worlds  = flag.Int("worlds", 300, "how many worlds TestWorlds runs")
	story   = flag.Bool("story", false, "print the whole story of a world that breaks a promise, or of the world -seed if -worlds is 1")
	replays = flag.Int("replays", 20, "how many worlds TestRun_Replays runs")
	shrunk  = flag.Int("shrink", 3000, "how many worlds may be tried to find a simpler one that breaks the same promise")
)

// TestWorlds runs -worlds worlds from -seed on, until one breaks a promise.
//
//retrip:promise P1 P2 P3 P4 P5 P6 P7 P8 P9 P10 P11 P12 P13 P14 P15 P17 P18 P19 P20 P21 P22 P23
func TestWorlds(t *testing.T) {
	debug.SetGCPercent(400)
	began := time.Now()
	for s := *seed; s < *seed+uint64(*worlds); s++ {
		choices := record(s)
		plan := planOf(choices)
		o := Run(t, &plan)
		if *story && *worlds == 1 {
			t.Log(strings.Join(o.Story(), "\n"))
		}
		if len(o.Violations) > 0 {
			t.Fatal(tell(t, s, choices, o))
		}
	}
	t.Logf("%d worlds in %v", *worlds, time.Since(began).Round(time.Millisecond))
}

// tell tells how a promise broke, in a world that is as simple as possible.
func tell(t *testing.T, seed uint64, choices *tape, o Outcome) string {
	promise := o.Violations[0].Promise
	var b strings.Builder
	fmt.Fprintf(&b, "world %d breaks %v\n", seed, o.Violations[0])
	tries := 0
	best := choices.shrink(*shrunk, func(c []uint64) (*tape, bool) {
		tries++
		next := replay(c)
		plan := planOf(next)
		got := Run(t, &plan)
		if len(got.Violations) == 0 || got.Violations[0].Promise != promise {
			return nil, false
		}
		o = got
		return next, true
	})
	fmt.Fprintf(&b, "the simplest of %d worlds breaks %v\n", tries, o.Violations[0])
	if *story {
		fmt.Fprintf(&b, "%+v\n", planOf(replay(best.made)))
	}
	lines := o.Story()
	if most := 27; len(lines) > most && !*story {
		lines = append(lines[:most:most], fmt.Sprintf("and %d more lines (-story shows them)", len(lines)-most))
	}
	b.WriteString(strings.Join(lines, "\n"))
	return b.String()
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(m.Run())
}
