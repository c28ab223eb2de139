// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Violation says which promise broke, and when.
type Violation struct {
	At      time.Duration
	Promise string
	Text    string
}

func (v Violation) String() string { return fmt.Sprintf("%v: %s: %s", v.At, v.Promise, v.Text) }

// line is a line of the story.
type line struct {
	at   time.Duration
	text string
}

// Outcome is what is known after the end of a world.
type Outcome struct {
	Violations []Violation
	lines      []line
}

func (w *world) outcome() Outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Outcome{Violations: w.violations, lines: w.lines}
}

// Story returns all that happened, in its order.
func (o Outcome) Story() []string {
	story := make([]string, len(o.lines))
	for i, l := range o.lines {
		story[i] = fmt.Sprintf("%v %s", l.at, l.text)
	}
	return story
}

// Log returns the story in an order that doesn't depend on the scheduler: what happens
// at one instant is sorted.
func (o Outcome) Log() string {
	lines := slices.Clone(o.lines)
	slices.SortFunc(lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(a.at, b.at), strings.Compare(a.text, b.text))
	})
	return strings.Join(Outcome{lines: lines}.Story(), "\n")
}
