// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// bar is a progress bar. It appears on terminals only, and only after one
// second.
type bar struct {
	w     io.Writer
	tty   bool
	began time.Time
	bar   *progressbar.ProgressBar
}

const barSteps = 1000

func newBar(w io.Writer, tty bool) *bar { return &bar{w: w, tty: tty, began: time.Now()} }

// set moves the bar. Calls must not overlap.
func (b *bar) set(done float64) {
	if !b.tty || time.Since(b.began) < time.Second {
		return
	}
	if b.bar == nil {
		b.bar = progressbar.NewOptions(barSteps, progressbar.OptionSetWriter(b.w), progressbar.OptionSetWidth(40),
			progressbar.OptionSetDescription("simulating"), progressbar.OptionClearOnFinish(),
			progressbar.OptionThrottle(50*time.Millisecond))
	}
	// A failure to draw the bar must not stop the command.
	_ = b.bar.Set(int(done * barSteps))
}

func (b *bar) close() {
	if b.bar != nil {
		_ = b.bar.Clear()
	}
}
