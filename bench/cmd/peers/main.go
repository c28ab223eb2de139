// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Peers measures the cost of retries with retrip, with its peers, with a
// hand-written loop and with bare net/http, and prints tables. It takes all
// timings in one process. In each round the peers take turns in a different
// order, so that other load on the machine affects all of them alike; compare
// within a round.
//
//	go run ./cmd/peers                  measure and print
//	go run ./cmd/peers -save            also save the results, and update the pages and the chart
//	go run ./cmd/peers -render          update the pages and the chart from the saved results
//	go run ./cmd/peers -guard           fail if times have got much longer, compared with those of the peers
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/retrip/retrip/bench"
)

var (
	rounds    = flag.Int("rounds", 41, "how often each peer is timed in each case")
	benchtime = flag.Duration("benchtime", 3*time.Millisecond, "how long each time")
	run       = flag.String("run", "", "regular expression for the timings to make, and for pairs, upload, waiting and connections")
	among     = flag.String("among", "", "regular expression for the peers to measure, which always include bare net/http")
	save      = flag.Bool("save", false, "write results, their sections in README.md and docs/performance-tables.md, and the chart")
	guard     = flag.Bool("guard", false, "measure only what is guarded, and fail if a ratio is out of bounds")
	render    = flag.Bool("render", false, "write sections and chart from the results written before")
	root      = flag.String("root", "..", "directory of the repository")
	child     = flag.String("child", "", "what to measure in this process; used by the command itself")
	peer      = flag.String("peer", "", "the peer, for -child")
	url       = flag.String("url", "", "the server, for -child")
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("peers: ")
	testing.Init()
	flag.Parse()
	if *child != "" {
		if err := measureHere(); err != nil {
			log.Fatal(err)
		}
		return
	}
	if *guard {
		*run = bench.GuardedRuns
	}
	if err := choosePeers(); err != nil {
		log.Fatal(err)
	}
	path := filepath.Join(*root, "bench", "results")
	r := &bench.Results{}
	if *render {
		var err error
		if r, err = bench.Load(filepath.Join(path, "results.json")); err != nil {
			log.Fatal(err)
		}
	} else if err := measure(r); err != nil {
		log.Fatal(err)
	}
	if *guard {
		if !r.WriteGuards(os.Stdout) {
			log.Fatal("a ratio is out of bounds")
		}
		return
	}
	r.WriteText(os.Stdout)
	if *save {
		if err := write(r, path); err != nil {
			log.Fatal(err)
		}
	}
	if *save || *render {
		if err := r.UpdatePages(*root); err != nil {
			log.Fatal(err)
		}
		if err := r.WriteChart(filepath.Join(*root, "docs", "performance.png")); err != nil {
			log.Fatal(err)
		}
	}
}

// choosePeers leaves out the peers that nobody has asked for.
func choosePeers() error {
	wanted, err := regexp.Compile(*among)
	if err != nil {
		return fmt.Errorf("-among: %w", err)
	}
	if *guard && *save {
		return errors.New("-guard: -save needs all runs")
	}
	if *among != "" && (*save || *guard) {
		return errors.New("-among: -save and -guard need all peers")
	}
	bench.Peers = slices.DeleteFunc(bench.Peers, func(p bench.Peer) bool {
		return p.Name != bench.Peers[0].Name && !wanted.MatchString(p.Name)
	})
	return nil
}

func write(r *bench.Results, path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(path, "results.json"), append(data, '\n'), 0o644); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(path, "benchstat.txt"))
	if err != nil {
		return err
	}
	r.WriteBenchstat(f)
	return f.Close()
}

func measure(r *bench.Results) error {
	wanted, err := regexp.Compile(*run)
	if err != nil {
		return err
	}
	if err := flag.Set("test.benchtime", benchtime.String()); err != nil {
		return err
	}
	r.Machine, r.Procs = bench.Machine(), runtime.GOMAXPROCS(0)
	r.Go, r.Date, r.Rounds = runtime.Version(), time.Now().UTC().Format(time.DateOnly), *rounds
	r.Versions = versions()
	r.Uploads, r.Waiting, r.Connections = map[string][]bench.Upload{}, map[string]bench.Waiting{}, map[string][]int{}
	for round := range *rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, *rounds)
		for _, c := range bench.Cases {
			if wanted.MatchString(c.Name) {
				timeAll(r, c, round)
			}
		}
	}
	r.Loopback = map[string]map[string][]float64{}
	for protocol, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		if wanted.MatchString("pairs") {
			fmt.Fprintf(os.Stderr, "pairs over %s\n", protocol)
			if r.Loopback[protocol], err = bench.MeasureLoopback(http2, 10**rounds); err != nil {
				return err
			}
		}
	}
	return measureProcesses(r, wanted)
}

// timeAll times all peers in one case, in random order.
func timeAll(r *bench.Results, c bench.Case, round int) {
	runs := make([]bench.Run, len(bench.Peers))
	for _, i := range rand.Perm(len(bench.Peers)) {
		p := bench.Peers[i]
		if !c.Able(p) {
			continue
		}
		b := testing.Benchmark(func(b *testing.B) { c.Run(b, p) })
		if b.N == 0 {
			log.Fatalf("%s of %s failed", c.Name, p.Name)
		}
		runs[i] = bench.Run{
			Case: c.Name, Peer: p.Name, Round: round, N: b.N, Ns: float64(b.T.Nanoseconds()) / float64(b.N),
			Allocs: b.AllocsPerOp(), Bytes: b.AllocedBytesPerOp(),
		}
	}
	for _, run := range runs {
		if run.N > 0 {
			r.Runs = append(r.Runs, run)
		}
	}
}

// measureProcesses takes the measurements that each need a process of their
// own.
func measureProcesses(r *bench.Results, wanted *regexp.Regexp) error {
	server := bench.UploadServer()
	defer server.Close()
	for _, p := range bench.Peers {
		if wanted.MatchString("upload") {
			for range 5 {
				var u bench.Upload
				if err := inChild("upload", p.Name, server.URL, &u); err != nil {
					return err
				}
				r.Uploads[p.Name] = append(r.Uploads[p.Name], u)
			}
		}
		if wanted.MatchString("waiting") && (p.Retries() || p.Name == bench.Peers[0].Name) {
			var w bench.Waiting
			if err := inChild("waiting", p.Name, "", &w); err != nil {
				return err
			}
			r.Waiting[p.Name] = w
		}
		if wanted.MatchString("connections") && p.Retries() {
			var list []int
			if err := inChild("connections", p.Name, "", &list); err != nil {
				return err
			}
			r.Connections[p.Name] = list
		}
	}
	return nil
}

func inChild(what, peer, url string, into any) error {
	fmt.Fprintf(os.Stderr, "%s of %s\n", what, peer)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "-child", what, "-peer", peer, "-url", url)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s of %s: %w", what, peer, err)
	}
	return json.Unmarshal(out, into)
}

// measureHere takes the measurement of a child process.
func measureHere() error {
	var result any
	for _, p := range bench.Peers {
		if p.Name != *peer {
			continue
		}
		var err error
		switch *child {
		case "upload":
			result, err = bench.MeasureUpload(p, *url)
		case "waiting":
			result, err = bench.MeasureWaiting(p)
		case "connections":
			var list []int
			for _, size := range bench.ErrorBodies {
				n, err := bench.MeasureConnections(p, size)
				if err != nil {
					return err
				}
				list = append(list, n)
			}
			result = list
		}
		if err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// versions returns the versions of the modules in this program.
func versions() map[string]string {
	v := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			v[m.Path] = m.Version
		}
	}
	return v
}
