// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/syntax"
)

// form reads the lines of a field of h, which arrived at the instant now. The wait is
// below 0 if the field asks for none; ok reports whether the lines are understood.
type form func(lines []string, h http.Header, now time.Time) (wait time.Duration, ok bool)

// longest is the form of a field with one value, which read reads. Among several, in lines
// of their own or joined by commas, the longest wait counts. What doesn't fit any form takes
// microseconds to read, so only the first mostLimits count.
func longest(read func(value string, h http.Header, now time.Time) (time.Duration, bool)) form {
	return func(lines []string, h http.Header, now time.Time) (longest time.Duration, found bool) {
		n := 0
		for _, line := range lines {
			day := "" // of a date that goes on behind the comma
			for value := range strings.SplitSeq(line, ",") {
				value = strings.Trim(value, " \t")
				if isDay(value) {
					day = value + ", "
					continue
				}
				if n++; n > mostLimits {
					return longest, found
				}
				if wait, ok := read(day+value, h, now); ok {
					longest, found = max(longest, wait), true
				}
				day = ""
			}
		}
		return longest, found
	}
}

// isDay reports whether s may be the name of a day, such as Fri or Friday.
func isDay(s string) bool {
	return (len(s) == 3 || strings.HasSuffix(s, "day")) && !strings.ContainsAny(s, "0123456789")
}

// standard is the form of Retry-After in RFC 9110 §10.2.3.
var standard = longest(func(value string, h http.Header, now time.Time) (time.Duration, bool) {
	if syntax.IsDigits(value) {
		return parseDecimal(value, time.Second)
	}
	at, ok := parseDate(value)
	return until(at, h, now), ok
})

// RetryAfter reads the Retry-After of h, as [retrip.ParseRetryAfter] describes.
func RetryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	return standard(h["Retry-After"], h, now)
}

var milliseconds = longest(func(value string, _ http.Header, _ time.Time) (time.Duration, bool) {
	return parseDecimal(value, time.Millisecond)
})

// moment is the form of most servers: a number of seconds, a time since 1970 in any unit, a
// date, or a duration.
var moment = longest(func(value string, h http.Header, now time.Time) (time.Duration, bool) {
	for unit := time.Second; unit >= time.Microsecond; unit /= 1000 {
		if since, _ := parseDecimal(value, unit); isInstant(since) {
			return until(time.Unix(0, int64(since)), h, now), true
		}
	}
	if wait, ok := parseDecimal(value, time.Second); ok {
		return wait, true
	}
	date, _, _ := strings.Cut(value, " (") // JavaScript adds the name of the zone
	if at, ok := parseDate(date, layouts...); ok {
		return until(at, h, now), true
	}
	wait, err := time.ParseDuration(units.Replace(strings.ToLower(value)))
	return max(0, wait), err == nil && wait >= 0
})

// isInstant reports whether t counts from 1970: nobody asks for a wait of 32 years.
func isInstant(t time.Duration) bool { return t > 1_000_000_000*time.Second && t < math.MaxInt64 }

// layouts are those of dates, besides the layouts of HTTP. A date without a zone is in UTC.
var layouts = []string{
	time.RFC3339, "2006-01-02T15:04:05Z0700", "2006-01-02T15:04:05",
	"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05 -0700", "2006-01-02 15:04:05 UTC",
	time.RFC1123Z, "Mon, 02 Jan 2006 15:04:05 UTC", "Mon Jan 02 2006 15:04:05 GMT-0700",
}

// units makes a duration with units, such as 30 seconds, one of package time.
var units = strings.NewReplacer(" ", "", "milliseconds", "ms", "seconds", "s", "second", "s", "secs", "s", "sec", "s",
	"minutes", "m", "minute", "m", "mins", "m", "min", "m", "hours", "h", "hour", "h")

// isSpent reports whether lines, of numbers, say that nothing is left of a limit.
func isSpent(lines []string) (spent, ok bool) {
	for _, line := range lines {
		for value := range strings.SplitSeq(line, ",") {
			number, below := strings.CutPrefix(strings.Trim(value, " \t"), "-")
			if left, valid := parseDecimal(number, time.Second); valid {
				spent, ok = spent || below || left < time.Second, true
			}
		}
	}
	return spent, ok
}

// parseDecimal parses 1*DIGIT with an optional fraction, in units of unit. It
// rounds up, so that the wait is never too short.
func parseDecimal(s string, unit time.Duration) (time.Duration, bool) {
	whole, fraction, pointed := strings.Cut(s, ".")
	if whole == "" || pointed && fraction == "" {
		return 0, false
	}
	most, scale := math.MaxInt64/unit, unit
	var n, part time.Duration
	for _, c := range []byte(whole) {
		if c < '0' || c > '9' {
			return 0, false
		}
		// Saturate beyond the longest duration, but keep checking that the rest are
		// digits.
		n = min(n*10+time.Duration(c-'0'), most+1)
	}
	below := time.Duration(0) // 1 if something is less than a nanosecond
	for _, c := range []byte(fraction) {
		if c < '0' || c > '9' {
			return 0, false
		}
		if scale /= 10; scale > 0 {
			part += time.Duration(c-'0') * scale
		} else if c > '0' {
			below = 1
		}
	}
	if part += below; n > most || n == most && part > 0 {
		return math.MaxInt64, true
	}
	return n*unit + part, true //nolint:durationcheck // n is a count
}

// until returns the time from now to the instant at, which the server of h has named,
// or 0 if it has passed. The server's clock counts, if h tells it: the clocks may differ,
// and what comes from a cache has aged.
func until(at time.Time, h http.Header, now time.Time) time.Duration {
	if date, ok := parseDate(h.Get("Date")); ok {
		age, _ := parseDecimal(h.Get("Age"), time.Second)
		now = date.Add(age)
	}
	return max(0, at.Sub(now))
}

// parseDate parses a date of HTTP or one of the layouts. It doesn't look at a longer text:
// package time copies what it can't parse, and there may be many instants to compare with
// one Date.
func parseDate(s string, layouts ...string) (time.Time, bool) {
	const longest = 64
	if len(s) > longest {
		return time.Time{}, false
	}
	at, err := http.ParseTime(s)
	for i := 0; err != nil && i < len(layouts); i++ {
		at, err = time.Parse(layouts[i], s)
	}
	return at, err == nil
}

// none stands for a wait that isn't named.
const none = time.Duration(-1)

// limit is a member of a RateLimit or RateLimit-Policy field with the
// parameters that matter, or none.
type limit struct {
	name    string
	r, t, w time.Duration // the remaining quota, read as seconds; the time until the reset; the window
}

// These bound what a server may say in a field: values, or bytes of limits.
const (
	mostLimits     = 100
	mostLimitBytes = 8 << 10
)

// exhausted reads the structured fields RateLimit, for the exhausted limits, and
// RateLimit-Policy, for the window of a limit that doesn't say when it resets. It
// ignores malformed fields, as the draft requires.
func exhausted(lines []string, h http.Header, now time.Time) (longest time.Duration, ok bool) {
	limits := parseLimits(lines)
	if limits == nil {
		return older(lines, h, now)
	}
	windows := map[string]time.Duration{} // the longest of each name
	for _, p := range parseLimits(h["Ratelimit-Policy"]) {
		if p.w >= 0 {
			windows[p.name] = max(p.w, windows[p.name])
		}
	}
	longest = none
	for _, l := range limits {
		if l.r != 0 {
			continue
		}
		wait := l.t
		if window, there := windows[l.name]; there && wait < 0 {
			wait = window
		}
		if isInstant(wait) {
			wait = until(time.Unix(0, int64(wait)), h, now)
		}
		longest = max(longest, wait)
	}
	return longest, true
}

// older reads the RateLimit of draft 7, such as limit=10, remaining=0, reset=30.
func older(lines []string, h http.Header, now time.Time) (time.Duration, bool) {
	said := map[string]string{}
	for _, line := range lines {
		for part := range strings.FieldsFuncSeq(line, func(c rune) bool { return c == ',' || c == ';' }) {
			key, value, _ := strings.Cut(part, "=")
			if key = strings.Trim(key, " \t"); key == "remaining" || key == "reset" {
				said[key] = value
			}
		}
	}
	spent, ok := isSpent([]string{said["remaining"]})
	wait, named := moment([]string{said["reset"]}, h, now)
	if !spent {
		wait = none
	}
	return wait, ok && named
}

// parseLimits parses a structured field (RFC 9651) that is a list of strings or
// tokens with parameters. The parameters of a limit must be integers; others
// are skipped. It returns nil if anything in the field is malformed, or if the field is
// larger than any server needs.
func parseLimits(lines []string) (limits []limit) {
	size := 0
	for _, line := range lines {
		if size += len(line) + 1; size > mostLimitBytes {
			return nil
		}
	}
	items := splitUnquoted(strings.Join(lines, ","), ',')
	if len(items) > mostLimits {
		return nil
	}
	for _, item := range items {
		parts := splitUnquoted(item, ';')
		l := limit{name: strings.Trim(parts[0], " \t"), r: none, t: none, w: none}
		if isString(l.name) {
			l.name = l.name[1 : len(l.name)-1]
		} else if !syntax.IsToken(l.name) {
			return nil
		}
		params := map[string]string{} // the last parameter of a name counts
		for _, part := range parts[1:] {
			key, value, valued := strings.Cut(strings.Trim(part, " \t"), "=")
			// A parameter without a value is true. A quote begins a string or,
			// after a percent sign, a display string.
			if !syntax.IsToken(key) || valued && value == "" || strings.Contains(value, `"`) && !isString(strings.TrimPrefix(value, "%")) {
				return nil
			}
			params[key] = value
		}
		for key, number := range map[string]*time.Duration{"r": &l.r, "t": &l.t, "w": &l.w} {
			value, there := params[key]
			if there && (!syntax.IsDigits(value) || len(value) > 15) {
				return nil
			}
			if there {
				*number, _ = parseDecimal(value, time.Second)
			}
		}
		limits = append(limits, l)
	}
	return limits
}

// splitUnquoted splits s at every sep outside a string.
func splitUnquoted(s string, sep byte) []string {
	var parts []string
	start, quoted := 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case c == sep && !quoted:
			parts = append(parts, s[start:i])
			start = i + 1
		}
	}
	return append(parts, s[start:])
}

// isString reports whether s is a string of a structured field, with its
// quotes.
func isString(s string) bool {
	if !strings.HasPrefix(s, `"`) {
		return false
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i == len(s)-1
		}
	}
	return false
}
