// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Command mutate checks the tests of the root package by mutation: it makes
// every small change it knows to the decision core, the replay of bodies and what
// makes response bodies arrive whole, one at a time, and reports which changes no
// test notices. Run it in the root of the repository:
//
//	go run ./lab/mutate                     # all files of the core
//	go run ./lab/mutate -files budget.go    # one file
//
// All mutants are compiled into one test binary with go build's overlay and
// switched on by an environment variable. The repository stays unchanged. The
// exit status is 1 if the score is below -least.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const core = "decide.go,backoff.go,retryafter.go,rules.go,idempotency.go,body.go,internal/budget/budget.go,internal/budget/shared.go,internal/breaker/breaker.go,internal/gate/gate.go,internal/gate/pace.go,internal/gate/queue.go,internal/gate/table.go,internal/host/guards.go,internal/host/record.go,internal/resume/resume.go,internal/dialect/retryafter.go,internal/replay/replay.go,internal/replay/reader.go,internal/body/discard.go,internal/body/prefixed.go,internal/body/joined.go,internal/body/idle.go"

func main() {
	log.SetFlags(0)
	log.SetPrefix("mutate: ")
	files := flag.String("files", core, "what to mutate")
	run := flag.String("run", ".", "the tests to run, a regular expression")
	slow := flag.String("slow", "IndependentFailures|Fleet|ManyClients|SavesAttempts|Hostile|BackoffUniform|Replay_EarlyAnswer", "tests to run only where the others have noticed nothing, a regular expression")
	workers := flag.Int("workers", 2, "mutants tested at a time")
	timeout := flag.Duration("timeout", 30*time.Second, "for the tests of one mutant; a mutant that hangs is noticed")
	only := flag.String("mutants", "", "numbers of the mutants to test, separated by commas; empty is all")
	sample := flag.Int("sample", 1, "test every nth mutant only")
	least := flag.Float64("least", 0, "the score in % to reach")
	flag.Parse()
	score, err := mutate(strings.Split(*files, ","), *run, *slow, *workers, *timeout, *only, *sample)
	if err != nil {
		log.Fatal(err)
	}
	if score < *least {
		log.Fatalf("%.1f %% is less than the %.1f %% wanted", score, *least)
	}
}

func mutate(files []string, run, slow string, workers int, timeout time.Duration, only string, sample int) (float64, error) {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	mutants, err := prepare(dir, files)
	if err != nil {
		return 0, err
	}
	binary := filepath.Join(dir, "core.test")
	build := exec.Command("go", "test", "-c", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("the mutants don't compile: %w\n%s", err, out)
	}
	began := time.Now()
	if out, killed := test(binary, run, skipped, false, 0, timeout); killed {
		return 0, fmt.Errorf("the tests fail without any mutant:\n%s", out)
	}
	fmt.Printf("%d mutants; all the tests take %v\n", len(mutants), time.Since(began).Round(time.Millisecond))
	if only != "" {
		wanted := strings.Split(only, ",")
		mutants = slices.DeleteFunc(mutants, func(m mutant) bool { return !slices.Contains(wanted, strconv.Itoa(m.id)) })
	}

	mutants = slices.DeleteFunc(mutants, func(m mutant) bool { return m.id%sample != 0 })

	survived := make([]bool, len(mutants))
	work := make(chan int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range work {
				_, killed := test(binary, run, skipped+"|"+slow, true, mutants[i].id, timeout)
				if !killed {
					_, killed = test(binary, run, skipped, false, mutants[i].id, timeout)
				}
				if survived[i] = !killed; survived[i] {
					m := mutants[i]
					fmt.Printf("survived: #%d %s:%d: %s\n", m.id, m.file, m.line, m.what)
				}
			}
		})
	}
	for i := range mutants {
		work <- i
	}
	close(work)
	wg.Wait()

	type tally struct{ all, killed int }
	tallies := map[string]*tally{}
	total := tally{}
	for i, m := range mutants {
		t := tallies[m.file]
		if t == nil {
			t = &tally{}
			tallies[m.file] = t
		}
		t.all++
		total.all++
		if !survived[i] {
			t.killed++
			total.killed++
		}
	}
	for _, file := range files {
		if t := tallies[file]; t != nil {
			fmt.Printf("%-28s %4d of %4d noticed, %5.1f %%\n", file, t.killed, t.all, 100*float64(t.killed)/float64(t.all))
		}
	}
	score := 100 * float64(total.killed) / float64(max(total.all, 1))
	fmt.Printf("%-28s %4d of %4d noticed, %5.1f %% (%v)\n", "all", total.killed, total.all, score, time.Since(began).Round(time.Second))
	return score, nil
}

// test runs the tests with one mutant switched on (0 means none) and reports
// whether they failed.
func test(binary, run, skip string, short bool, id int, timeout time.Duration) (out []byte, killed bool) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, fmt.Sprint("-test.short=", short), "-test.failfast", "-test.run", run, "-test.skip", skip)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", variable, id))
	out, err := cmd.CombinedOutput()
	return out, err != nil
}

// skipped matches examples, which run in real time.
const skipped = "^Example"

const variable = "RETRIP_MUTANT"

// prepare writes the mutated files into dir, and the overlay that substitutes
// them for the original files.
func prepare(dir string, files []string) ([]mutant, error) {
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	var mutants []mutant
	packages := map[string]*pkg{}
	for _, name := range files {
		in := path.Dir(name)
		if packages[in] == nil {
			pkg, err := load(in)
			if err != nil {
				return nil, err
			}
			packages[in] = pkg
			if err := put(&overlay.Replace, dir, path.Join(in, "mutant_on.go"), []byte("package "+pkg.name+switches)); err != nil {
				return nil, err
			}
		}
		text, found, err := packages[in].mutate(name, len(mutants)+1)
		if err != nil {
			return nil, err
		}
		mutants = append(mutants, found...)
		if err := put(&overlay.Replace, dir, name, text); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		return nil, err
	}
	return mutants, os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600)
}

func put(replace *map[string]string, dir, name string, text []byte) error {
	real, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	copied := filepath.Join(dir, name)
	(*replace)[real] = copied
	if err := os.MkdirAll(filepath.Dir(copied), 0o700); err != nil {
		return err
	}
	return os.WriteFile(copied, bytes.TrimLeft(text, "\n"), 0o600)
}

// switches is the code that the mutated files call.
const switches = `

import (
	"os"
	"strconv"
)

var mutantOn, _ = strconv.Atoi(os.Getenv("` + variable + `"))

func mutant(id int) bool { return mutantOn == id }

// mutantPick is not inlined: what follows from the real value must not be
// known to the compiler.
//
//go:noinline
func mutantPick[T any](id int, real, other T) T {
	if mutantOn == id {
		return other
	}
	return real
}
`
