// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package dialect reads what servers say about when to retry, and whether to: in
// Retry-After, and in the headers of particular services.
package dialect

import (
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/syntax"
)

// Dialect is what servers of one kind say, besides Retry-After, about when to
// retry and whether to.
type Dialect struct {
	// Instead reads a wait that is more exact than Retry-After and overrides
	// it; Besides reads a wait that counts only without a valid Retry-After. Each
	// gets the header and the instant of its receipt.
	Instead, Besides func(h http.Header, now time.Time) (time.Duration, bool)

	// Verdict reads whether to retry at all.
	Verdict func(status int, h http.Header) Verdict

	// Posts says that nearly all calls of the service are POSTs.
	Posts bool

	// Least is the wait after a 429 that names no wait.
	Least time.Duration
}

// Verdict is what a server says about retrying at all.
type Verdict uint8

const (
	Silent Verdict = iota
	Retry
	Stop
)

// ByName maps the names for Policy.Dialects to dialects. A policy may list
// several; of several waits of one kind, the first in the order of the list counts.
var ByName = map[string]Dialect{
	"retry-after-ms":      {Instead: milliseconds("Retry-After-Ms")},
	"x-ms-retry-after-ms": {Instead: milliseconds("X-Ms-Retry-After-Ms")},
	"x-amz-retry-after":   {Instead: milliseconds("X-Amz-Retry-After")},
	"ratelimit":           {Besides: rateLimitFields}, // draft-ietf-httpapi-ratelimit-headers
	"x-ratelimit-reset":   {Besides: rateLimitReset},
	"should-retry":        {Verdict: shouldRetry},

	"anthropic": {Besides: anthropicResets, Verdict: shouldRetry, Posts: true},
	"azure":     {Instead: firstOf(milliseconds("X-Ms-Retry-After-Ms"), milliseconds("Retry-After-Ms"))},
	"discord":   {Besides: discordReset},
	"github":    {Besides: rateLimitReset, Verdict: githubForbidden, Least: time.Minute},
	"openai":    {Instead: milliseconds("Retry-After-Ms"), Besides: openAIResets, Verdict: shouldRetry, Posts: true},
	"shopify":   {Besides: decimalSeconds("Retry-After")},
	"stripe":    {Verdict: shouldRetry},
}

func Names() []string { return slices.Sorted(maps.Keys(ByName)) }

func firstOf(reads ...func(http.Header, time.Time) (time.Duration, bool)) func(http.Header, time.Time) (time.Duration, bool) {
	return func(h http.Header, now time.Time) (time.Duration, bool) {
		for _, read := range reads {
			if wait, ok := read(h, now); ok {
				return wait, true
			}
		}
		return 0, false
	}
}

func milliseconds(name string) func(http.Header, time.Time) (time.Duration, bool) {
	return func(h http.Header, _ time.Time) (time.Duration, bool) {
		return parseDecimal(h.Get(name), time.Millisecond)
	}
}

func decimalSeconds(name string) func(http.Header, time.Time) (time.Duration, bool) {
	return func(h http.Header, _ time.Time) (time.Duration, bool) { return parseDecimal(h.Get(name), time.Second) }
}

// parseDecimal parses 1*DIGIT with an optional fraction, in units of unit. It
// rounds up, so that the wait is never too short.
func parseDecimal(s string, unit time.Duration) (time.Duration, bool) {
	whole, fraction, pointed := strings.Cut(s, ".")
	if !syntax.IsDigits(whole) || pointed && !syntax.IsDigits(fraction) {
		return 0, false
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n > int64(math.MaxInt64/unit)-1 {
		return math.MaxInt64, true
	}
	wait := time.Duration(n) * unit
	var part, scale time.Duration = 0, unit
	for i, c := range []byte(fraction) {
		if scale /= 10; scale == 0 {
			if strings.Trim(fraction[i:], "0") != "" {
				part++
			}
			break
		}
		part += time.Duration(c-'0') * scale
	}
	return wait + part, true
}

// shouldRetry reads the verdict of OpenAI, Anthropic and Stripe.
func shouldRetry(_ int, h http.Header) Verdict {
	for _, name := range []string{"X-Should-Retry", "Stripe-Should-Retry"} {
		switch h.Get(name) {
		case "true":
			return Retry
		case "false":
			return Stop
		}
	}
	return Silent
}

// githubForbidden marks a 403 as retryable if it is about a rate limit: GitHub
// uses 403 for rate limits in addition to 429.
func githubForbidden(status int, h http.Header) Verdict {
	if status == http.StatusForbidden && (h.Get("X-Ratelimit-Remaining") == "0" || h.Get("Retry-After") != "") {
		return Retry
	}
	return Silent
}

// rateLimitReset reads the X-RateLimit-Reset of an exhausted limit. A large
// number is an instant, in seconds since 1970; a small one is a delay.
func rateLimitReset(h http.Header, now time.Time) (time.Duration, bool) {
	if h.Get("X-Ratelimit-Remaining") != "0" {
		return 0, false
	}
	value := h.Get("X-Ratelimit-Reset")
	wait, ok := parseSeconds(value)
	if !ok || value == "" {
		return 0, false
	}
	const leastInstant = 1_000_000_000 * time.Second
	if wait <= leastInstant || wait == math.MaxInt64 {
		return wait, true
	}
	return max(0, time.Unix(int64(wait/time.Second), 0).Sub(serverNow(h, now))), true
}

// discordReset reads the delay until a limit resets, unless the limit has
// requests left.
func discordReset(h http.Header, _ time.Time) (time.Duration, bool) {
	if remaining := h.Get("X-Ratelimit-Remaining"); remaining != "" && remaining != "0" {
		return 0, false
	}
	return parseDecimal(h.Get("X-Ratelimit-Reset-After"), time.Second)
}

// openAIResets reads the times until the exhausted limits are full again. That
// is longer than necessary, but the headers say nothing better.
func openAIResets(h http.Header, _ time.Time) (time.Duration, bool) {
	return longestOf([]string{"Requests", "Tokens"}, func(limit string) (time.Duration, bool) {
		if h.Get("X-Ratelimit-Remaining-"+limit) != "0" {
			return 0, false
		}
		wait, err := time.ParseDuration(h.Get("X-Ratelimit-Reset-" + limit))
		return wait, err == nil && wait >= 0
	})
}

// anthropicResets reads the instants at which the exhausted limits are full
// again.
func anthropicResets(h http.Header, now time.Time) (time.Duration, bool) {
	return longestOf([]string{"Requests", "Tokens", "Input-Tokens", "Output-Tokens"}, func(limit string) (time.Duration, bool) {
		if h.Get("Anthropic-Ratelimit-"+limit+"-Remaining") != "0" {
			return 0, false
		}
		at, err := time.Parse(time.RFC3339, h.Get("Anthropic-Ratelimit-"+limit+"-Reset"))
		return max(0, at.Sub(serverNow(h, now))), err == nil
	})
}

func longestOf(limits []string, read func(limit string) (time.Duration, bool)) (longest time.Duration, found bool) {
	for _, limit := range limits {
		if wait, ok := read(limit); ok {
			longest, found = max(longest, wait), true
		}
	}
	return longest, found
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

// rateLimitFields reads the structured fields RateLimit, for the exhausted
// limits, and RateLimit-Policy, for the window of a limit that doesn't say when
// it resets. It ignores malformed fields, as the draft requires.
func rateLimitFields(h http.Header, _ time.Time) (longest time.Duration, found bool) {
	windows := map[string]time.Duration{} // the longest of each name
	for _, p := range parseLimits(h.Values("RateLimit-Policy")) {
		if longest, there := windows[p.name]; !there || p.w > longest {
			windows[p.name] = p.w
		}
	}
	for _, l := range parseLimits(h.Values("RateLimit")) {
		if l.r != 0 {
			continue
		}
		wait := l.t
		if wait < 0 {
			if window, there := windows[l.name]; there {
				wait = window
			}
		}
		longest, found = max(longest, wait), found || wait >= 0
	}
	return longest, found
}

// parseLimits parses a structured field (RFC 9651) that is a list of strings or
// tokens with parameters. The parameters of a limit must be integers; others
// are skipped. It returns nil if anything in the field is malformed, or if the field is
// larger than any server needs.
func parseLimits(lines []string) []limit {
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
	var limits []limit
	for _, item := range items {
		parts := splitUnquoted(item, ';')
		l := limit{name: strings.Trim(parts[0], " \t")}
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
			if !there {
				*number = -1
				continue
			}
			if !syntax.IsDigits(value) || len(value) > 15 {
				return nil
			}
			*number, _ = parseSeconds(value)
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

// serverNow returns the server's clock at the instant now, so that an instant
// that the server names can be compared even if the clocks differ.
func serverNow(h http.Header, now time.Time) time.Time {
	if date, ok := parseDate(h.Get("Date")); ok {
		return date
	}
	return now
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
