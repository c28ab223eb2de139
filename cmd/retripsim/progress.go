// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress says on a terminal how much of a run is complete, from its first
// second on, and at most every tenth of a second.
type progress struct {
	w    io.Writer
	tty  bool
	next time.Time // when to say it again
	said bool
}

func newProgress(w io.Writer, tty bool) *progress {
	return &progress{w: w, tty: tty, next: time.Now().Add(time.Second)}
}

// set takes the share that is complete. Calls must not overlap.
func (p *progress) set(done float64) {
	if now := time.Now(); p.tty && !now.Before(p.next) {
		p.next, p.said = now.Add(100*time.Millisecond), true
		fmt.Fprintf(p.w, "\rsimulating %3.0f %%", 100*done)
	}
}

// clear leaves an empty line.
func (p *progress) clear() {
	if p.said {
		fmt.Fprintf(p.w, "\r%16s\r", "")
	}
}

// terminal reports whether file is a terminal, or another device for characters.
func terminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
