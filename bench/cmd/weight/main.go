// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Weight builds a program that makes one request, with net/http alone, with a
// metric of client_golang, with retrip, and with retrip without client_golang. It
// prints the size of each binary, stripped, the number of packages in it, and the
// time that the packages take to initialize. Run it in directory bench:
//
//	go run ./cmd/weight
package main

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

func main() {
	dir, err := os.MkdirTemp("", "weight")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Setenv("GOWORK", "off") // a workspace allows no other go.mod
	modfile := filepath.Join(dir, "go.mod")
	if err := leaveOut("github.com/prometheus/client_golang", "weight/stub", modfile); err != nil {
		log.Fatalf("weight: %v", err)
	}
	fmt.Printf("%-28s %9s %9s %9s\n", "", "binary", "packages", "init")
	for _, program := range []struct{ name, pkg, modfile string }{
		{"net/http alone", "./weight/nethttp", ""},
		{"with a client_golang metric", "./weight/prometheus", ""},
		{"with retrip", "./weight/retrip", ""},
		{"without client_golang", "./weight/retrip", modfile},
	} {
		size, packages, initMs, err := measure(program.pkg, filepath.Join(dir, "program"), "-modfile="+program.modfile)
		if err != nil {
			log.Fatalf("weight: %s: %v", program.name, err)
		}
		fmt.Printf("%-28s %6.2f MB %9d %6.2f ms\n", program.name, float64(size)/1e6, packages, initMs)
	}
}

// leaveOut copies go.mod and go.sum of this module to modfile, so that stub takes
// the place of module.
func leaveOut(module, stub, modfile string) error {
	edit := exec.Command("go", "mod", "edit", "-print", "-replace", module+"="+must(filepath.Abs(stub)), "-replace", "github.com/retrip/retrip="+must(filepath.Abs("..")))
	mod, err := edit.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", edit, err)
	}
	sum, err := os.ReadFile("go.sum")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(modfile, mod, 0o600), os.WriteFile(strings.TrimSuffix(modfile, "mod")+"sum", sum, 0o600))
}

func must(path string, err error) string {
	if err != nil {
		log.Fatalf("weight: %v", err)
	}
	return path
}

// measure builds pkg into file and returns the size of the binary in bytes, the
// number of its packages, and their initialization time in milliseconds.
func measure(pkg, file, modfile string) (size int64, packages int, initMs float64, err error) {
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", modfile, "-o", file, pkg).CombinedOutput(); err != nil {
		return 0, 0, 0, fmt.Errorf("%w\n%s", err, out)
	}
	info, err := os.Stat(file)
	if err != nil {
		return 0, 0, 0, err
	}
	deps, err := exec.Command("go", "list", "-deps", modfile, pkg).Output()
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
