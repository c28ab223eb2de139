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

// form reads a wait from the value of a field of h, which arrived at the instant now.
type form func(value string, h http.Header, now time.Time) (time.Duration, bool)

func milliseconds(value string, _ http.Header, _ time.Time) (time.Duration, bool) {
	return parseDecimal(value, time.Millisecond)
}

func seconds(value string, _ http.Header, _ time.Time) (time.Duration, bool) {
	return parseDecimal(value, time.Second)
}

// duration reads the form of package time, such as 6m0s.
func duration(value string, _ http.Header, _ time.Time) (time.Duration, bool) {
	wait, err := time.ParseDuration(value)
	return max(0, wait), err == nil && wait >= 0
}

func rfc3339(value string, h http.Header, now time.Time) (time.Duration, bool) {
	at, err := time.Parse(time.RFC3339, value)
	return until(at, h, now), err == nil
}

// delayOrInstant reads a whole number of seconds. A large one is an instant, in seconds
// since 1970; a small one is a delay.
func delayOrInstant(value string, h http.Header, now time.Time) (time.Duration, bool) {
	if !syntax.IsDigits(value) {
		return 0, false
	}
	wait, _ := parseDecimal(value, time.Second)
	const leastInstant = 1_000_000_000 * time.Second
	if wait <= leastInstant || wait == math.MaxInt64 {
		return wait, true
	}
	return until(time.Unix(int64(wait/time.Second), 0), h, now), true
}

// RetryAfter reads the Retry-After of h, as [retrip.ParseRetryAfter] describes.
func RetryAfter(h http.Header, now time.Time) (longest time.Duration, found bool) {
	for _, value := range h["Retry-After"] {
		value = strings.Trim(value, " \t")
		var wait time.Duration
		if value != "" && value[0] >= '0' && value[0] <= '9' {
			var ok bool
			if wait, ok = parseDecimal(value, time.Second); !ok || strings.Contains(value, ".") {
				continue
			}
		} else {
			at, ok := parseDate(value)
			if !ok {
				continue
			}
			wait = until(at, h, now)
		}
		longest, found = max(longest, wait), true
	}
	return longest, found
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
	return n*unit + part, true
}

// until returns the time from now to the instant at, which the server of h has named,
// or 0 if it has passed. The server's clock counts, if h tells it: the clocks may differ.
func until(at time.Time, h http.Header, now time.Time) time.Duration {
	if date, ok := parseDate(h.Get("Date")); ok {
		now = date
	}
	return max(0, at.Sub(now))
}

// parseDate parses any HTTP date. It doesn't look at a longer text: package time copies
// what it can't parse, and there may be many instants to compare with one Date.
func parseDate(s string) (time.Time, bool) {
	const longest = 64
	if len(s) > longest {
		return time.Time{}, false
	}
	at, err := http.ParseTime(s)
	return at, err == nil
}

// limit is a member of a RateLimit or RateLimit-Policy field with the
// parameters that matter; -1 means that a parameter is missing.
type limit struct {
	name    string
	r, t, w time.Duration // the remaining quota, read as seconds; the time until the reset; the window
}

// These bound a RateLimit or RateLimit-Policy field.
const (
	mostLimits     = 100
	mostLimitBytes = 8 << 10
)

// exhausted reads the structured fields RateLimit, for the exhausted limits, and
// RateLimit-Policy, for the window of a limit that doesn't say when it resets. It
// ignores malformed fields, as the draft requires.
func exhausted(_ string, h http.Header, _ time.Time) (longest time.Duration, found bool) {
	windows := map[string]time.Duration{} // the longest of each name
	for _, p := range parseLimits(h["Ratelimit-Policy"]) {
		if p.w >= 0 {
			windows[p.name] = max(p.w, windows[p.name])
		}
	}
	for _, l := range parseLimits(h["Ratelimit"]) {
		if l.r != 0 {
			continue
		}
		wait := l.t
		if window, there := windows[l.name]; there && wait < 0 {
			wait = window
		}
		longest, found = max(longest, wait), found || wait >= 0
	}
	return longest, found
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
		l := limit{name: strings.Trim(parts[0], " \t"), r: -1, t: -1, w: -1}
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
