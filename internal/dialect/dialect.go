// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package dialect reads what servers say about when to retry, and whether to: in
// Retry-After, and in the headers of particular services.
package dialect

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/syntax"
)

// Dialect is what servers of one kind say, besides Retry-After, about when to
// retry and whether to.
type Dialect struct {
	// The first of Instead that names a wait is more exact than Retry-After and
	// overrides it. The longest wait of Besides counts only without a valid
	// Retry-After.
	Instead, Besides []Field

	// Verdict reads whether to retry at all.
	Advice func(status int, h http.Header) Advice

	// Global reports whether a refusal is one of all requests, and not only of those to the
	// same route, say. It may be nil.
	Global func(h http.Header) bool

	// Posts says that nearly all calls of the service are POSTs.
	Posts bool

	// Least is the wait after a refusal for a rate that names no wait.
	Least time.Duration
}

// Field is a header field that names a wait.
type Field struct {
	Name string // in canonical form
	Form form   // of its value

	// Left is the field that must say that nothing is left of the limit, if there is one.
	// A 429 says it too.
	Left string
}

// Advice is what a server says about retrying at all.
type Advice uint8

const (
	Silent Advice = iota
	Retry
	Stop
	Throttle // Retry: the request was refused for its rate, as by a 429
)

// ByName maps the names for Policy.Dialects to dialects. A policy may list
// several; of several waits of one kind, the first in the order of the list counts.
var ByName = map[string]Dialect{
	"retry-after-ms":      {Instead: []Field{{Name: "Retry-After-Ms", Form: milliseconds}}},
	"x-ms-retry-after-ms": {Instead: []Field{{Name: "X-Ms-Retry-After-Ms", Form: milliseconds}}},
	"x-amz-retry-after":   {Instead: []Field{{Name: "X-Amz-Retry-After", Form: milliseconds}}},
	"should-retry":        {Advice: shouldRetry},
	"ratelimit": {Besides: []Field{ // draft-ietf-httpapi-ratelimit-headers, from version 7 on and before it
		{Name: "Ratelimit", Form: exhausted},
		{Name: "Ratelimit-Reset", Form: moment, Left: "Ratelimit-Remaining"},
	}},
	"x-ratelimit-reset": {Besides: []Field{
		{Name: "X-Ratelimit-Reset", Form: moment, Left: "X-Ratelimit-Remaining"},
		{Name: "X-Rate-Limit-Reset", Form: moment, Left: "X-Rate-Limit-Remaining"},
		{Name: "X-User-Limit-24hour-Reset", Form: moment, Left: "X-User-Limit-24hour-Remaining"}, // of X
		{Name: "X-App-Limit-24hour-Reset", Form: moment, Left: "X-App-Limit-24hour-Remaining"},
	}},

	// The instants, or times, until the limits are full again. That is longer than necessary,
	// but the headers say nothing better.
	"anthropic": {Posts: true, Advice: shouldRetry, Besides: limits(
		"Anthropic-Ratelimit-*-Reset", "Anthropic-Ratelimit-*-Remaining", "Requests", "Tokens", "Input-Tokens", "Output-Tokens",
	)},
	"azure": {Instead: []Field{
		{Name: "X-Ms-Retry-After-Ms", Form: milliseconds},
		{Name: "Retry-After-Ms", Form: milliseconds},
	}},
	"discord": {Global: discordGlobal, Besides: []Field{{Name: "X-Ratelimit-Reset-After", Form: moment, Left: "X-Ratelimit-Remaining"}}},
	"github": {Advice: githubForbidden, Least: time.Minute, Besides: []Field{
		{Name: "X-Ratelimit-Reset", Form: moment, Left: "X-Ratelimit-Remaining"},
	}},
	"openai": {
		Posts: true, Advice: shouldRetry, Instead: []Field{{Name: "Retry-After-Ms", Form: milliseconds}},
		Besides: limits("X-Ratelimit-Reset-*", "X-Ratelimit-Remaining-*", "Requests", "Tokens",
			"Requests-Minute", "Tokens-Minute", "Requests-Hour", "Tokens-Hour", "Requests-Day", "Tokens-Day"), // of Cerebras and SambaNova
	},
	// What is read anyway, so that a value that isn't understood is said.
	"shopify": {Besides: []Field{{Name: "Retry-After", Form: moment}}},
	"stripe":  {Advice: shouldRetry},
}

// limits returns the fields of several limits, of which the names of reset and left have one
// in place of the star.
func limits(reset, left string, of ...string) (fields []Field) {
	for _, limit := range of {
		fields = append(fields, Field{Name: strings.Replace(reset, "*", limit, 1), Form: moment, Left: strings.Replace(left, "*", limit, 1)})
	}
	return fields
}

func Names() []string { return slices.Sorted(maps.Keys(ByName)) }

// read returns the wait that f names in h, the header of a response with the status, which
// arrived at the instant now.
func (f *Field) read(status int, h http.Header, now time.Time) (wait time.Duration, ok bool) {
	if f.Left != "" {
		spent, said := isSpent(h[f.Left])
		if !spent && (said || status != http.StatusTooManyRequests) {
			return 0, false
		}
	}
	wait, ok = f.Form(f.ofSpent(h, now), h, now)
	return max(0, wait), ok && wait >= 0
}

// shouldRetry reads the verdict of OpenAI, Anthropic and Stripe.
func shouldRetry(_ int, h http.Header) Advice {
	for _, name := range []string{"X-Should-Retry", "Stripe-Should-Retry"} {
		switch {
		case syntax.Says(h[name], "false"):
			return Stop
		case syntax.Says(h[name], "true"):
			return Retry
		}
	}
	return Silent
}

// discordGlobal tells the limit of all routes from that of one.
func discordGlobal(h http.Header) bool {
	return syntax.Says(h["X-Ratelimit-Global"], "true") || syntax.Says(h["X-Ratelimit-Scope"], "global")
}

// githubForbidden tells a 403 about a rate limit from others: GitHub uses 403 for rate
// limits in addition to 429.
func githubForbidden(status int, h http.Header) Advice {
	if spent, _ := isSpent(h["X-Ratelimit-Remaining"]); status == http.StatusForbidden && (spent || h.Get("Retry-After") != "") {
		return Throttle
	}
	return Silent
}

// List is the dialects of a policy, in its order.
type List []Dialect

// Advice returns what the server says about retrying. Any server may forbid a retry,
// because that is safe; a permission counts only in the dialects that have one.
func (l List) Advice(status int, h http.Header) Advice {
	if syntax.Says(h["X-Should-Retry"], "false") {
		return Stop
	}
	for _, d := range l {
		if d.Advice == nil {
			continue
		}
		if v := d.Advice(status, h); v != Silent {
			return v
		}
	}
	return Silent
}

// Global reports whether a refusal with the header h is one of all requests.
func (l List) Global(h http.Header) bool {
	return slices.ContainsFunc(l, func(d Dialect) bool { return d.Global != nil && d.Global(h) })
}

// Wait returns how long the server of a retryable response asks to wait, or 0.
func (l List) Wait(status int, h http.Header, now time.Time) time.Duration {
	for _, d := range l {
		for _, f := range d.Instead {
			if wait, ok := f.read(status, h, now); ok {
				return wait
			}
		}
	}
	// Servers write more than the RFC allows, and standard reads no more than that.
	if wait, ok := moment(h["Retry-After"], h, now); ok {
		return wait
	}
	for _, d := range l {
		longest, found := time.Duration(0), false
		for _, f := range d.Besides {
			if wait, ok := f.read(status, h, now); ok {
				longest, found = max(longest, wait), true
			}
		}
		if found {
			return longest
		}
	}
	for _, d := range l {
		if d.Least > 0 && (status == http.StatusTooManyRequests || l.Advice(status, h) == Throttle) {
			return d.Least
		}
	}
	return 0
}

// Unread returns the name and the lines of a field of h that a dialect of l knows, but
// doesn't understand; or nothing.
func (l List) Unread(h http.Header, now time.Time) (name string, lines []string) {
	for _, d := range l {
		for _, f := range slices.Concat(d.Instead, d.Besides) {
			if _, ok := f.Form(h[f.Name], h, now); !ok && h[f.Name] != nil {
				return f.Name, h[f.Name]
			}
			if _, ok := isSpent(h[f.Left]); !ok && h[f.Left] != nil {
				return f.Left, h[f.Left]
			}
		}
	}
	return "", nil
}
