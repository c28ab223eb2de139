// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Weight builds a program that makes one request, with net/http alone, with a
// metric of client_golang, and with retrip. It prints the size of each binary,
// stripped, the number of packages in it, and the time that the packages take to
// initialize. Run it in directory bench:
//
//	go run ./cmd/weight
package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

func main() {
	dir, err := os.MkdirTemp("", "weight")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	fmt.Printf("%-12s %9s %9s %9s\n", "", "binary", "packages", "init")
	for _, name := range []string{"nethttp", "prometheus", "retrip"} {
		size, packages, initMs, err := measure("./weight/"+name, filepath.Join(dir, name))
		if err != nil {
			log.Fatalf("weight: %s: %v", name, err)
		}
		fmt.Printf("%-12s %6.2f MB %9d %6.2f ms\n", name, float64(size)/1e6, packages, initMs)
	}
}

// measure builds pkg into file and returns the size of the binary in bytes, the
// number of its packages, and their initialization time in milliseconds.
func measure(pkg, file string) (size int64, packages int, initMs float64, err error) {
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, pkg).CombinedOutput(); err != nil {
		return 0, 0, 0, fmt.Errorf("%w\n%s", err, out)
	}
	info, err := os.Stat(file)
	if err != nil {
		return 0, 0, 0, err
	}
	deps, err := exec.Command("go", "list", "-deps", pkg).Output()
	if err != nil {
		return 0, 0, 0, err
	}
	run := exec.Command(file)
	run.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := run.CombinedOutput()
	if err != nil {
		return 0, 0, 0, fmt.Errorf("%w\n%s", err, out)
	}
	return info.Size(), bytes.Count(deps, []byte("\n")), initTime(out), nil
}

var initLine = regexp.MustCompile(`(?m)^init .*, ([0-9.]+) ms clock`)

// initTime sums the clock times in the output of GODEBUG=inittrace=1.
func initTime(trace []byte) (ms float64) {
	for _, match := range initLine.FindAllSubmatch(trace, -1) {
		if t, err := strconv.ParseFloat(string(match[1]), 64); err == nil {
			ms += t
		}
	}
	return ms
}
