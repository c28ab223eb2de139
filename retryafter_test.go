// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

//retrip:promise P9
func TestParseRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name string
		h    http.Header
		want time.Duration
		ok   bool
	}{
		{"nil header", nil, 0, false},
		{"seconds", header("1"), time.Second, true},
		{"zero", header("0"), 0, true},
		{"space around", header(" \t5 "), 5 * time.Second, true},
		{"a Unix timestamp", header("1762000000"), 1762000000 * time.Second, true},

		{"IMF-fixdate", header("Sun, 01 Nov 2026 12:00:30 GMT"), 30 * time.Second, true},
		{"date in the past", header("Sun, 01 Nov 2020 12:00:30 GMT"), 0, true},
		{"date far ahead", header("Fri, 31 Dec 9999 23:59:59 GMT"), math.MaxInt64, true},

		{"server's clock an hour ahead", dated("Sun, 01 Nov 2026 13:00:30 GMT", "Sun, 01 Nov 2026 13:00:00 GMT"), 30 * time.Second, true},
		{"RFC 850 and asctime", dated("Sunday, 01-Nov-26 13:00:30 GMT", "Sun Nov  1 13:00:00 2026"), 30 * time.Second, true},
		{"past by the server's own clock", dated("Sun, 01 Nov 2026 12:59:59 GMT", "Sun, 01 Nov 2026 13:00:00 GMT"), 0, true},
		{"Date means nothing to seconds", dated("3", "Sun, 01 Nov 2026 13:00:00 GMT"), 3 * time.Second, true},

		{"empty", header(""), 0, false},
		{"negative", header("-1"), 0, false},
		{"fractional", header("1.5"), 0, false},
		{"exponent", header("1e30"), 0, false},
		{"unit", header("10s"), 0, false},
		{"another time zone", header("Sun, 01 Nov 2026 12:00:30 CET"), 0, false},
		{"other digits", header("٣"), 0, false},

		{"the longest duration", header("9223372036"), 9223372036 * time.Second, true},
		{"one second more", header("9223372037"), math.MaxInt64, true},
		{"1e30 in digits", header("1" + strings.Repeat("0", 30)), math.MaxInt64, true},

		{"two lines", header("2", "3"), 3 * time.Second, true},
		{"a date and seconds", header("Sun, 01 Nov 2026 12:00:30 GMT", "10"), 30 * time.Second, true},
		{"two in one line", header("30, 120"), 120 * time.Second, true},
		{"dates in one line", header("Sun, 01 Nov 2026 12:00:30 GMT, 5, Sunday, 01-Nov-26 12:00:40 GMT"), 40 * time.Second, true},
		{"a date from a cache", http.Header{"Retry-After": {"Sun, 01 Nov 2026 12:00:30 GMT"}, "Date": {"Sun, 01 Nov 2026 12:00:00 GMT"}, "Age": {"20"}}, 10 * time.Second, true},
		{"seconds from a cache", http.Header{"Retry-After": {"30"}, "Date": {"Sun, 01 Nov 2026 12:00:00 GMT"}, "Age": {"20"}}, 30 * time.Second, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := retrip.ParseRetryAfter(tt.h, now)
			assert.Equal(t, tt.ok, ok)
			assert.Equal(t, tt.want, got)
		})
	}
}

func header(retryAfter ...string) http.Header { return http.Header{"Retry-After": retryAfter} }

func dated(retryAfter, date string) http.Header {
	return http.Header{"Retry-After": {retryAfter}, "Date": {date}}
}

// The header applies to failures. Other responses aren't retried anyway. Classify decides
// first: it is the caller's own code, and sees the header.
//
//retrip:promise P8
func TestForbidden_OnlyFailures(t *testing.T) {
	for _, tt := range []struct {
		status int
		policy retrip.Policy
		want   retrip.Reason // empty: the response is final
	}{
		{200, retrip.Policy{}, ""},
		{301, retrip.Policy{}, ""},
		{404, retrip.Policy{}, ""},
		{404, retrip.Policy{Dialects: []string{"openai"}}, ""},
		{404, retrip.Policy{RetryOn: []int{404}}, retrip.ReasonRetryForbidden},
		{503, retrip.Policy{FailOn: []int{503}}, ""},
		{429, retrip.Policy{}, retrip.ReasonRetryForbidden},
		{503, retrip.Policy{MaxAttempts: 1}, retrip.ReasonRetryForbidden},
		{503, retrip.Policy{Classify: func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.Final }}, ""},
		{503, retrip.Policy{Classify: func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.ByRule }}, retrip.ReasonRetryForbidden},
		{503, retrip.Policy{Classify: func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.Retryable }}, retrip.ReasonMaxAttempts},
	} {
		base := play.Base(play.Reply(tt.status, "X-Should-Retry: false"))
		var reason retrip.Reason
		tt.policy.Backoff.Base = retrip.Off
		tr := &retrip.Transport{Base: base, Policy: tt.policy, Trace: &retrip.Trace{GiveUp: func(e retrip.Event) { reason = e.Reason }}}
		play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
		assert.Equal(t, tt.want, reason, "%d with %+v", tt.status, tt.policy)
		assert.Equal(t, tt.want == retrip.ReasonMaxAttempts, base.Attempts() > 1)
	}
}
