// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/retrip/retrip"
)

// counting is something of which valgrind counts the instructions. They hardly depend on
// other load on the machine. make returns a function that makes one request, or nil if the
// peer can't; what make does isn't counted.
type counting struct {
	name  string
	peers string // a regular expression
	turns int    // of which the instructions are averaged
	make  func(p peer) func()
}

// atMost bounds what a request takes more than the reference, in instructions: some
// hundredths above what it takes with go1.26 on amd64. Other versions may need others. What
// the garbage collector does isn't counted.
var atMost = []struct {
	counting, peer, reference string // no reference: all that a request takes
	most                      float64
}{
	{"Transport/GET/serial", "retrip", "bare", 430},
	{"Transport/GET/fresh", "retrip", "bare", 660},
	{"Transport/POST/serial", "retrip", "bare", 780},
	{"Client/retry-GET", "retrip", "", 14_900},
	{"HTTP/1.1", "retrip-timeouts", "bare-timeout", 3400},
	{"HTTP/2", "retrip-timeouts", "bare-timeout", 3400},
	{"HTTP/1.1", "retrip-hedge", "bare", 14_500}, // of which hedges, of 5 % of the requests, are some 5000
	{"failing beside 100", "retrip", "", 7700},
	{"failing beside 10000", "retrip", "", 10_900},
	{"healthy beside 1", "retrip", "", 1350},
}

// countings lists what is counted.
var countings = append(countingsOf(cases),
	counting{"HTTP/1.1", "^(bare|retrip)", 1000, func(p peer) func() { return overSocket(p, false) }},
	counting{"HTTP/2", "^(bare|retrip)", 1000, func(p peer) func() { return overSocket(p, true) }},
	counting{"failing beside 100", "^retrip$", 5000, func(peer) func() { return failing(100) }},
	counting{"failing beside 10000", "^retrip$", 5000, func(peer) func() { return failing(10_000) }},
	counting{"healthy beside 0", "^retrip$", 20_000, func(peer) func() { return healthy(0) }},
	counting{"healthy beside 1", "^retrip$", 20_000, func(peer) func() { return healthy(1) }},
	counting{"healthy beside 4096", "^retrip$", 20_000, func(peer) func() { return healthy(4096) }},
)

func countingsOf(cases []benchCase) (list []counting) {
	for _, c := range cases {
		list = append(list, counting{name: c.name, peers: "", turns: 20_000 / (1 + 3*c.fails), make: func(p peer) func() {
			if !c.able(p) {
				return nil
			}
			next := c.request(p)
			return func() {
				if err := next(); err != nil {
					panic(err)
				}
			}
		}})
	}
	return list
}

// overSocket requests something over a loopback socket.
func overSocket(p peer, http2 bool) func() {
	server, base := newLoopback(http2)
	d, call := p.client(base, false), newCall(http.MethodGet, server.URL, 0)
	return func() {
		if _, err := fetch(d, call, http2); err != nil {
			panic(err)
		}
	}
}

// failing requests something of a host that fails, one of n in turn.
func failing(n int) func() {
	t := &retrip.Transport{Base: newStub(1 << 60), Policy: retrip.Policy{MaxAttempts: 1}}
	list := requests("failing", n)
	i := 0
	next := func() {
		resp, err := t.RoundTrip(list[i%n])
		if err != nil {
			panic(err)
		}
		resp.Body.Close()
		i++
	}
	for range n {
		next()
	}
	return next
}

// healthy requests something of a healthy host beside n that have failed.
func healthy(n int) func() {
	base := newStub(n)
	t := &retrip.Transport{Base: base, Policy: retrip.Policy{MaxAttempts: 1}}
	list := append(requests("failing", n), requests("healthy", 64)...)
	i := 0
	next := func() {
		base.n = i // no success fails from here on
		if _, err := t.RoundTrip(list[min(i, n+i%64)]); err != nil {
			panic(err)
		}
		i++
	}
	for range n {
		next()
	}
	return next
}

func requests(name string, n int) []*http.Request {
	list := make([]*http.Request, n)
	for i := range list {
		list[i] = newCall(http.MethodGet, "http://"+name+"-"+strconv.Itoa(i)+".example.com/", 0).fresh
	}
	return list
}

// turn makes n requests of one counting with one peer, for valgrind.
func turn(name, of string, n int) error {
	for _, c := range countings {
		for _, p := range peers {
			if c.name == name && p.name == of {
				if next := c.make(p); next != nil {
					for range n {
						next()
					}
				}
				return nil
			}
		}
	}
	return fmt.Errorf("nothing is called %q with %q", name, of)
}

// instructions counts what wanted matches or, if it is nil, what is bounded. It writes how
// many instructions each request takes, and fails if there are too many.
func instructions(wanted *regexp.Regexp, out io.Writer) error {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "bench")
	if text, err := exec.Command("go", "build", "-tags", "valgrind", "-o", program, ".").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	counts := map[[2]string]float64{}
	for _, c := range countings {
		for _, p := range peers {
			what := [2]string{c.name, p.name}
			if wanted == nil && !bounded(what) || wanted != nil && !wanted.MatchString(c.name) || !regexp.MustCompile(c.peers).MatchString(p.name) || c.make(p) == nil {
				continue
			}
			low, err := count(program, what, c.turns/4)
			if err != nil {
				return err
			}
			high, err := count(program, what, c.turns/4+c.turns)
			if err != nil {
				return err
			}
			counts[what] = float64(high-low) / float64(c.turns)
			fmt.Fprintf(out, "%-22s %-18s %8.0f\n", c.name, p.name, counts[what])
		}
	}
	for _, b := range atMost {
		n, ok := counts[[2]string{b.counting, b.peer}]
		if more := n - counts[[2]string{b.counting, b.reference}]; ok && more > b.most {
			err = errors.Join(err, fmt.Errorf("%s, %s: %.0f instructions more than %s, and at most %.0f are fine", b.counting, b.peer, more, cmp.Or(b.reference, "nothing"), b.most))
		}
	}
	return err
}

// bounded reports whether a bound needs the count of what.
func bounded(what [2]string) bool {
	for _, b := range atMost {
		if what[0] == b.counting && (what[1] == b.peer || what[1] == b.reference) {
			return true
		}
	}
	return false
}

// count returns the instructions of a process that makes n requests.
func count(program string, what [2]string, n int) (int64, error) {
	cmd := exec.Command("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file="+os.DevNull,
		program, "-turn", what[0], "-peer", what[1], "-turns", strconv.Itoa(n))
	// Garbage is part of the cost, but when it is collected is chance.
	cmd.Env = append(os.Environ(), "GOGC=off", "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1")
	text, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, text)
	}
	_, refs, ok := bytes.Cut(text, []byte("I   refs:"))
	if !ok {
		return 0, errors.New("valgrind hasn't counted: " + string(text))
	}
	return strconv.ParseInt(strings.ReplaceAll(strings.Fields(string(refs))[0], ",", ""), 10, 64)
}
