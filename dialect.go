// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// dialect is what servers of one kind say, besides Retry-After, about when to
// come back and whether to.
type dialect struct {
	// instead reads a wait that is more exact than Retry-After and counts
	// before it; besides reads one that counts where there is no Retry-After.
	// Each gets the header and the instant of its receipt.
	instead, besides func(h http.Header, now time.Time) (time.Duration, bool)

	// verdict reads whether to come back at all.
	verdict func(status int, h http.Header) Verdict

	// posts: the service's calls are POSTs, nearly all of them.
	posts bool

	// least is the wait after a 429 that names none.
	least time.Duration
}

// dialects by the name that a policy lists them under. One policy may list
// several; of several waits the first in its order counts.
var dialects = map[string]dialect{
	"retry-after-ms":      {instead: milliseconds("Retry-After-Ms")},
	"x-ms-retry-after-ms": {instead: milliseconds("X-Ms-Retry-After-Ms")},
	"x-amz-retry-after":   {instead: milliseconds("X-Amz-Retry-After")},
	"ratelimit":           {besides: rateLimitFields}, // draft-ietf-httpapi-ratelimit-headers
	"x-ratelimit-reset":   {besides: rateLimitReset},
	"should-retry":        {verdict: shouldRetry},

	"anthropic": {besides: anthropicResets, verdict: shouldRetry, posts: true},
	"azure":     {instead: firstOf(milliseconds("X-Ms-Retry-After-Ms"), milliseconds("Retry-After-Ms"))},
	"discord":   {besides: discordReset},
	"github":    {besides: rateLimitReset, verdict: githubForbidden, least: time.Minute},
	"openai":    {instead: milliseconds("Retry-After-Ms"), besides: openAIResets, verdict: shouldRetry, posts: true},
	"shopify":   {besides: decimalSeconds("Retry-After")},
	"stripe":    {verdict: shouldRetry},
}

func dialectNames() []string { return slices.Sorted(maps.Keys(dialects)) }

// verdict returns what the server says about trying again, ByRule if nothing.
// To forbid it is safe, so every server may: an answer of true counts only in
// the dialects that have it.
func (r *Rules) verdict(status int, h http.Header) Verdict {
	for _, value := range h["X-Should-Retry"] {
		if strings.EqualFold(strings.Trim(value, " \t"), "false") {
			return Final
		}
	}
	for _, d := range r.dialects {
		if d.verdict == nil {
			continue
		}
		if v := d.verdict(status, h); v != ByRule {
			return v
		}
	}
	return ByRule
}

// serverWord returns how long the server of a retryable response asks to wait,
// 0 if it doesn't.
func (r *Rules) serverWord(status int, h http.Header, now time.Time) time.Duration {
	for _, d := range r.dialects {
		if d.instead != nil {
			if wait, ok := d.instead(h, now); ok {
				return wait
			}
		}
	}
	if wait, ok := ParseRetryAfter(h, now); ok {
		return wait
	}
	for _, d := range r.dialects {
		if d.besides != nil {
			if wait, ok := d.besides(h, now); ok {
				return wait
			}
		}
	}
	for _, d := range r.dialects {
		if d.least > 0 && status == http.StatusTooManyRequests {
			return d.least
		}
	}
	return 0
}

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

// parseDecimal parses 1*DIGIT with an optional fraction, in units of unit,
// rounded up: never earlier than it says.
func parseDecimal(s string, unit time.Duration) (time.Duration, bool) {
	whole, fraction, pointed := strings.Cut(s, ".")
	if !isDigits(whole) || pointed && !isDigits(fraction) {
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

// shouldRetry reads the word of OpenAI, Anthropic and Stripe.
func shouldRetry(_ int, h http.Header) Verdict {
	for _, name := range []string{"X-Should-Retry", "Stripe-Should-Retry"} {
		switch h.Get(name) {
		case "true":
			return Retryable
		case "false":
			return Final
		}
	}
	return ByRule
}

// githubForbidden calls a 403 retryable that says it is about a rate limit.
// GitHub uses it for that besides 429.
func githubForbidden(status int, h http.Header) Verdict {
	if status == http.StatusForbidden && (h.Get("X-Ratelimit-Remaining") == "0" || h.Get("Retry-After") != "") {
		return Retryable
	}
	return ByRule
}

// rateLimitReset reads X-RateLimit-Reset of a limit that is used up. A number
// is an instant in seconds since 1970 if it is large enough to be one, else a
// delay.
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

// discordReset reads the delay until a limit is reset, unless it isn't used up.
func discordReset(h http.Header, _ time.Time) (time.Duration, bool) {
	if remaining := h.Get("X-Ratelimit-Remaining"); remaining != "" && remaining != "0" {
		return 0, false
	}
	return parseDecimal(h.Get("X-Ratelimit-Reset-After"), time.Second)
}

// openAIResets reads the times to a full refill of the limits that are used
// up: more than the wait needed, but the only word there is.
func openAIResets(h http.Header, _ time.Time) (time.Duration, bool) {
	return longestOf([]string{"Requests", "Tokens"}, func(limit string) (time.Duration, bool) {
		if h.Get("X-Ratelimit-Remaining-"+limit) != "0" {
			return 0, false
		}
		wait, err := time.ParseDuration(h.Get("X-Ratelimit-Reset-" + limit))
		return wait, err == nil && wait >= 0
	})
}

// anthropicResets reads the instants at which the limits that are used up are
// full again.
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

// limit is a member of one of the fields RateLimit and RateLimit-Policy, with
// those of its parameters that count; -1 is one that is missing.
type limit struct {
	name    string
	r, t, w time.Duration // what is left, read as seconds; the time to the reset; the window
}

// rateLimitFields reads the structured fields RateLimit, of the limits that
// are used up, and RateLimit-Policy, for the window of one that doesn't say
// when it is reset. What is malformed is ignored, as the draft wants it.
func rateLimitFields(h http.Header, _ time.Time) (longest time.Duration, found bool) {
	windows := parseLimits(h.Values("RateLimit-Policy"))
	for _, l := range parseLimits(h.Values("RateLimit")) {
		if l.r != 0 {
			continue
		}
		wait := l.t
		if wait < 0 {
			for _, p := range windows {
				if p.name == l.name {
					wait = max(wait, p.w)
				}
			}
		}
		longest, found = max(longest, wait), found || wait >= 0
	}
	return longest, found
}

// parseLimits parses a structured field (RFC 9651) that is a list of strings
// or tokens with parameters. Those of a limit must be integers, others are
// passed over. It returns nil if anything in the field is malformed.
func parseLimits(lines []string) []limit {
	var limits []limit
	for _, item := range splitUnquoted(strings.Join(lines, ","), ',') {
		parts := splitUnquoted(item, ';')
		l := limit{name: strings.Trim(parts[0], " \t")}
		if isString(l.name) {
			l.name = l.name[1 : len(l.name)-1]
		} else if !isToken(l.name) {
			return nil
		}
		params := map[string]string{} // the last one of a name counts
		for _, part := range parts[1:] {
			key, value, valued := strings.Cut(strings.Trim(part, " \t"), "=")
			// One with no value is true, and a quote begins a string or, behind
			// a percent sign, a display string.
			if !isToken(key) || valued && value == "" || strings.Contains(value, `"`) && !isString(strings.TrimPrefix(value, "%")) {
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
			if !isDigits(value) || len(value) > 15 {
				return nil
			}
			*number, _ = parseSeconds(value)
		}
		limits = append(limits, l)
	}
	return limits
}

// splitUnquoted splits s at every sep that isn't within a string.
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

// isString reports whether s is a string of a structured field, in its quotes.
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

// serverNow returns the server's idea of the instant now, for an instant that
// it names, so that the two clocks need not agree.
func serverNow(h http.Header, now time.Time) time.Time {
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		return date
	}
	return now
}
