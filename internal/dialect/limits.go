// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"net/http"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/syntax"
)

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
		if isInstant(wait, h, now) {
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
