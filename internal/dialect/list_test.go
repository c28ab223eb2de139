// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package dialect_test

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/dialect"
)

func header(lines ...string) http.Header {
	h := http.Header{}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		h.Add(name, value)
	}
	return h
}

// list returns the dialects of the given names, which commas separate.
func list(names string) (l dialect.List) {
	for name := range strings.SplitSeq(names, ",") {
		if name != "" {
			l = append(l, dialect.ByName[name])
		}
	}
	return l
}

func TestDialects_Wait(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const forever = time.Duration(math.MaxInt64)
	tested := map[string]bool{}
	for _, tt := range []struct {
		name     string
		dialects string
		header   http.Header
		want     time.Duration
	}{
		{"none is listed", "", header("Retry-After-Ms: 1500"), 0},
		{"milliseconds", "retry-after-ms", header("retry-after-ms: 1500"), 1500 * time.Millisecond},
		{"milliseconds, more exact than Retry-After", "retry-after-ms", header("Retry-After-Ms: 1500", "Retry-After: 2"), 1500 * time.Millisecond},
		{"fraction of a millisecond, rounded up", "retry-after-ms", header("Retry-After-Ms: 0.0000001"), 1},
		{"fraction", "retry-after-ms", header("Retry-After-Ms: 20.25"), 20250 * time.Microsecond},
		{"malformed falls back to Retry-After", "retry-after-ms", header("Retry-After-Ms: -5", "Retry-After: 2"), 2 * time.Second},
		{"beyond every duration", "retry-after-ms", header("Retry-After-Ms: 99999999999999999999"), forever},
		{"the longest number of milliseconds", "retry-after-ms", header("Retry-After-Ms: 9223372036854"), 9223372036854 * time.Millisecond},
		{"more", "retry-after-ms", header("Retry-After-Ms: 9223372036854.000001"), forever},
		{"to the nanosecond", "retry-after-ms", header("Retry-After-Ms: 0.000002"), 2},
		{"not only digits", "retry-after-ms", header("Retry-After-Ms: 5a, 5:, 5."), 0},
		{"azure, the header alone", "x-ms-retry-after-ms", header("X-Ms-Retry-After-Ms: 250", "Retry-After: 1"), 250 * time.Millisecond},
		{"azure", "azure", header("x-ms-retry-after-ms: 250", "Retry-After: 1"), 250 * time.Millisecond},
		{"amazon", "x-amz-retry-after", header("X-Amz-Retry-After: 300"), 300 * time.Millisecond},
		{"shopify's decimal Retry-After", "shopify", header("Retry-After: 2.0"), 2 * time.Second},
		{"the order of the list decides", "x-amz-retry-after,retry-after-ms", header("Retry-After-Ms: 1", "X-Amz-Retry-After: 2"), 2 * time.Millisecond},

		{"github, an instant against the server's clock", "github",
			header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1767325445", "Date: Fri, 02 Jan 2026 03:44:00 GMT"), 5 * time.Second},
		{"github, an instant against ours", "github", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1767323050"), 5 * time.Second},
		{"github, past", "github", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1700000000"), 0},
		{"a small number is a delay", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 30"), 30 * time.Second},
		{"limit not used up", "x-ratelimit-reset", header("X-RateLimit-Remaining: 3", "X-RateLimit-Reset: 30"), 0},
		{"reset malformed", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: soon"), 0},
		{"a date beside a list", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0, 5", "X-RateLimit-Reset: Fri, 02 Jan 2026 03:05:05 GMT"), time.Minute},
		{"an old date beside a list", "x-ratelimit-reset", header("X-RateLimit-Remaining: 5, 0", "X-RateLimit-Reset: Friday, 02-Jan-26 03:05:05 GMT"), time.Minute},
		{"a date without a day beside a list", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0, 7", "X-RateLimit-Reset: Jan 2, 2026 03:05:05"), time.Minute},
		{"reset beyond every duration", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 99999999999999"), forever},
		{"the longest delay", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1000000000"), 1e9 * time.Second},
		{"never", "", header("Retry-After: 999999999"), 999_999_999 * time.Second},
		{"an instant of a bubble's clock", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 946684805", "Date: Sat, 01 Jan 2000 00:00:00 GMT"), 5 * time.Second},
		{"an instant of a bubble's clock, in milliseconds", "", header("Retry-After: 946684805000", "Date: Sat, 01 Jan 2000 00:00:00 GMT"), 5 * time.Second},
		{"github, reset malformed", "github", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: soon"), time.Minute},
		{"github, no reset", "github", header("X-RateLimit-Remaining: 0"), time.Minute},
		{"the least wait of the second in the list", "stripe,github", header(), time.Minute},
		{"github, secondary limit without a word", "github", header(), time.Minute},
		{"github, secondary limit with Retry-After", "github", header("Retry-After: 7"), 7 * time.Second},

		{"discord", "discord", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset-After: 1.5"), 1500 * time.Millisecond},
		{"discord, remaining unknown", "discord", header("X-RateLimit-Reset-After: 1.5"), 1500 * time.Millisecond},
		{"discord, another bucket", "discord", header("X-RateLimit-Remaining: 4", "X-RateLimit-Reset-After: 1.5"), 0},

		{"openai, the limit that is used up", "openai",
			header("x-ratelimit-remaining-requests: 12", "x-ratelimit-reset-requests: 12ms", "x-ratelimit-remaining-tokens: 0", "x-ratelimit-reset-tokens: 6m0s"), 6 * time.Minute},
		{"openai, exact word first", "openai", header("retry-after-ms: 20", "x-ratelimit-remaining-requests: 0", "x-ratelimit-reset-requests: 1s"), 20 * time.Millisecond},
		{"openai, malformed", "openai", header("x-ratelimit-remaining-requests: 0", "x-ratelimit-reset-requests: -1s"), 0},
		{"openai, reset already", "openai,github", header("x-ratelimit-remaining-requests: 0", "x-ratelimit-reset-requests: 0s"), 0},
		{"openai, no duration", "openai,github", header("x-ratelimit-remaining-requests: 0", "x-ratelimit-reset-requests: soon, -1s"), time.Minute},
		{"openai, limits of a minute and a day", "openai",
			header("x-ratelimit-remaining-requests-day: 9500", "x-ratelimit-reset-requests-day: 33011.382867", "x-ratelimit-remaining-tokens-minute: 0", "x-ratelimit-reset-tokens-minute: 20.5"), 20500 * time.Millisecond},
		{"anthropic, the longest of those used up", "anthropic",
			header("anthropic-ratelimit-requests-remaining: 0", "anthropic-ratelimit-requests-reset: 2026-01-02T03:04:15Z",
				"anthropic-ratelimit-tokens-remaining: 0", "anthropic-ratelimit-tokens-reset: 2026-01-02T03:04:25Z",
				"anthropic-ratelimit-output-tokens-remaining: 5", "anthropic-ratelimit-output-tokens-reset: 2026-01-02T04:04:25Z"), 20 * time.Second},
		{"anthropic, Retry-After first", "anthropic",
			header("Retry-After: 3", "anthropic-ratelimit-requests-remaining: 0", "anthropic-ratelimit-requests-reset: 2026-01-02T03:04:15Z"), 3 * time.Second},

		{"Retry-After, two lines joined", "", header("Retry-After: 30, 120"), 2 * time.Minute},
		{"Retry-After, dates joined", "", header("Retry-After: 5,Fri, 02 Jan 2026 03:04:25 GMT, Friday, 02-Jan-26 03:04:35 GMT, Fri Jan  2 03:04:15 2026"), 30 * time.Second},
		{"Retry-After, garbage joined", "", header("Retry-After: soon, 7,"), 7 * time.Second},
		{"Retry-After, a decimal", "", header("Retry-After: 1.5"), 1500 * time.Millisecond},
		{"Retry-After, a unit", "", header("Retry-After: 90s"), 90 * time.Second},
		{"Retry-After, units", "", header("Retry-After: 1 hour 1 min 1 Minutes 3 sec."), time.Hour + 2*time.Minute + 3*time.Second},
		{"Retry-After, since 1970", "", header("Retry-After: 1767323050"), 5 * time.Second},
		{"Retry-After, since 1970, long past", "", header("Retry-After: 1600000000"), 0},
		{"Retry-After, digits that end no date", "", header("Retry-After: Jan 2 03:05:05, 2025"), 2025 * time.Second},
		{"Retry-After, another zone", "", header("Retry-After: Fri, 02 Jan 2026 04:04:50 +0100"), 45 * time.Second},
		{"Retry-After, an age", "", header("Retry-After: 30", "Age: 20", "Date: Fri, 02 Jan 2026 03:03:45 GMT"), 30 * time.Second},
		{"Retry-After, an aged date", "", header("Retry-After: Fri, 02 Jan 2026 03:04:15 GMT", "Age: 20", "Date: Fri, 02 Jan 2026 03:03:45 GMT"), 10 * time.Second},
		{"Retry-After, an age that is none", "", header("Retry-After: Fri, 02 Jan 2026 03:04:15 GMT", "Age: -20", "Date: Fri, 02 Jan 2026 03:03:45 GMT"), 30 * time.Second},
		{"Retry-After, words, one of which ends as a day does", "", header("Retry-After: 10, now, someday, 120"), 2 * time.Minute},
		{"Retry-After, in quotes, with a comment", "", header(`Retry-After: "120"; reason=quota`), 2 * time.Minute},
		{"Retry-After, units with a word", "", header("Retry-After: 1 minute and 30 seconds"), 90 * time.Second},
		{"Retry-After, weeks and days", "", header("Retry-After: 1 week 1 day 1h"), 8*24*time.Hour + time.Hour},
		{"Retry-After, a duration of ISO 8601", "", header("Retry-After: PT1M30.5S"), 90500 * time.Millisecond},
		{"Retry-After, weeks and days of ISO 8601", "", header("Retry-After: P2W, P1DT2H"), 14 * 24 * time.Hour},
		{"Retry-After, a float of Go", "", header("Retry-After: 1.2e+03"), 20 * time.Minute},
		{"Retry-After, since 1970, a float of Go", "", header("Retry-After: 1.76732305e+09"), 5 * time.Second},
		{"Retry-After, more than any float", "", header("Retry-After: 1e999, e, 1e"), 0},
		{"Retry-After, a time", "", header("Retry-After: 00:01:30"), 90 * time.Second},
		{"Retry-After, a time of more than a day", "", header("Retry-After: 1 day 36:00:04.5"), 60*time.Hour + 4500*time.Millisecond},
		{"Retry-After, a time of more than a day in .NET", "", header("Retry-After: 1.02:03:04"), 26*time.Hour + 3*time.Minute + 4*time.Second},
		{"Retry-After, too many days", "", header("Retry-After: 106751 days 24 hours"), forever},
		{"Retry-After, words", "", header("Retry-After: a minute, 5 apples, 1:30, 30 seconds or so, P1M, s"), 0},
		{"Retry-After, since 1970, nanoseconds", "", header("Retry-After: 1767323050250000000"), 5250 * time.Millisecond},

		{"milliseconds joined", "retry-after-ms", header("Retry-After-Ms: 200, 1500"), 1500 * time.Millisecond},
		{"since 1970, milliseconds", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1767323050250"), 5250 * time.Millisecond},
		{"since 1970, microseconds", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1767323050250000"), 5250 * time.Millisecond},
		{"since 1970, a fraction", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1767323050.25"), 5250 * time.Millisecond},
		{"since 1970, from a cache", "x-ratelimit-reset",
			header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1767323050", "Date: Fri, 02 Jan 2026 00:04:05 GMT", "Age: 10800"), 5 * time.Second},
		{"seconds with a fraction", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1.5"), 1500 * time.Millisecond},
		{"a duration", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1m30.5s"), 90500 * time.Millisecond},
		{"a date of HTTP", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: Fri, 02 Jan 2026 03:04:35 GMT"), 30 * time.Second},
		{"a date of RFC 3339", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-01-02T03:04:35.5Z"), 30500 * time.Millisecond},
		{"a date with a zone", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-01-02T05:04:35+0200"), 30 * time.Second},
		{"a date without a zone", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-01-02T03:04:35"), 30 * time.Second},
		{"a date of a database", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-01-02 03:04:35"), 30 * time.Second},
		{"a date of Ruby", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-01-02 04:04:35 +0100"), 30 * time.Second},
		{"an instant without seconds", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-01-02T03:05Z"), 55 * time.Second},
		{"without seconds, with a zone", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-01-02 04:05+01"), 55 * time.Second},
		{"a day", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-01-03"), 20*time.Hour + 55*time.Minute + 55*time.Second},
		{"an instant of Go", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-01-02 04:04:35.5 +0100 UTC"), 30500 * time.Millisecond},
		{"an instant without separators", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 20260102T030435Z"), 30 * time.Second},
		{"an instant of a log", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026/01/02 03:04:35"), 30 * time.Second},
		{"an instant of date(1)", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: Fri Jan  2 03:04:35 UTC 2026"), 30 * time.Second},
		{"an instant of a cookie", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: Fri, 2-Jan-2026 03:04:35 GMT"), 30 * time.Second},
		{"an instant with a month's name", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-Jan-02 03:04:35+0000 UTC"), 30 * time.Second},
		{"an instant of a mail", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2 Jan 2026 04:04:35 +01:00"), 30 * time.Second},
		{"an instant of Akamai", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: Fri, 02 Jan 2026 03:04:35 Z"), 30 * time.Second},
		{"an instant of Go, now", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-01-01 22:04:35.5 -0500 EST m=+20.000012345"), 30500 * time.Millisecond},
		{"an instant of an old mail", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: Fri, 02 Jan 26 03:04:35 +0000"), 30 * time.Second},
		{"an instant without zeros", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-1-2 3:04:35"), 30 * time.Second},
		{"an instant of Java", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-01-02T04:04:35.5+01:00[Europe/Paris]"), 30500 * time.Millisecond},
		{"an instant with a comma behind the day", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: Jan 2, 2026 03:04:35 UTC"), 30 * time.Second},
		{"since 1970, a float of Java", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1.76732305E9"), 5 * time.Second},
		{"an instant in small letters", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-01-02t03:04:35z"), 30 * time.Second},
		{"an instant in a zone with a name", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-01-02 03:04:35 PST"), 0},
		{"zones that are none", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 2026-01-02 03:04:35+, 2026-01-02 03:04:35+5"), 0},
		{"milliseconds with a unit", "retry-after-ms", header("Retry-After-Ms: 2s"), 2 * time.Second},
		{"left of how many", "x-ratelimit-reset", header("X-RateLimit-Remaining: 00/100", "X-RateLimit-Reset: 30"), 30 * time.Second},
		{"left in a window", "x-ratelimit-reset", header("X-RateLimit-Remaining: 5;w=1, 0;w=60", "X-RateLimit-Reset: 30"), 30 * time.Second},
		{"a date of JavaScript", "x-ratelimit-reset",
			header("X-RateLimit-Remaining: 0", "X-RateLimit-Reset: Fri Jan 02 2026 04:04:35 GMT+0100 (Central European Standard Time)"), 30 * time.Second},
		{"hyphens", "x-ratelimit-reset", header("X-Rate-Limit-Remaining: 0", "X-Rate-Limit-Reset: 1767323050"), 5 * time.Second},
		{"hyphens, something left", "x-ratelimit-reset", header("X-Rate-Limit-Remaining: 3", "X-Rate-Limit-Reset: 1767323050"), 0},
		{"several limits, the longest", "x-ratelimit-reset", header("X-RateLimit-Remaining: 5, 0", "X-RateLimit-Reset: 3", "X-RateLimit-Reset: 7"), 7 * time.Second},
		{"Brave's limits of a second and a month", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0, 14523", "X-RateLimit-Reset: 1, 1419704"), time.Second},
		{"the month is used up", "x-ratelimit-reset", header("X-RateLimit-Remaining: 1, 0", "X-RateLimit-Reset: 1, 1419704"), 1419704 * time.Second},
		{"one of them isn't known", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0, ?", "X-RateLimit-Reset: 1, 7"), 7 * time.Second},
		{"X's limit of a day", "x-ratelimit-reset",
			header("X-Rate-Limit-Remaining: 9", "X-Rate-Limit-Reset: 1767323050", "X-App-Limit-24hour-Remaining: 9", "X-App-Limit-24hour-Reset: 1767323050",
				"X-User-Limit-24hour-Remaining: 0", "X-User-Limit-24hour-Reset: 1767323145"), 100 * time.Second},
		{"less than one left", "x-ratelimit-reset", header("X-RateLimit-Remaining: 0.4", "X-RateLimit-Reset: 30"), 30 * time.Second},
		{"one left", "x-ratelimit-reset", header("X-RateLimit-Remaining: 1.0", "X-RateLimit-Reset: 30"), 0},
		{"less than nothing left", "x-ratelimit-reset", header("X-RateLimit-Remaining: -1", "X-RateLimit-Reset: 30"), 30 * time.Second},
		{"a 429 that doesn't say what is left", "x-ratelimit-reset", header("X-RateLimit-Reset: 30"), 30 * time.Second},
		{"a 429 that says what is left in words", "x-ratelimit-reset", header("X-RateLimit-Remaining: none", "X-RateLimit-Reset: 30"), 30 * time.Second},

		{"ratelimit, before version 7", "ratelimit", header("RateLimit-Limit: 10", "RateLimit-Remaining: 0", "RateLimit-Reset: 30"), 30 * time.Second},
		{"ratelimit, before version 7, something left", "ratelimit", header("RateLimit-Limit: 10", "RateLimit-Remaining: 9", "RateLimit-Reset: 30"), 0},
		{"ratelimit, before version 7, since 1970", "ratelimit", header("RateLimit-Remaining: 0", "RateLimit-Reset: 1767323050"), 5 * time.Second},
		{"ratelimit, version 7", "ratelimit", header("RateLimit: limit=10, remaining=0, reset=30", "RateLimit-Policy: 10;w=60"), 30 * time.Second},
		{"ratelimit, version 7 in several lines", "ratelimit", header("RateLimit: limit=10", "RateLimit: reset=30,remaining=0"), 30 * time.Second},
		{"ratelimit, version 7, something left", "ratelimit,github", header("RateLimit: limit=10, remaining=9, reset=30"), time.Minute},
		{"ratelimit, version 7, reset already", "ratelimit,github", header("RateLimit: limit=10, remaining=0, reset=0"), 0},
		{"ratelimit, version 7, incomplete", "ratelimit", header("RateLimit: limit=10, reset=30"), 0},
		{"ratelimit, since 1970", "ratelimit", header(`RateLimit: "default";r=0;t=1767323050`), 5 * time.Second},
		{"ratelimit", "ratelimit", header(`RateLimit: "default";r=0;t=30`), 30 * time.Second},
		{"ratelimit, something left", "ratelimit", header(`RateLimit: "default";r=50;t=30`), 0},
		{"ratelimit, several", "ratelimit", header(`RateLimit: "burst";r=0;t=5, day;t=60;r=0;pk=:cHJvamVjdA==:`), time.Minute},
		{"ratelimit, the window of the policy", "ratelimit", header(`RateLimit: "burst";r=0`, `RateLimit-Policy: "burst";q=100;w=60`), time.Minute},
		{"ratelimit, Retry-After wins", "ratelimit", header("Retry-After: 2", `RateLimit: "default";r=0;t=30`), 2 * time.Second},
		{"ratelimit, no end known", "ratelimit", header(`RateLimit: "burst";r=0`), 0},
		{"ratelimit, malformed", "ratelimit", header(`RateLimit: "default";r=-1;t=30`), 0},
		{"ratelimit, malformed beside a good one", "ratelimit", header(`RateLimit: "a";r=0;t=30, "b;r=0;t=5`), 0},
		{"ratelimit, beyond every number", "ratelimit", header(`RateLimit: "a";r=0;t=99999999999999999`), 0},
		{"ratelimit, empty", "ratelimit", header("RateLimit: "), 0},
		{"ratelimit, nothing said of what is left", "ratelimit", header(`RateLimit: "a";t=30`), 0},
		{"ratelimit, a lonely quote", "ratelimit", header(`RateLimit: ";r=0;t=30`), 0},
		{"ratelimit, a quote in the name", "ratelimit", header(`RateLimit: "a"b";r=0;t=30`), 0},
		{"ratelimit, an empty name", "ratelimit", header(`RateLimit: "";r=0;t=30`), 30 * time.Second},
		{"ratelimit, a name with and without quotes", "ratelimit", header(`RateLimit: "burst";r=0`, `RateLimit-Policy: burst;w=60`), time.Minute},
		{"ratelimit, a parameter without a name", "ratelimit", header(`RateLimit: "a";r=0;t=30;=5`), 0},
		{"ratelimit, a parameter without a value", "ratelimit", header(`RateLimit: "a";r=0;t=30;pk=`), 0},
		{"ratelimit, a parameter that is true", "ratelimit", header(`RateLimit: "a";x;r=0;t=30;y`), 30 * time.Second},
		{"ratelimit, true by its value", "ratelimit", header(`RateLimit: "a";x=?1;r=0;t=30`), 30 * time.Second},
		{"ratelimit, a window besides one that is true", "ratelimit", header(`RateLimit: "a";r=0`, `RateLimit-Policy: "a";q=9;x;w=60`), time.Minute},
		{"ratelimit, nothing behind a semicolon", "ratelimit", header(`RateLimit: "a";r=0;t=30;`), 0},
		{"ratelimit, what is left is true", "ratelimit", header(`RateLimit: "a";r;t=30`), 0},
		{"ratelimit, reset is true", "ratelimit", header(`RateLimit: "a";r=0;t`), 0},
		{"ratelimit, the last of a name counts", "ratelimit", header(`RateLimit: "a";r;r=0;t=5;t=30`), 30 * time.Second},
		{"ratelimit, the last of a name is true", "ratelimit", header(`RateLimit: "a";r=0;t=30;t`), 0},
		{"ratelimit, other parameters", "ratelimit", header(`RateLimit: "a";b=-1.5;s="x";u=%"f%c3%bc;r=9";d=@1659578233;t=30;k=a/b:c;p=:YQ==:;*-_.0=1;r=0`), 30 * time.Second},
		{"ratelimit, separators in a name", "ratelimit", header(`RateLimit: "a,b;r=9";r=0;t=30, "c";r=1;t=99`), 30 * time.Second},
		{"ratelimit, separators in a name of the policy", "ratelimit", header(`RateLimit: "a,b;c";r=0`, `RateLimit-Policy: "a";w=5, "a,b;c";w=60`), time.Minute},
		{"ratelimit, separators in a parameter", "ratelimit", header(`RateLimit: "a";s="x;r=9,y";r=0;t=30`), 30 * time.Second},
		{"ratelimit, escapes", "ratelimit", header(`RateLimit: "a\"\\";s="\";r=9";r=0`, `RateLimit-Policy: "a\"\\";w=60`), time.Minute},
		{"ratelimit, a string that doesn't end", "ratelimit", header(`RateLimit: "a";r=0;t=30;s="x, "b";r=0;t=5`), 0},
		{"ratelimit, a string that ends in an escape", "ratelimit", header(`RateLimit: "a\`), 0},
		{"ratelimit, a quote within a value", "ratelimit", header(`RateLimit: "a";r=0;t=30;s=x"y"`), 0},
		{"ratelimit, two strings for a name", "ratelimit", header(`RateLimit: "a""b";r=0;t=30`), 0},
		{"ratelimit, one name for two partitions", "ratelimit", header(`RateLimit: "a";r=0;t=60;pk=:QQ==:, "a";r=0;t=5;pk=:Qg==:`), time.Minute},
		{"ratelimit, two windows for one name", "ratelimit", header(`RateLimit: "a";r=0`, `RateLimit-Policy: "a";w=60, "a";w=5`), time.Minute},
		{"ratelimit, several lines", "ratelimit", header(`RateLimit: "a";r=0;t=5`, `RateLimit: "b";r=0;t=30`), 30 * time.Second},
		{"ratelimit, reset already", "ratelimit,github", header(`RateLimit: "a";r=0;t=0`), 0},
		{"ratelimit, signed", "ratelimit", header(`RateLimit: "a";r=+0;t=30`), 0},
		{"ratelimit, 15 digits", "ratelimit", header(`RateLimit: "a";r=0;t=999999999999999`), forever},
		{"ratelimit, 16 digits", "ratelimit", header(`RateLimit: "a";r=0;t=1000000000000000`), 0},
		{"ratelimit, what is left malformed", "ratelimit", header(`RateLimit: "a";r=x, "b";r=0;t=5`), 0},
		{"ratelimit, reset malformed", "ratelimit", header(`RateLimit: "a";t=x, "b";r=0;t=5`), 0},
		{"ratelimit, window malformed", "ratelimit", header(`RateLimit: "b";r=0`, `RateLimit-Policy: "a";w=x, "b";w=5`), 0},
	} {
		for name := range strings.SplitSeq(tt.dialects, ",") {
			tested[name] = true
		}
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, tt.want, list(tt.dialects).Wait(http.StatusTooManyRequests, tt.header, now))
		})
	}
	for name, d := range dialect.ByName {
		assert.True(t, tested[name] || len(d.Instead)+len(d.Besides) == 0, "%s has no row", name)
	}
}

// The minimum wait applies to refusals by a limit.
func TestDialects_LeastWait(t *testing.T) {
	github := list("github")
	assert.Equal(t, time.Minute, github.Wait(http.StatusTooManyRequests, header(), time.Now()))
	assert.Zero(t, github.Wait(http.StatusServiceUnavailable, header(), time.Now()))
	assert.Equal(t, time.Minute, github.Wait(http.StatusForbidden, header("X-RateLimit-Remaining: 0"), time.Now()))
	assert.Zero(t, github.Wait(http.StatusForbidden, header("X-RateLimit-Remaining: 1"), time.Now()))
}

// Only a 429 is itself a word about a limit.
func TestDialects_ResetWithoutALimit(t *testing.T) {
	for _, left := range []string{"", "X-RateLimit-Remaining: none"} {
		assert.Zero(t, list("x-ratelimit-reset").Wait(http.StatusServiceUnavailable, header("X-RateLimit-Reset: 30", left), time.Now()))
	}
}

func TestDialects_Unread(t *testing.T) {
	for _, tt := range []struct {
		dialects string
		header   http.Header
		want     string
	}{
		{"x-ratelimit-reset", header("X-RateLimit-Remaining: 5", "X-RateLimit-Reset: soon"), "X-Ratelimit-Reset"},
		{"x-ratelimit-reset", header("X-RateLimit-Remaining: none", "X-RateLimit-Reset: 5"), "X-Ratelimit-Remaining"},
		{"x-ratelimit-reset", header("X-RateLimit-Remaining: 5", "X-RateLimit-Reset: 5"), ""},
		{"x-ratelimit-reset", header("RateLimit: soon", "Retry-After-Ms: soon"), ""},
		{"github,retry-after-ms", header("Retry-After-Ms: soon"), "Retry-After-Ms"},
		{"ratelimit", header(`RateLimit: "a";r=-1`), "Ratelimit"},
		{"ratelimit", header(`RateLimit: "a";r=1`), ""},
		{"ratelimit", header(`RateLimit: remaining=0, reset=soon`), "Ratelimit"},
		{"ratelimit", header(`RateLimit: remaining=1, reset=9`), ""},
	} {
		name, lines := list(tt.dialects).Unread(tt.header, time.Now())
		assert.Equal(t, tt.want, name, "%v", tt.header)
		assert.Equal(t, tt.header[tt.want], lines)
	}
}

// Some limits are those of all requests.
func TestDialects_Global(t *testing.T) {
	for _, field := range []string{"X-RateLimit-Global: true", "X-RateLimit-Scope: global", "X-RateLimit-Global: true, true"} {
		assert.True(t, list("github,discord").Global(header(field)))
		assert.False(t, list("github").Global(header(field)))
	}
	assert.False(t, list("discord").Global(header("X-RateLimit-Global: false", "X-RateLimit-Scope: user")))
}

//retrip:promise P8
func TestDialects_Verdict(t *testing.T) {
	tested := map[string]bool{}
	for _, tt := range []struct {
		name   string
		status int
		header http.Header
		want   dialect.Advice
	}{
		{"should-retry", 409, header("x-should-retry: true"), dialect.Retry},
		{"openai", 409, header("x-should-retry: true"), dialect.Retry},
		{"anthropic", 529, header("x-should-retry: false"), dialect.Stop},
		{"anthropic", 529, header("x-should-retry: perhaps"), dialect.Silent},
		{"anthropic", 409, header("x-should-retry: True"), dialect.Retry},
		{"stripe", 429, header("Stripe-Should-Retry: false"), dialect.Stop},
		{"github", 403, header("X-RateLimit-Remaining: 0"), dialect.Throttle},
		{"github", 403, header("X-RateLimit-Remaining: -1"), dialect.Throttle},
		{"github", 403, header("Retry-After: 60"), dialect.Throttle},
		{"github", 403, header("X-RateLimit-Remaining: 10"), dialect.Silent},
		{"github", 404, header("X-RateLimit-Remaining: 0"), dialect.Silent},
		{"azure", 503, header("x-should-retry: false"), dialect.Stop},
		{"azure", 503, header("x-should-retry: False "), dialect.Stop},
		{"azure", 503, http.Header{"X-Should-Retry": {"true", "false"}}, dialect.Stop},
		{"azure", 503, header("x-should-retry: true, false"), dialect.Stop},
		{"stripe", 429, header("Stripe-Should-Retry: true,\tFalse"), dialect.Stop},
		{"openai", 409, header("x-should-retry: true, true"), dialect.Retry},
		{"azure", 503, header("x-should-retry: true"), dialect.Silent},
		{"azure", 503, header("x-should-retry: falsehood"), dialect.Silent},
		{"azure", 503, header("Stripe-Should-Retry: false"), dialect.Silent},
		{"github", 403, header("Retry-After: 60", "x-should-retry: false"), dialect.Stop},
	} {
		tested[tt.name] = true
		assert.Equal(t, tt.want, list(tt.name).Advice(tt.status, tt.header), "%v", tt)
	}
	for name, d := range dialect.ByName {
		assert.True(t, tested[name] || d.Advice == nil, "%s has no row", name)
	}
}
