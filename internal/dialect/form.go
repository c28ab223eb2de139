// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/retrip/retrip/internal/syntax"
)

// form reads the lines of a field of h, which arrived at the instant now. The wait is
// below 0 if the field asks for none; ok reports whether the lines are understood.
type form func(lines []string, h http.Header, now time.Time) (wait time.Duration, ok bool)

// longest is the form of a field with one value, which read reads. Among several, in lines
// of their own or joined by commas, the longest wait counts. A date has a comma of its own.
// What doesn't fit any form takes microseconds to read, so only the first mostLimits count.
func longest(read func(value string, h http.Header, now time.Time) (time.Duration, bool)) form {
	return func(lines []string, h http.Header, now time.Time) (longest time.Duration, found bool) {
		n := 0
		for _, line := range lines {
			begun := "" // what is no value, and may be the beginning of one
			for value := range strings.SplitSeq(line, ",") {
				wait, ok := time.Duration(0), false
				if begun != "" && !syntax.IsDigits(strings.Trim(value, " \t")) {
					wait, ok = read(strings.Trim(begun+","+value, " \t"), h, now)
				}
				if !ok {
					if n++; n > mostLimits {
						return longest, found
					}
					wait, ok = read(strings.Trim(value, " \t"), h, now)
				}
				if begun = value; ok {
					longest, found, begun = max(longest, wait), true, ""
				}
			}
		}
		return longest, found
	}
}

// isDay reports whether s is the name of a day, such as Fri or Friday.
func isDay(s string) bool {
	for day := range time.Saturday + 1 {
		if name := day.String(); strings.EqualFold(s, name) || strings.EqualFold(s, name[:3]) {
			return true
		}
	}
	return false
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
	if wait, ok := parseDecimal(value, time.Millisecond); ok {
		return wait, true
	}
	return parseDuration(value)
})

// moment is the form of most servers: a number of seconds, a time since 1970 in any unit, a
// date, or a duration.
var moment = longest(func(value string, h http.Header, now time.Time) (time.Duration, bool) {
	value, _, _ = strings.Cut(value, ";") // what follows is no wait
	value = strings.Trim(value, `" `)
	if strings.ContainsAny(value, "eE") && strings.Trim(value, "0123456789.eE+") == "" { // as Go and Java print large floats
		if f, err := strconv.ParseFloat(value, 64); err == nil {
			value = strconv.FormatFloat(f, 'f', -1, 64)
		}
	}
	for unit := time.Second; unit > 0; unit /= 1000 {
		if since, _ := parseDecimal(value, unit); isInstant(since, h, now) {
			return until(time.Unix(0, int64(since)), h, now), true
		}
	}
	if wait, ok := parseDecimal(value, time.Second); ok {
		return wait, true
	}
	if at, ok := parseInstant(value); ok {
		return until(at, h, now), true
	}
	return parseDuration(value)
})

// isInstant reports whether t counts from 1970: nobody asks for a wait of 32 years. In the
// bubbles of testing/synctest, time begins 30 years after 1970. Elsewhere, 999999999 means never.
func isInstant(t time.Duration, h http.Header, now time.Time) bool {
	const least = 1_000_000_000
	return t > least*time.Second && t < math.MaxInt64 ||
		t > 900_000_000*time.Second && t <= least*time.Second && clock(h, now).Unix() < least
}

// layouts are those of dates, besides those of HTTP, once parseInstant has brought them into
// one shape.
var layouts = []string{
	"2006-1-2 15:04:05-0700", "2006-1-2 15:04-0700", "20060102 150405-0700", "20060102 1504-0700", "2006-1-2-0700",
	"2 Jan 2006 15:04:05-0700", "2 Jan 2006 15:04-0700", "2 Jan 06 15:04:05-0700", "2-Jan-2006 15:04:05-0700", "2006-Jan-2 15:04:05-0700",
	"Jan 2 2006 15:04:05-0700", "Jan 2 15:04:05 2006-0700",
}

// parseInstant parses a date as programs print it: of HTTP, ISO 8601, databases, JavaScript
// and so on. A date without a zone is in UTC, and a zone is an offset, UTC, GMT or Z.
func parseInstant(s string) (time.Time, bool) {
	// What programs add behind the zone: its name in JavaScript and Java, a second clock in Go.
	for _, more := range []string{" (", "[", " m="} {
		s, _, _ = strings.Cut(s, more)
	}
	if at, ok := parseDate(s); ok || len(s) > longestDate {
		return at, ok
	}
	words := strings.Fields(zones.Replace(strings.ToUpper(s)))
	if len(words) > 1 && isDay(words[0]) {
		words = words[1:]
	}
	if n := len(words); n > 1 && strings.ContainsAny(words[n-2][:1], "+-") {
		words = words[:n-1] // the name of the offset before it
	}
	date := strings.TrimRight(strings.Join(words, " "), "Z ")
	if len(date) > 4 && date[4] == '/' {
		date = strings.ReplaceAll(date, "/", "-")
	}
	if len(date) > 10 && (date[8] == 'T' || date[10] == 'T') {
		date = strings.Replace(date, "T", " ", 1)
	}
	zone := "+0000"
	if i := strings.LastIndexAny(date, "+-"); i > 10 && strings.Contains(date[:i], ":") {
		date, zone = strings.TrimSuffix(date[:i], " "), strings.ReplaceAll(date[i:], ":", "")
		if len(zone) == len("+00") {
			zone += "00"
		}
	}
	for _, layout := range layouts {
		if at, err := time.Parse(layout, date+zone); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}

var zones = strings.NewReplacer("UTC", " ", "GMT", " ", ", ", " ")

// parseDuration parses numbers with units, such as 1h30m, 30 seconds or PT30S, or a time such
// as 00:01:30 or 1 day 02:03:04.
func parseDuration(s string) (sum time.Duration, ok bool) {
	s = strings.ToLower(s)
	if clock := strings.SplitN(s, ":", 4); len(clock) == 3 {
		s = strings.Replace(clock[0], ".", "d", 1) + "h" + clock[1] + "m" + clock[2] + "s" // .NET writes 1.02:03:04
	}
	rest, iso := strings.CutPrefix(s, "p")
	if iso {
		days, clock, _ := strings.Cut(rest, "t")
		if strings.Trim(days, "0123456789dw") != "" {
			return 0, false // months and years have no length
		}
		rest = days + clock
	}
	for rest = strings.Trim(rest, " "); rest != ""; rest = strings.TrimLeft(rest, " ") {
		rest = strings.TrimPrefix(rest, "and ")
		number := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789."))]
		rest = strings.TrimLeft(rest[len(number):], " ")
		word := rest[:len(rest)-len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyzµ"))]
		if iso {
			word = rest[:min(1, len(rest))]
		}
		rest = strings.TrimPrefix(rest[len(word):], ".")
		part, valid := parseDecimal(number, units()[word])
		if !valid {
			return 0, false
		}
		if sum += part; sum < 0 {
			sum = math.MaxInt64
		}
	}
	return sum, s != ""
}

// units are those of durations.
var units = sync.OnceValue(func() map[string]time.Duration {
	all := map[string]time.Duration{}
	for unit, names := range map[time.Duration]string{
		time.Nanosecond: "ns", time.Microsecond: "us µs", time.Millisecond: "ms msec msecs millis millisecond milliseconds",
		time.Second: "s sec secs second seconds", time.Minute: "m min mins minute minutes",
		time.Hour: "h hr hrs hour hours", 24 * time.Hour: "d day days", 7 * 24 * time.Hour: "w week weeks",
	} {
		for name := range strings.FieldsSeq(names) {
			all[name] = unit
		}
	}
	return all
})

// isSpent reports whether lines, of numbers, say that nothing is left of a limit.
func isSpent(lines []string) (spent, ok bool) {
	for value := range syntax.Members(lines) {
		number, below := strings.CutPrefix(strings.Trim(value, "\" \t"), "-")
		number, _, _ = strings.Cut(number, ";") // what follows says of what
		number, _, _ = strings.Cut(number, "/")
		if left, valid := parseDecimal(number, time.Second); valid {
			spent, ok = spent || below || left < time.Second, true
		}
	}
	return spent, ok
}

// ofSpent returns those of the values of f in h whose limits are used up, as the field Left says
// in the same order, or all if it doesn't list as many, or if one is no value: its comma may be
// that of a date.
func (f *Field) ofSpent(h http.Header, now time.Time) (some []string) {
	lines, left := h[f.Name], h[f.Left]
	values, lefts := strings.Split(strings.Join(lines, ","), ","), strings.Split(strings.Join(left, ","), ",")
	if len(values) != len(lefts) || len(values) > mostLimits {
		return lines
	}
	for i, value := range values {
		if _, ok := f.Form(values[i:i+1], h, now); !ok {
			return lines
		}
		if spent, ok := isSpent(lefts[i : i+1]); spent || !ok {
			some = append(some, value)
		}
	}
	return some
}

// parseDecimal parses 1*DIGIT with an optional fraction, in units of unit. It
// rounds up, so that the wait is never too short.
func parseDecimal(s string, unit time.Duration) (time.Duration, bool) {
	if unit == 0 {
		return 0, false
	}
	whole, fraction, pointed := strings.Cut(s, ".")
	if whole == "" || pointed && fraction == "" {
		return 0, false
	}
	most, scale := math.MaxInt64/unit, unit
	var n, part time.Duration
	over := false // the longest duration; the rest must be digits nevertheless
	for _, c := range []byte(whole) {
		if c < '0' || c > '9' {
			return 0, false
		}
		if digit := time.Duration(c - '0'); over || n > (most-digit)/10 {
			over = true
		} else {
			n = n*10 + digit
		}
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
	if part += below; over || n == most && part > 0 {
		return math.MaxInt64, true
	}
	return n*unit + part, true //nolint:durationcheck // n is a count
}

// until returns the time from now to the instant at, which the server of h has named,
// or 0 if it has passed.
func until(at time.Time, h http.Header, now time.Time) time.Duration {
	return max(0, at.Sub(clock(h, now)))
}

// clock returns the time of the server's clock, if h tells it: the clocks may differ, and what
// comes from a cache has aged.
func clock(h http.Header, now time.Time) time.Time {
	if date, ok := parseDate(h.Get("Date")); ok {
		age, _ := parseDecimal(h.Get("Age"), time.Second)
		now = date.Add(age)
	}
	return now
}

// longestDate is longer than any date. Package time copies what it can't parse, and there may
// be many instants to compare with one Date.
const longestDate = 64

// parseDate parses a date of HTTP.
func parseDate(s string) (time.Time, bool) {
	if len(s) > longestDate {
		return time.Time{}, false
	}
	at, err := http.ParseTime(s)
	return at, err == nil
}
