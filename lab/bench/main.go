// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Bench measures the cost of retries with retrip, with other libraries, with a
// hand-written loop and with bare net/http, and prints tables. It takes all
// timings in one process. In each round the peers take turns in a different
// order, so that other load on the machine affects all of them alike; compare
// within a round.
//
//	go run .          measure and print
//	go run . -save    also save the results, and update the pages
//	go run . -render  update the pages from the saved results
//	go run . -weight  measure and print only how large the libraries make a program; -save replaces these results alone
//	go run . -instructions  count the instructions of requests with valgrind, and fail if there are too many
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// saved is the file of the results, in this directory.
const saved = "results/results.json"

func main() {
	rounds := flag.Int("rounds", 41, "how often each peer is timed in each case")
	benchtime := flag.Duration("benchtime", 3*time.Millisecond, "how long each time")
	run := flag.String("run", "", "regular expression for what -instructions counts")
	save := flag.Bool("save", false, "save the results, and write their sections of README.md and docs/performance.md")
	render := flag.Bool("render", false, "write the sections from the results saved before")
	weight := flag.Bool("weight", false, "measure only how large the libraries make a program")
	counted := flag.Bool("instructions", false, "count the instructions of requests with valgrind, and fail if there are too many")
	turnOf, turnPeer, turns := flag.String("turn", "", "make requests of this kind, for -instructions"), flag.String("peer", "", "with this peer"), flag.Int("turns", 0, "so many")
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	testing.Init()
	flag.Parse()
	if *turnOf != "" {
		if err := turn(*turnOf, *turnPeer, *turns); err != nil {
			log.Fatal(err)
		}
		return
	}
	if *counted {
		var wanted *regexp.Regexp
		if *run != "" {
			wanted = regexp.MustCompile(*run)
		}
		if err := instructions(wanted, os.Stdout); err != nil {
			log.Fatal(err)
		}
		return
	}
	if err := errors.Join(flag.Set("test.benchtime", benchtime.String()), act(*rounds, *save, *render, *weight)); err != nil {
		log.Fatal(err)
	}
}

func act(rounds int, save, render, weight bool) error {
	var r *results
	var err error
	if render || weight {
		r, err = load(saved)
	} else {
		r, err = measure(rounds)
	}
	if err == nil && !render {
		r.Weights, err = weigh()
	}
	if err != nil {
		return err
	}
	fmt.Println(r.cost() + r.table())
	if save {
		data, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.FromSlash(saved), append(data, '\n'), 0o644); err != nil {
			return err
		}
	}
	if save || render {
		return r.updatePages()
	}
	return nil
}

func measure(rounds int) (*results, error) {
	r := &results{
		Machine: machine(), Procs: runtime.GOMAXPROCS(0), Go: runtime.Version(), Date: time.Now().UTC().Format(time.DateOnly),
		Rounds: rounds, Versions: map[string]string{}, Loopback: map[string]map[string][]float64{},
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			r.Versions[m.Path] = m.Version
		}
	}
	for round := range rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, rounds)
		for _, c := range cases {
			timeAll(r, c, round)
		}
	}
	for protocol, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		fmt.Fprintf(os.Stderr, "pairs over %s\n", protocol)
		var err error
		if r.Loopback[protocol], err = measureLoopback(http2, 10*rounds); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// timeAll times all peers in one case, in random order.
func timeAll(r *results, c benchCase, round int) {
	runs := make([]timing, len(peers))
	for _, i := range rand.Perm(len(peers)) {
		p := peers[i]
		if !c.able(p) {
			continue
		}
		b := testing.Benchmark(func(b *testing.B) { c.run(b, p) })
		if b.N == 0 {
			log.Fatalf("%s of %s failed", c.name, p.name)
		}
		runs[i] = timing{
			Case: c.name, Peer: p.name, Round: round, N: b.N, Ns: float64(b.T.Nanoseconds()) / float64(b.N),
			Allocs: b.AllocsPerOp(), Bytes: b.AllocedBytesPerOp(),
		}
	}
	for _, run := range runs {
		if run.N > 0 {
			r.Runs = append(r.Runs, run)
		}
	}
}

// machine returns the model of the processor, if the system reports it.
func machine() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOOS + "/" + runtime.GOARCH
}
