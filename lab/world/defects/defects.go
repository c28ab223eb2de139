// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Command defects shows what the random worlds find: it builds them with one defect of
// list.txt at a time in the library, and runs them until three have found it.
//
//	go run ./lab/world/defects -worlds 5000            # all, in half an hour
//	go run ./lab/world/defects -run 'P9 ' -worlds 300  # those that break P9
//
// The go command overlays the file with the defect, so the repository stays unchanged.
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

//go:embed list.txt
var list string

// defect is a small change that breaks a promise.
type defect struct {
	promise  string
	had      bool   // the project has had it, or one like it
	hidden   string // why the worlds can't find it; empty if they can
	name     string
	effect   string
	file     string
	old, new string
}

// title is the first line of a defect in the list.
var title = regexp.MustCompile(`^(P\d+)(\*?) ([a-z0-9-]+): (.+)$`)

// hidden begins a second line, which says why the worlds can't find the defect.
const hidden = "? "

// parse reads a list of defects, which are separated by empty lines.
func parse(list string) (all []defect, err error) {
	for text := range strings.SplitSeq(list, "\n\n") {
		lines := strings.Split(strings.Trim(text, "\n"), "\n")
		if strings.HasPrefix(lines[0], "#") {
			continue
		}
		m := title.FindStringSubmatch(lines[0])
		if m == nil || len(lines) < 3 {
			return nil, fmt.Errorf("want a title, a file and a change: %q", text)
		}
		d := defect{promise: m[1], had: m[2] != "", name: m[3], effect: m[4]}
		if why, ok := strings.CutPrefix(lines[1], hidden); ok && len(lines) > 3 {
			d.hidden, lines = why, lines[1:]
		}
		d.file = lines[1]
		var gone, come []string
		for _, line := range lines[2:] {
			switch line[0] {
			case '-':
				gone = append(gone, line[1:])
			case '+':
				come = append(come, line[1:])
			default:
				return nil, fmt.Errorf("%s: want a line that begins with - or +: %q", d.name, line)
			}
		}
		d.old, d.new = strings.Join(gone, "\n"), strings.Join(come, "\n")
		all = append(all, d)
	}
	return all, nil
}

// apply returns source, the text of d's file, with the defect.
func (d *defect) apply(source string) (string, error) {
	if n := strings.Count(source, d.old); n != 1 {
		return "", fmt.Errorf("%s: %s has the lines %d times, not once", d.name, d.file, n)
	}
	return strings.Replace(source, d.old, d.new, 1), nil
}

// sources are files with defects, by name.
type sources map[string]string

// add puts d into the files.
func (s sources) add(root string, d *defect) error {
	source, changed := s[d.file]
	if !changed {
		text, err := os.ReadFile(filepath.Join(root, d.file))
		if err != nil {
			return err
		}
		source = string(text)
	}
	source, err := d.apply(source)
	if err == nil {
		s[d.file] = source
	}
	return err
}

// overlay writes what the go command needs to see the files with their defects, into dir,
// and returns its name.
func (s sources) overlay(root, dir string) (string, error) {
	replace := map[string]string{}
	for file, source := range s {
		changed := filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		replace[filepath.Join(root, file)] = changed
		if err := os.WriteFile(changed, []byte(source), 0o600); err != nil {
			return "", err
		}
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, data, 0o600)
}

// enough is how many worlds that find a defect show that it isn't found by luck.
const enough = 3

// found is how the worlds found a defect.
type found struct {
	after   int // worlds; 0: none of them has
	worlds  int // that have found it, at most enough
	promise string
	how     string
}

// broken matches what TestWorlds says of a world that breaks a promise.
var broken = regexp.MustCompile(`world (\d+) breaks \S+: (P\d+): (.*)`)

// try builds the worlds with d and runs at most n of them.
func (d *defect) try(root string, n int) (f found, err error) {
	dir, err := os.MkdirTemp("", "defects")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(dir)
	files := sources{}
	if err := files.add(root, d); err != nil {
		return f, err
	}
	overlay, err := files.overlay(root, dir)
	if err != nil {
		return f, err
	}
	binary := filepath.Join(dir, "world")
	build := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", binary, "./lab/world")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return f, fmt.Errorf("%s: %w\n%s", d.name, err, out)
	}
	for next := 1; f.worlds < enough; f.worlds++ {
		g, err := d.run(binary, next, n)
		if err != nil || g.after == 0 {
			return f, err
		}
		if next == 1 {
			f = g
		}
		next = g.after + 1
	}
	return f, nil
}

// slice is how many worlds one process runs. If a process ends or hangs without a word about a
// promise, the worlds it had are all that is known.
const slice = 250

// run runs the worlds from seed on until one breaks a promise, or until n have run.
func (d *defect) run(binary string, seed, n int) (found, error) {
	for begin := seed; begin <= n; begin += slice {
		var out bytes.Buffer
		cmd := exec.Command(binary, "-test.run", "TestWorlds$", "-test.timeout", "10m", "-shrink", "0", "-worlds", strconv.Itoa(min(slice, n-begin+1)), "-seed", strconv.Itoa(begin))
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		if err == nil {
			continue
		}
		text := out.String()
		if m := broken.FindStringSubmatch(text); m != nil {
			after, _ := strconv.Atoi(m[1])
			return found{after: after, promise: m[2], how: strings.TrimSpace(m[3])}, nil
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return found{}, err
		}
		return found{after: begin + slice - 1, promise: ending(text), how: firstLine(text)}, nil
	}
	return found{}, nil
}

// ending names what ended a process of worlds that says nothing of a promise.
func ending(text string) string {
	switch {
	case strings.Contains(text, "deadlock: "):
		return "P13" // the bubble can't end
	case strings.Contains(text, "test timed out"), strings.Contains(text, "a world doesn't end"):
		return "hangs"
	case strings.Contains(text, "panic: "), strings.Contains(text, "fatal error: "):
		return "panics"
	}
	return "fails"
}

func firstLine(text string) string {
	for _, begin := range []string{"panic: ", "fatal error: "} {
		if i := strings.Index(text, begin); i >= 0 {
			line, _, _ := strings.Cut(text[i:], "\n")
			return line
		}
	}
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("defects: ")
	worlds := flag.Int("worlds", 5000, "how many worlds may look for each defect")
	only := flag.String("run", "", "only the defects whose promise and name match this regular expression, as in 'P9 own-clock'")
	flag.Parse()
	if err := run(*worlds, *only); err != nil {
		log.Fatal(err)
	}
}

func run(worlds int, only string) error {
	all, err := parse(list)
	if err != nil {
		return err
	}
	match, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	tried, seen, rare := 0, 0, 0
	fmt.Println("| Defect | Had | Found in world | Worlds | By | What it says |\n|---|---|---|---|---|---|")
	for i := range all {
		d := &all[i]
		if !match.MatchString(d.promise + " " + d.name) {
			continue
		}
		began := time.Now()
		f, err := d.try(root, worlds)
		if err != nil {
			return err
		}
		tried++
		had, after := "", "–"
		if d.had {
			had = "yes"
		}
		if f.after > 0 {
			seen++
			if f.worlds < enough {
				rare++
			}
			after = strconv.Itoa(f.after)
		} else {
			f.how = d.hidden
		}
		fmt.Printf("| %s %s | %s | %s | %d | %s | %s |\n", d.promise, d.name, had, after, f.worlds, f.promise, short(f.how))
		log.Printf("%s after %v", d.name, time.Since(began).Round(time.Second))
	}
	fmt.Printf("\n%d of %d defects found within %d worlds, %d of them by fewer than %d.\n", seen, tried, worlds, rare, enough)
	return nil
}

// short returns text without what would break a row of a table.
func short(text string) string {
	text = strings.NewReplacer("|", "/", "\n", " ").Replace(text)
	if len(text) > 120 {
		text = strings.ToValidUTF8(text[:120], "") + "…"
	}
	return text
}
