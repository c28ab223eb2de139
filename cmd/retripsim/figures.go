// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/retrip/retrip/sim"
)

// lineFigure shows lines with few points each and marks the points.
func lineFigure(t *theme, title, unit, about string, lines []line, notes []string) (*figure, error) {
	f := &figure{title: title, unit: unit, about: about, theme: t}
	return f, f.multiples(multiples{lines: lines, notes: notes, dots: true})
}

// seriesFigure shows rates over time and shades the time of the trigger.
func seriesFigure(t *theme, s sim.Scenario, groups [][]*sim.Result, what string, of func(sim.Point) int32) (*figure, error) {
	lines := quietEndCut(seriesLines(groups, of))
	m := multiples{lines: lines, cause: cause(s.Trigger), steps: groups[0][0].Bin < time.Second}
	if s.Trigger.For > 0 {
		m.during = [2]float64{s.Trigger.At.Seconds(), (s.Trigger.At + s.Trigger.For).Seconds()}
	}
	if m.steps { // a short event, which a long time before and after it would hide
		m.from, m.to = max(0, m.during[0]-0.3), min(last(lines), m.during[1]+2)
	}
	f := &figure{unit: what + " per second, by seconds", theme: t}
	if s.Backend.Workers > 0 && s.Load() > 0 {
		f.title, f.about = recoveryFinding(s, groups), loadAbout(s)+" "+neverAbout(s)
		for _, group := range groups {
			m.notes = append(m.notes, recoveryNote(group))
		}
		m.limit, m.limitKey = s.Arrivals.Rate/s.Load(), "capacity"
	} else {
		f.title, f.about = peakFinding(lines, what), fmt.Sprintf("%s clients; the backend fails from %s to %s.",
			count(int64(s.Fleet.Clients)), seconds(s.Trigger.At), seconds(s.Trigger.At+s.Trigger.For))
		for _, l := range lines {
			m.notes = append(m.notes, "at most "+count(int64(highest(l))))
		}
	}
	return f, f.multiples(m)
}

// recoveryNote says below the name of a policy when the backend recovers.
func recoveryNote(group []*sim.Result) string {
	switch text := recovery(group); text {
	case "never":
		return "never recovers"
	case notYet:
		return "has not recovered yet"
	default:
		return "recovers in " + text
	}
}

func loadAbout(s sim.Scenario) string {
	return fmt.Sprintf("%s clients, %s requests/s in all, %.0f %% of the capacity; %s from %s to %s.",
		count(int64(s.Fleet.Clients)), tickText(s.Arrivals.Rate), 100*s.Load(), cause(s.Trigger), seconds(s.Trigger.At), seconds(s.Trigger.At+s.Trigger.For))
}

// neverAbout defines "never" for the reader of a picture.
func neverAbout(s sim.Scenario) string {
	return fmt.Sprintf("Recovery: from the end of the %s until 95 %% of the arriving requests are answered. Never: not within %s, where the simulation ends.",
		cause(s.Trigger), seconds(s.Horizon-s.Trigger.At-s.Trigger.For))
}

// seconds formats d in seconds or milliseconds, as people write it.
func seconds(d time.Duration) string {
	if d != 0 && d < time.Second {
		return number(float64(d)/float64(time.Millisecond)) + "\u00a0ms"
	}
	return number(d.Seconds()) + "\u00a0s"
}

// recoveryFinding says which policies recover and which don't. It
// says nothing about a run that was interrupted before the backend recovered.
func recoveryFinding(s sim.Scenario, groups [][]*sim.Result) string {
	var lost []string
	slowest, name := -1.0, ""
	groups = slices.DeleteFunc(slices.Clone(groups), func(group []*sim.Result) bool { return recovery(group) == notYet })
	for _, group := range groups {
		seconds := mid(group, recoverySeconds)
		if seconds >= neverSeconds {
			lost = append(lost, group[0].Policy)
		} else if seconds > slowest {
			slowest, name = seconds, group[0].Policy
		}
	}
	after := fmt.Sprintf("%s after the %s", seconds(s.Horizon-s.Trigger.At-s.Trigger.For), cause(s.Trigger))
	switch {
	case s.Trigger.For == 0 || len(groups) == 0:
		return fmt.Sprintf("%s clients at %.0f %% load", count(int64(s.Fleet.Clients)), 100*s.Load())
	case len(groups) == 1 && len(lost) == 1:
		return fmt.Sprintf("With %s the backend has not recovered %s", lost[0], after)
	case len(groups) == 1:
		return fmt.Sprintf("With %s the backend recovers in %.0f s", name, slowest)
	case len(lost) == len(groups):
		return fmt.Sprintf("With none of these policies the backend has recovered %s", after)
	case len(lost) == 0:
		return fmt.Sprintf("With all of these policies the backend recovers: %s takes longest, %.0f s", name, slowest)
	case len(lost) <= 3:
		return fmt.Sprintf("%s the backend has not recovered with %s", after, and(lost))
	}
	return fmt.Sprintf("%s the backend has not recovered with %d of %d policies", after, len(lost), len(groups))
}

// and joins names into a list with "and".
func and(names []string) string {
	if n := len(names); n > 1 {
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return names[0]
}

func highest(l line) float64 {
	top := 0.0
	for _, y := range l.y {
		top = max(top, y)
	}
	return top
}

// peakFinding says which line has the highest peak and which the lowest.
func peakFinding(lines []line, what string) string {
	low, high := 0, 0
	for i, l := range lines {
		if top := highest(l); top > 0 && (highest(lines[low]) == 0 || top < highest(lines[low])) {
			low = i
		}
		if highest(l) > highest(lines[high]) {
			high = i
		}
	}
	text := fmt.Sprintf("%s peak at %s per second with %s", what, count(int64(highest(lines[high]))), lines[high].name)
	if low != high {
		text += fmt.Sprintf(", at %s with %s", count(int64(highest(lines[low]))), lines[low].name)
	}
	return text
}

// extremes names the lowest and the highest line at the point where they are
// furthest apart. show formats x and y.
func extremes(lines []line, format string, show func(float64) string) string {
	at, least, most := -1, 0, 0
	apart := -1.0
	for i := range lines[0].x {
		low, high := 0, 0
		for j, l := range lines {
			if i >= len(l.y) {
				return "" // the run was interrupted
			}
			if l.y[i] < lines[low].y[i] {
				low = j
			}
			if l.y[i] > lines[high].y[i] {
				high = j
			}
		}
		if d := lines[high].y[i] - lines[low].y[i]; d > apart {
			at, least, most, apart = i, low, high, d
		}
	}
	if at < 0 {
		return ""
	}
	return fmt.Sprintf(format, number(lines[0].x[at]), lines[least].name, show(lines[least].y[at]), lines[most].name, show(lines[most].y[at]))
}

// whenFigure shows when calls happen, up to twice the end of the fastest
// policy. Policies without jitter go on for a minute, but the start is what
// matters.
func whenFigure(t *theme, clients int, bin time.Duration, lines []line) (*figure, error) {
	end := 0.0
	for _, l := range lines {
		if n := len(l.x); n > 0 && (end == 0 || l.x[n-1] < end) {
			end = l.x[n-1]
		}
	}
	end = max(2*end, 3)
	const wide = 0.1 // seconds: finer intervals hide the waves
	var thick []line
	var notes []string
	for _, l := range lines {
		sum := line{name: l.name}
		for i, x := range l.x {
			if k := int(x / wide); len(sum.y) == k {
				sum.add(float64(k)*wide, l.y[i])
			} else {
				sum.y[len(sum.y)-1] += l.y[i]
			}
		}
		n := len(l.x)
		sum.add(float64(len(sum.x))*wide, 0)
		notes = append(notes, fmt.Sprintf("ends after %.1f s", l.x[n-1]+bin.Seconds()))
		thick = append(thick, sum)
	}
	f := &figure{title: silence(lines, end, bin.Seconds()), unit: "Calls in 100 ms, by seconds", theme: t,
		about: fmt.Sprintf("%d clients write one row in turn. The pictures end at %.1f s.", clients, end)}
	return f, f.multiples(multiples{lines: thick, notes: notes, steps: true, to: end})
}

// silence says how long the longest gap without calls is.
func silence(lines []line, end, bin float64) string {
	least, most := -1, -1
	var gaps []float64
	for i, l := range lines {
		gap, last := 0.0, 0.0
		for j, x := range l.x {
			if l.y[j] > 0 && x <= end {
				gap, last = max(gap, x-last), x+bin
			}
		}
		gaps = append(gaps, gap)
		if least < 0 || gap < gaps[least] {
			least = i
		}
		if most < 0 || gap > gaps[most] {
			most = i
		}
	}
	return fmt.Sprintf("With %s nobody calls for up to %.2f s, and then many do at once; with %s nobody calls for up to %.2f s",
		lines[most].name, gaps[most], lines[least].name, gaps[least])
}

// quietEndCut returns lines without the quiet time at their end.
func quietEndCut(lines []line) []line {
	last := 0
	for _, l := range lines {
		for i, y := range l.y {
			if y > 0 {
				last = max(last, i)
			}
		}
	}
	for i, l := range lines {
		n := min(len(l.x), last+2)
		lines[i].x, lines[i].y = l.x[:n], l.y[:n]
	}
	return lines
}

// waitsFigure shows the distribution function of the waits.
func waitsFigure(t *theme, groups [][]*sim.Result) (*figure, error) {
	var lines []line
	var notes []string
	longest := 0.0
	shortest, other := line{}, line{}
	for _, group := range groups {
		r := group[0]
		var total, so int64
		for _, n := range r.Waits {
			total += n
		}
		if total == 0 {
			continue
		}
		l, tenth := line{name: r.Policy}, line{name: r.Policy}
		l.add(0, 0)
		median := 0.0
		for i, n := range r.Waits {
			so += n
			at := (time.Duration(i+1) * r.WaitBin).Seconds()
			l.add(at, 100*float64(so)/float64(total))
			if 2*so < total {
				median = at
			}
			if 10*so >= total && len(tenth.x) == 0 {
				tenth.add(at, at)
			}
			// The last half per cent would take most of the space.
			if 1000*so < 995*total {
				longest = max(longest, at)
			}
		}
		if shortest.name == "" || tenth.x[0] < shortest.x[0] {
			shortest = tenth
		}
		if other.name == "" || tenth.x[0] > other.x[0] {
			other = tenth
		}
		lines, notes = append(lines, l), append(notes, fmt.Sprintf("half below %.0f ms", 1000*median+10))
	}
	if len(lines) == 0 {
		return nil, errors.New("there were no waits: nothing was retried")
	}
	title := fmt.Sprintf("One wait in ten is shorter than %.0f ms with %s", 1000*shortest.x[0], shortest.name)
	if other.x[0] > shortest.x[0] {
		title += fmt.Sprintf(", and than %.0f ms with %s", 1000*other.x[0], other.name)
	}
	for i, l := range lines { // a line that has ended stays at 100 %
		if n := len(l.x); l.x[n-1] < longest {
			lines[i].add(longest, 100)
		}
	}
	f := &figure{title: title, unit: "Share of the waits that are shorter, %, by seconds", theme: t,
		about: "All waits before retries of each policy. An upright line is many clients that wait equally long."}
	return f, f.multiples(multiples{lines: lines, notes: notes, steps: false, to: longest, most: 100})
}

// stadiumFigure shows the time from just before the outage until the load is back
// to normal: for each policy all attempts and, of those, the retries.
func stadiumFigure(t *theme, m sim.Stadium, lines []line) (*figure, error) {
	var totals, retries []line
	for _, l := range lines {
		if strings.HasSuffix(l.name, retriesSuffix) {
			retries = append(retries, l)
		} else {
			totals = append(totals, l)
		}
	}
	steady := float64(m.Players) / m.Interval.Seconds() / 1e6
	from := max(0, m.At.Seconds()-0.5)
	to, peak := from+1, 0.0
	for i, l := range totals {
		for k, x := range l.x {
			if retries[i].y[k] > 0.01*steady {
				to = max(to, x+0.5)
			}
			peak = max(peak, l.y[k])
		}
	}
	f := &figure{
		title: fmt.Sprintf("%s players who lose their CDN for %s send up to %.1f million attempts per second, %.1f times the usual",
			count(int64(m.Players)), seconds(m.For), peak, peak/steady),
		unit: "Millions of attempts per second, by seconds", theme: t,
		about: fmt.Sprintf("Shown from half a second before the outage until fewer than 1 %% of the usual %.2f million requests per second are retries.", steady),
	}
	return f, f.multiples(multiples{lines: totals, parts: retries, names: [2]string{"all attempts", "retries"}, from: from, to: to, steps: true,
		limit: m.Capacity / 1e6, limitKey: "capacity of the origin", cause: "outage", during: [2]float64{m.At.Seconds(), (m.At + m.For).Seconds()}})
}

const retriesSuffix = ", retries"
