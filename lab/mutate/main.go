// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Command mutate checks tests by mutation: it makes every small change it knows
// to the code of the given packages, one at a time, and reports the changes that
// no test notices. Run it in the root of the repository:
//
//	go run ./lab/mutate ./internal/budget ./internal/breaker
//
// All mutants are compiled into the test binaries with go build's overlay and
// switched on by an environment variable. So nothing is compiled for a single
// mutant, and the repository stays unchanged. Each test first runs alone, to
// learn which mutants it reaches. For a mutant, only the tests that reach it run.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("mutate: ")
	tests := flag.String("tests", ". ./internal/...", "the packages whose tests to run")
	flag.Parse()
	if err := mutate(flag.Args(), strings.Fields(*tests)); err != nil {
		log.Fatal(err)
	}
}

func mutate(patterns, tested []string) error {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	mutants, err := prepare(dir, patterns)
	if err != nil {
		return err
	}
	tests, err := build(dir, tested)
	if err != nil {
		return err
	}
	fmt.Printf("%d mutants, %d tests\n", len(mutants), len(tests))

	var mu sync.Mutex
	parallel(tests, func(t *test) {
		reached, err := t.explore(dir)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			log.Printf("left out, because it fails without a mutant: %s: %v", t.name, err)
		}
		for _, id := range reached {
			mutants[id-1].tests = append(mutants[id-1].tests, t)
		}
	})
	parallel(mutants, func(m *mutant) {
		m.noticed = m.test()
		switch {
		case len(m.tests) == 0:
			fmt.Printf("not reached: %s: %s\n", m.at, m.what)
		case !m.noticed:
			fmt.Printf("survived: %s: %s\n", m.at, m.what)
		}
	})

	noticed, all := map[string]int{}, map[string]int{}
	for _, m := range mutants {
		for _, in := range []string{path.Dir(m.at), "total"} {
			all[in]++
			if m.noticed {
				noticed[in]++
			}
		}
	}
	for _, in := range slices.Sorted(maps.Keys(all)) {
		fmt.Printf("%-20s %4d of %4d noticed, %5.1f %%\n", in, noticed[in], all[in], 100*float64(noticed[in])/float64(all[in]))
	}
	return nil
}

// parallel calls do for all, with as many calls at a time as there are CPUs.
func parallel[T any](all []T, do func(T)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, one := range all {
		slots <- struct{}{}
		wg.Go(func() {
			do(one)
			<-slots
		})
	}
	wg.Wait()
}

// test is one test function.
type test struct {
	binary string // that contains it
	in     string // the directory of its package
	name   string
	took   time.Duration
}

// build compiles the tests of the given packages with the overlay in dir.
func build(dir string, packages []string) ([]*test, error) {
	args := []string{"test", "-c", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"), "-o", dir + "/"}
	if out, err := exec.Command("go", append(args, packages...)...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("the mutants don't compile: %w\n%s", err, out)
	}
	list, err := exec.Command("go", append([]string{"list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}\t{{.Dir}}{{end}}"}, packages...)...).Output()
	if err != nil {
		return nil, err
	}
	var tests []*test
	for line := range strings.Lines(string(list)) {
		name, in, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		binary := filepath.Join(dir, path.Base(name)+".test")
		// Examples run in real time.
		out, err := exec.Command(binary, "-test.list", "^(Test|Fuzz)").Output()
		if err != nil {
			return nil, err
		}
		for name := range strings.FieldsSeq(string(out)) {
			tests = append(tests, &test{binary: binary, in: in, name: name})
		}
	}
	return tests, nil
}

// explore runs a test without a mutant. It returns the numbers of the mutants
// that the test reaches.
func (t *test) explore(dir string) (reached []int, err error) {
	file, err := os.CreateTemp(dir, "reached")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	began := time.Now()
	if err := run([]*test{t}, 10*time.Minute, "REACHED="+file.Name()); err != nil {
		return nil, err
	}
	t.took = time.Since(began)
	for id := 0; ; {
		if _, err := fmt.Fscan(file, &id); err != nil {
			return reached, nil
		}
		reached = append(reached, id)
	}
}

// test reports whether a test fails with the mutant.
func (m *mutant) test() bool {
	// Most mutants fail a quick test, so the slow ones seldom run.
	type group struct {
		binary string
		slow   bool
	}
	groups := map[group][]*test{}
	for _, t := range m.tests {
		g := group{t.binary, t.took > 200*time.Millisecond}
		groups[g] = append(groups[g], t)
	}
	inOrder := slices.SortedFunc(maps.Values(groups), func(a, b []*test) int { return cmp.Compare(took(a), took(b)) })
	return slices.ContainsFunc(inOrder, func(tests []*test) bool {
		// A mutant that hangs is noticed.
		return run(tests, 10*time.Second+5*took(tests), "MUTANT="+strconv.Itoa(m.id)) != nil
	})
}

func took(tests []*test) (sum time.Duration) {
	for _, t := range tests {
		sum += t.took
	}
	return sum
}

// run runs tests of one binary, and returns an error if they fail.
func run(tests []*test, timeout time.Duration, env string) error {
	var names []string
	for _, t := range tests {
		names = append(names, t.name)
	}
	cmd := exec.Command(tests[0].binary, "-test.failfast", "-test.timeout", timeout.String(), "-test.run", "^("+strings.Join(names, "|")+")$")
	cmd.Dir = tests[0].in
	cmd.Env = append(os.Environ(), prefix+env)
	return cmd.Run()
}
