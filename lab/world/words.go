// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// say sets the header fields that ask for a wait. It returns the wait that any client
// must obey, without a dialect.
func (s Step) say(h http.Header, now time.Time) time.Duration {
	wait := time.Duration(s.Wait) * time.Second
	if s.Wait > 40 && s.Word != Seconds {
		wait = 40 * time.Second
	}
	seconds := strconv.Itoa(s.Wait)
	date := func(date, after time.Time, format string) time.Duration {
		h.Set("Date", date.UTC().Format(http.TimeFormat))
		h.Set("Retry-After", after.UTC().Format(format))
		return after.Truncate(time.Second).Sub(date.Truncate(time.Second))
	}
	switch s.Word {
	case Seconds:
		h.Set("Retry-After", seconds)
		return wait
	case Date:
		return date(now, now.Add(wait), http.TimeFormat)
	case DateSkew:
		skewed := now.Add(-3 * time.Hour)
		return date(skewed, skewed.Add(wait), http.TimeFormat)
	case OldDate:
		return date(now, now.Add(wait), "Monday, 02-Jan-06 15:04:05 GMT")
	case OlderDate:
		return date(now, now.Add(wait), time.ANSIC)
	case Two:
		lines := []string{"0", seconds, "soon"}
		if s.Wait%2 == 1 {
			slices.Reverse(lines)
		}
		if h["Retry-After"] = lines; s.Wait%3 == 0 {
			h["Retry-After"] = []string{strings.Join(lines, ", ")}
		}
		return time.Duration(s.Wait) * time.Second
	case Garbage:
		h.Set("Retry-After", []string{"-1", "1.5 seconds", "soon", "1e3", "+2"}[s.Wait%5])
		return []time.Duration{0, 1500 * time.Millisecond, 0, 1000 * time.Second, 0}[s.Wait%5]
	case Millis:
		h.Set("Retry-After-Ms", seconds+"00")
	case Reset:
		h.Set("X-RateLimit-Remaining", "0")
		h.Set("X-RateLimit-Reset", seconds)
		h.Set("X-RateLimit-Reset-After", seconds+".25")
		h.Set("X-RateLimit-Global", []string{"true", "false"}[s.Wait%2])
		h.Set("X-Ms-Retry-After-Ms", seconds+"00")
		h.Set("X-Amz-Retry-After", seconds+"00")
	case OfAll:
		h.Set("Retry-After", seconds)
		h.Set("X-RateLimit-Global", "true")
		return time.Duration(s.Wait) * time.Second
	case Services:
		h.Set("X-Ratelimit-Remaining-Requests", "0")
		h.Set("X-Ratelimit-Reset-Requests", seconds+"s")
		h.Set("Anthropic-Ratelimit-Requests-Remaining", "0")
		h.Set("Anthropic-Ratelimit-Requests-Reset", now.Add(wait).UTC().Format(time.RFC3339))
		h.Set("X-Should-Retry", []string{"true", "TRUE", "maybe"}[s.Wait%3])
	case RateLimit:
		switch s.Wait % 3 {
		case 0:
			h.Set("RateLimit", `"default";r=0;t=`+seconds)
		case 1:
			h.Set("RateLimit", "limit=9, remaining=0, reset="+seconds)
		default:
			h.Set("RateLimit-Remaining", "0")
			h.Set("RateLimit-Reset", seconds)
		}
	}
	return 0
}
