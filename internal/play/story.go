// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package play

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/span"
)

// Story tells what happens to requests at one host, and what the machine of package
// decide does. It is a file in stories: the policy as JSON, and a line
// for each event with its instant and, behind the arrow, the action that follows:
//
//	{"max_attempts": 3}
//
//	0s   a began                     -> send
//	10ms a ended 503 retry-after=1s  -> sleep 1s..1.5s server_error paused
//
// Names like a tell several requests apart. A wait runs from what the lowest draw yields
// to what the highest does; the story goes on with the lowest.
//
// An indented line says what a Transport tells at the instant of the line above, in parts
// between which there is a " · ": how metrics have changed since the last event, which
// records the log gets, which hooks run, and what the caller gets.
type Story struct {
	Policy  retrip.Policy
	Account float64 // size of the fleet's account, which requests ask if the policy names it
	NotSim  string  // why the simulator can't replay the story; empty if it can
	Lines   []Line
}

// Line is an event and the action that follows.
type Line struct {
	At    time.Duration
	Who   string
	Route string // first segment of its path, if it began
	Key   string // of its gate, if it began
	Event decide.Event
	words []string // of the event
	Text  string   // as it stands in the file
	Then  string   // the action
	Told  []string // what a Transport tells then, if the story says so
}

// Between stands between the parts of what is told.
const Between = " · "

const notSim = "# Not in the simulator: "

// Stories returns all stories, by name. dir is the root of the module.
func Stories(t testing.TB, dir string) map[string]*Story {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "stories/*.txt"))
	require.NoError(t, err)
	stories := map[string]*Story{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		s := &Story{}
		for n, line := range strings.Split(string(text), "\n") {
			switch {
			case strings.HasPrefix(line, "{"):
				err = s.Policy.UnmarshalJSON([]byte(line))
				s.Account = s.Policy.FleetBudget
			case strings.HasPrefix(line, notSim):
				s.NotSim = line[len(notSim):]
			case strings.HasPrefix(line, " ") && len(s.Lines) > 0:
				l := &s.Lines[len(s.Lines)-1]
				l.Told = append(l.Told, strings.Split(strings.TrimSpace(line), Between)...)
			case line != "" && line[0] != '#':
				err = s.read(line)
			}
			require.NoError(t, err, "%s:%d", file, n+1)
		}
		stories[strings.TrimSuffix(filepath.Base(file), ".txt")] = s
	}
	require.NotEmpty(t, stories)
	return stories
}

var kinds = [...]string{decide.Began: "began", decide.Ended: "ended", decide.NoBody: "nobody",
	decide.Heard: "heard", decide.Due: "due", decide.Gone: "gone", decide.Late: "late"}

// Word returns the word for a kind.
func Word(k decide.Kind) string { return kinds[k] }

func (s *Story) read(line string) (err error) {
	event, then, ok := strings.Cut(line, "->")
	l := Line{Text: line, words: strings.Fields(event), Then: strings.Join(strings.Fields(then), " ")}
	if !ok || len(l.words) < 2 {
		return fmt.Errorf("want: instant [name] event -> action")
	}
	if l.At, err = time.ParseDuration(l.words[0]); err != nil {
		return err
	}
	l.words = l.words[1:]
	if !slices.Contains(kinds[:], l.words[0]) {
		l.Who, l.words = l.words[0], l.words[1:]
	}
	if len(l.words) == 0 || !slices.Contains(kinds[:], l.words[0]) {
		return fmt.Errorf("no event in %q", line)
	}
	l.Event.Kind = decide.Kind(slices.Index(kinds[:], l.words[0]))
	l.Event.Outcome.Repeatable, l.Event.Outcome.Replay = true, true
	for _, word := range l.words[1:] {
		if err := l.set(word); err != nil {
			return err
		}
	}
	s.Lines = append(s.Lines, l)
	return nil
}

// set sets what a word says about the event.
func (l *Line) set(word string) (err error) {
	o := &l.Event.Outcome
	switch key, value, _ := strings.Cut(word, "="); key {
	case "retry-after", "date": // date: the same, as a date
		o.RetryAfter, err = time.ParseDuration(value)
	case "route":
		l.Route = value
	case "key":
		l.Key = value
	case "level":
		l.Event.Known = true
		l.Event.Level, err = strconv.ParseFloat(value, 64)
	case "unknown", "error":
	case "keyed": // a POST with an Idempotency-Key
	case "timeout":
		o.Timeout = true
	case "hopeless":
		o.Hopeless = true
	case "canceled":
		o.Canceled = true
	case "resent":
		o.Resent = true
	case "forbidden":
		o.Forbidden = true
	case "post":
		o.Repeatable = false
	case "stream":
		o.Replay = false
	case "retryable":
		o.Verdict = decide.Retryable
	case "final":
		o.Verdict = decide.Final
	case "unprocessed":
		o.Verdict = decide.Unprocessed
	case "throttle":
		o.Verdict = decide.Throttle
	case "global":
		o.OfAll = true
	default:
		o.Status, err = strconv.Atoi(word)
	}
	return err
}

// Has reports whether the event has the word, or a value for it.
func (l *Line) Has(word string) bool {
	return slices.ContainsFunc(l.words, func(w string) bool { return w == word || strings.HasPrefix(w, word+"=") })
}

// Deed returns what the action does, and the reason that it names, if any.
func (l *Line) Deed() (do, reason string) {
	words := strings.Fields(l.Then)
	for r := range decide.Reasons {
		if r != decide.None && slices.Contains(words, r.String()) {
			reason = r.String()
		}
	}
	return words[0], reason
}

// Tells reports whether the action has the word.
func (l *Line) Tells(word string) bool { return slices.Contains(strings.Fields(l.Then), word) }

// Tokens returns what the action adds to the fleet's account.
func (l *Line) Tokens() (n float64) {
	for word := range strings.FieldsSeq(l.Then) {
		if value, ok := strings.CutPrefix(word, "tokens="); ok {
			n, _ = strconv.ParseFloat(value, 64)
		}
	}
	return n
}

// Wait returns the wait that the action begins, with the lowest draw.
func (l *Line) Wait() time.Duration {
	words := strings.Fields(l.Then)
	if len(words) < 2 {
		return 0
	}
	lowest, _, _ := strings.Cut(words[1], "..")
	wait, _ := time.ParseDuration(lowest) // "forever" and reasons are no wait
	return wait
}

// Lowest returns the action without the ends of its waits.
func (l *Line) Lowest() string {
	words := strings.Fields(l.Then)
	for i, word := range words {
		words[i], _, _ = strings.Cut(word, "..")
	}
	return strings.Join(words, " ")
}

// LowestSecond is the draw whose second draw, which sets the times of breakers and gates, is
// the lowest.
const LowestSecond = 0x61c8864680b583eb

// Draw returns the draw with which the story goes on.
func (s *Story) Draw() uint64 {
	if s.Policy.Gate.Enabled == retrip.On || s.Policy.Breaker.Ratio > 0 {
		return LowestSecond
	}
	return Lowest
}

// Changes are the words for the changes of a host.
var Changes = []string{"paused", "opened", "probes", "closed"}

var deeds = [...]string{decide.Send: "send", decide.Ask: "ask", decide.Sleep: "sleep", decide.Queue: "queue", decide.Answer: "answer", decide.Refuse: "refuse"}

// Format returns an action in the words of a story. most is the wait with the highest draw,
// and woken are the requests that it wakes.
func Format(a *decide.Action, most time.Duration, woken []string) string {
	words := []string{deeds[a.Do]}
	add := func(say bool, word string) {
		if say {
			words = append(words, word)
		}
	}
	add(a.Again, "again")
	if a.Do == decide.Sleep || a.Do == decide.Queue || a.Do == decide.Ask && !a.Again {
		wait := a.Wait.String()
		if most != a.Wait {
			wait += ".." + most.String()
		}
		if a.Wait == span.Forever {
			wait = "forever"
		}
		add(true, wait)
	}
	add(a.AtGate, "at-gate")
	add(a.Reason != decide.None, a.Reason.String())
	for i, word := range Changes {
		add(a.Change&(host.Paused<<i) != 0, word)
	}
	add(a.Pays, "pays")
	add(a.Tokens != 0, fmt.Sprintf("tokens=%g", a.Tokens))
	slices.Sort(woken)
	add(len(woken) > 0, "wakes="+strings.Join(woken, ","))
	return strings.Join(words, " ")
}
