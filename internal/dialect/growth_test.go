// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/syntax"
	"github.com/retrip/retrip/internal/testenv"
)

// repeated are headers that are made of n equal parts.
var repeated = map[string]func(n int) http.Header{
	"limits": func(n int) http.Header { return both(strings.Repeat("a;r=0,", n) + "a;r=0") },
	"lines of limits": func(n int) http.Header {
		return http.Header{"Ratelimit": lines("a;r=0", n), "Ratelimit-Policy": lines("a;w=1", n)}
	},
	"parameters":         func(n int) http.Header { return both("a" + strings.Repeat(";r=0", n)) },
	"strings":            func(n int) http.Header { return both(strings.Repeat(`"\\";r=0,`, n)) },
	"open string":        func(n int) http.Header { return both(strings.Repeat(`"`, 2*n+1)) },
	"digits":             func(n int) http.Header { return every(strings.Repeat("9", n)) },
	"fraction":           func(n int) http.Header { return every("1." + strings.Repeat("0", n) + "1") },
	"durations":          func(n int) http.Header { return every(strings.Repeat("1ns", n)) },
	"instant, and more":  func(n int) http.Header { return every("2026-01-01T00:00:00." + strings.Repeat("1", n) + "Z") },
	"spaces":             func(n int) http.Header { return every(strings.Repeat(" ", n) + "x" + strings.Repeat(" ", n)) },
	"joined Retry-After": func(n int) http.Header { return http.Header{"Retry-After": {strings.Repeat("1,", n)}} },
	"days":               func(n int) http.Header { return every(strings.Repeat("Fri,", n)) },
	"members":            func(n int) http.Header { return both(strings.Repeat("remaining=0,reset=1,", n)) },
	"many left":          func(n int) http.Header { return http.Header{"X-Ratelimit-Remaining": {strings.Repeat("1,", n)}} },
	"many Retry-After":   func(n int) http.Header { return http.Header{"Retry-After": lines("1", n)} },
	"dates and a Date":   dates,
	"dates, overlong": func(n int) http.Header {
		h := dates(n)
		h["Retry-After"] = lines(date+strings.Repeat(" ", 100), n)
		return h
	},
	"many lines, Date": func(n int) http.Header { return http.Header{"Date": lines(date, n), "Retry-After": {date}} },
}

const date = "Sun, 06 Nov 1994 08:49:37 GMT"

func dates(n int) http.Header {
	return http.Header{"Retry-After": lines(date, n), "Date": {date + strings.Repeat("x", 20*n)}}
}

func both(s string) http.Header { return http.Header{"Ratelimit": {s}, "Ratelimit-Policy": {s}} }

func lines(s string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = s
	}
	return all
}

// every returns a header in which each field that a dialect reads has the value s.
func every(s string) http.Header {
	h := http.Header{"Retry-After": {s}, "Date": {s}, "Ratelimit-Policy": {s}, "X-Should-Retry": {s}, "Stripe-Should-Retry": {s}, "Content-Type": {s}}
	for _, d := range ByName {
		for _, f := range slices.Concat(d.Instead, d.Besides) {
			h[f.Name] = []string{s}
			if f.Left != "" {
				h[f.Left] = []string{"0"}
			}
		}
	}
	return h
}

// A header of twice the size costs less than three times the time: no server can keep a
// goroutine busy. Package dialect checks what it reads, and package resume too.
//
//retrip:promise P12
func TestDialects_Growth(t *testing.T) {
	now := time.Unix(1e9, 0)
	read := func(h http.Header) {
		_, _ = RetryAfter(h, now)
		_ = syntax.IsStream(h)
		for _, d := range ByName {
			for _, f := range slices.Concat(d.Instead, d.Besides) {
				_, _ = f.read(http.StatusTooManyRequests, h, now)
			}
			if d.Advice != nil {
				_ = d.Advice(http.StatusForbidden, h)
			}
		}
	}
	for name, header := range repeated {
		t.Run(name, func(t *testing.T) { testenv.Growth(t, 5_000, header, read) })
	}
	for _, part := range []string{"false", " ", "\t", " false,", "text/event-stream", ";", "application/grpc", "É", "İ", "9", "\xff"} {
		t.Run("every field/"+part, func(t *testing.T) {
			testenv.Growth(t, 5_000, func(n int) (all []http.Header) {
				for _, values := range testenv.LongValues(n, part) {
					h := every("")
					for name := range h {
						h[name] = values
					}
					all = append(all, h)
				}
				return all
			}, func(all []http.Header) {
				for _, h := range all {
					read(h)
				}
			})
		})
	}
}

// A field larger than any server needs is malformed.
//
//retrip:promise P9
func TestRateLimit_Bounds(t *testing.T) {
	read := func(field string) (time.Duration, bool) {
		return exhausted([]string{field}, nil, time.Time{})
	}
	for _, tt := range []struct {
		field string
		ok    bool
	}{
		{strings.Repeat("a;r=0;t=5,", mostLimits-1) + "a;r=0;t=5", true},
		{strings.Repeat("a;r=0;t=5,", mostLimits) + "a;r=0;t=5", false},
		{"a;r=0;t=5;x=" + strings.Repeat("1", mostLimitBytes-13), true},
		{"a;r=0;t=5;x=" + strings.Repeat("1", mostLimitBytes-12), false},
	} {
		wait, ok := read(tt.field)
		require.Equal(t, tt.ok, ok, "%d bytes", len(tt.field))
		if ok {
			assert.Equal(t, 5*time.Second, wait)
		}
	}
}

// A value that has no form of a wait takes long to try, so few of them are tried, and few
// members are remembered.
//
//retrip:promise P9 P12
func TestDialects_Bounds(t *testing.T) {
	tried := 0
	f := longest(func(value string, h http.Header, now time.Time) (time.Duration, bool) {
		tried++
		return moment([]string{value}, h, now)
	})
	for _, many := range [][]string{append(lines("9", mostLimits), "99"), {strings.Repeat("9,", mostLimits) + "99"}, lines("9,x", 1000)} {
		tried = 0
		wait, ok := f(many, nil, time.Time{})
		assert.True(t, ok)
		assert.Equal(t, 9*time.Second, wait)
		assert.Equal(t, mostLimits, tried)
	}
	var members strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&members, "m%d=0,", i)
	}
	field := []string{members.String() + "remaining=0,reset=5"}
	assert.Less(t, testing.AllocsPerRun(5, func() {
		wait, ok := older(field, nil, time.Time{})
		assert.True(t, ok)
		assert.Equal(t, 5*time.Second, wait)
	}), 20.0)
}

//retrip:promise P9
func FuzzDialects(f *testing.F) {
	f.Add(`"default";r=0;t=30`, "12ms", "1767323050")
	f.Add(`a;r=0, "b";t=5;r=0`, "6m0s", "1.5")
	f.Add("Fri, 02 Jan 2026 03:04:05 GMT", "2026-01-02T03:04:35Z", "30")
	f.Add("limit=1, remaining=0, reset=30", "2 minutes, Fri", "1767323050000")
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f.Fuzz(func(t *testing.T, field, duration, number string) {
		h := http.Header{
			"Ratelimit": {field}, "Ratelimit-Policy": {field}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {number},
			"X-Ratelimit-Remaining-Tokens": {"0"}, "X-Ratelimit-Reset-Tokens": {duration}, "X-Ratelimit-Reset-After": {number},
			"Anthropic-Ratelimit-Tokens-Remaining": {"0"}, "Anthropic-Ratelimit-Tokens-Reset": {duration},
			"Retry-After": {number}, "Retry-After-Ms": {number}, "X-Ms-Retry-After-Ms": {number}, "X-Amz-Retry-After": {number},
			"Date": {field},
		}
		for name, d := range ByName {
			for _, f := range slices.Concat(d.Instead, d.Besides) {
				wait, ok := f.read(http.StatusTooManyRequests, h, now)
				require.GreaterOrEqual(t, wait, time.Duration(0), name)
				require.True(t, ok || wait == 0, name)
			}
		}
		wait, ok := parseDecimal(number, time.Second)
		if exact, err := strconv.ParseFloat(number, 64); ok {
			require.True(t, err == nil || math.IsInf(exact, 0))
			require.InEpsilon(t, 1+min(exact, math.MaxInt64/1e9), 1+wait.Seconds(), 1e-9)
		}
		wait, ok = RetryAfter(h, now)
		require.GreaterOrEqual(t, wait, time.Duration(0))
		require.True(t, ok || wait == 0)
	})
}
