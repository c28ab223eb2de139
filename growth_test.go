// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// An answer with a header of twice the size costs less than three times the time.
// Package dialect checks what it reads, and package resume too.
//
//retrip:promise P12
func TestHeaders_Growth(t *testing.T) {
	r := resolved(t, Policy{Dialects: []string{"openai", "ratelimit"}})
	for _, field := range []string{"X-Should-Retry", "Content-Type", "Retry-After"} {
		for _, part := range []string{"false", " ", "\t", " false,", "text/event-stream", ";", "application/grpc", "É", "İ", "9", "\xff"} {
			t.Run(field+"/"+part, func(t *testing.T) {
				input := func(n int) (all []http.Header) {
					for _, values := range testenv.LongValues(n, part) {
						all = append(all, http.Header{field: values})
					}
					return all
				}
				testenv.Growth(t, 5_000, input, func(all []http.Header) {
					for _, h := range all {
						_ = endless(h)
						_ = r.verdict(http.StatusServiceUnavailable, h)
						_ = r.serverWord(http.StatusServiceUnavailable, h, time.Unix(1e9, 0))
					}
				})
			})
		}
	}
}

// A host of twice the length, such as one that a redirect names, costs less than three
// times the time.
//
//retrip:promise P12
func TestMatch_Growth(t *testing.T) {
	hosts := map[string]Policy{"example.com": {}, "*.example.com": {}}
	for i := range 300 {
		hosts["*"+strings.Repeat(".a", i+1)+".example.org"] = Policy{}
	}
	m, err := compile(Policy{}, hosts)
	require.NoError(t, err)
	for _, tail := range []string{"example.com", "example.org", "example.net"} {
		input := func(n int) *url.URL { return &url.URL{Scheme: "https", Host: strings.Repeat("a.", n) + tail} }
		testenv.Growth(t, 20_000, input, func(u *url.URL) { m.find(u) })
	}
}

// list is n of the given words, separated by commas.
func list(n int, word string) string { return strings.TrimSuffix(strings.Repeat(word+",", n), ",") }

// numbered is n words with different numbers, separated by commas.
func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// Policies may come from a file that somebody else writes. One of twice the size costs
// less than three times the time, valid or not, and the error names the first mistakes.
//
//retrip:promise P12
func TestLoadPolicies_Growth(t *testing.T) {
	base := roundTripperFunc(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})
	for name, input := range map[string]func(n int) string{
		"statuses": func(n int) string { return `{"retry_on": [` + list(n, "500") + `]}` },
		"statuses in three lists": func(n int) string {
			return `{"retry_on": [` + list(n, "500") + `], "unprocessed": [` + list(n, "429") + `], "fail_on": [` + list(n, "400") + `]}`
		},
		"statuses that collide": func(n int) string {
			return `{"retry_on": [` + list(n, "500") + `], "fail_on": [` + list(n, "400") + `, 500]}`
		},
		"wrong statuses":  func(n int) string { return `{"retry_on": [` + list(n, "1") + `]}` },
		"methods":         func(n int) string { return `{"idempotent_methods": [` + numbered(n, `"M%d"`) + `]}` },
		"wrong methods":   func(n int) string { return `{"idempotent_methods": [` + numbered(n, `"M %d"`) + `]}` },
		"dialects":        func(n int) string { return `{"dialects": [` + list(n, `"openai"`) + `], "idempotency_key": true}` },
		"wrong dialects":  func(n int) string { return `{"dialects": [` + numbered(n, `"d%d"`) + `]}` },
		"a long dialect":  func(n int) string { return `{"dialects": ["` + strings.Repeat("o", n) + `"]}` },
		"a long name":     func(n int) string { return `{"` + strings.Repeat("a.", n) + `": 1}` },
		"a long number":   func(n int) string { return `{"max_attempts": 1` + strings.Repeat("0", n) + `}` },
		"a long fraction": func(n int) string { return `{"hedge": 0.` + strings.Repeat("0", n) + `1}` },
		"a long exponent": func(n int) string { return `{"retry_on": [5e` + strings.Repeat("0", n) + `2]}` },
		"a long duration": func(n int) string { return `{"deadline": "` + strings.Repeat("1ns", n) + `"}` },
		"a long header":   func(n int) string { return `{"retry_header": "` + strings.Repeat("x-", n) + `"}` },
		"escapes":         func(n int) string { return `{"retry_header": "` + strings.Repeat(`\u0061`, n) + `"}` },
		"spaces": func(n int) string {
			return strings.Repeat("\n", n) + `{` + strings.Repeat(" \n", n) + `}` + strings.Repeat("\n", n)
		},
		"lists in lists":          func(n int) string { return `{"retry_on": ` + strings.Repeat("[", n) },
		"objects in objects":      func(n int) string { return strings.Repeat(`{"hosts":`, n) },
		"one member many times":   func(n int) string { return `{` + list(n, `"max_attempts": 1`) + `}` },
		"hosts":                   func(n int) string { return `{"hosts": {` + numbered(n, `"h%d.example": {}`) + `}}` },
		"one host many times":     func(n int) string { return `{"hosts": {` + list(n, `"h.example": {}`) + `}}` },
		"ports":                   func(n int) string { return `{"hosts": {` + numbered(n, `"h.example:1%d": {}`) + `}}` },
		"wrong hosts":             func(n int) string { return `{"hosts": {` + numbered(n, `"h %d": {}`) + `}}` },
		"suffixes":                func(n int) string { return `{"hosts": {` + numbered(n, `"*.h%d.example": {}`) + `}}` },
		"a long host":             func(n int) string { return `{"hosts": {"*` + strings.Repeat(".a", n) + `": {}}}` },
		"hosts with wrong fields": func(n int) string { return `{"hosts": {` + numbered(n, `"h%d": {"retry_on": [1]}`) + `}}` },
		"hosts that collide": func(n int) string {
			return `{"hosts": {` + numbered(n, strings.Repeat("\n", 1000)+`"h%d": {"retry_on": [404], "fail_on": [404]}`) + `}}`
		},
		"hosts with lists": func(n int) string {
			return `{"hosts": {` + numbered(n, `"h%d": {"retry_on": [404], "dialects": ["azure"], "idempotent_methods": ["POST"]}`) + `}}`
		},
		"hosts and statuses": func(n int) string {
			return `{"retry_on": [` + list(n, "404") + `], "hosts": {` + numbered(n, `"h%d": {}`) + `}}`
		},
		"hosts and other statuses": func(n int) string {
			return `{"fail_on": [` + list(n, "404") + `], "unprocessed": [` + list(n, "429") + `], "hosts": {` + numbered(n, `"h%d": {}`) + `}}`
		},
		"hosts and methods": func(n int) string {
			return `{"idempotent_methods": [` + numbered(n, `"M%d"`) + `], "hosts": {` + numbered(n, `"h%d": {}`) + `}}`
		},
		"hosts and dialects": func(n int) string {
			return `{"dialects": [` + list(n, `"azure"`) + `], "hosts": {` + numbered(n, `"h%d": {}`) + `}}`
		},
		"hosts and POSTs": func(n int) string {
			return `{"idempotent_methods": [` + numbered(n, `"M%d"`) + `, "POST"], "hosts": {` + numbered(n, `"h%d": {"dialects": ["openai"]}`) + `}}`
		},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Growth(t, 1000, input, func(input string) {
				policy, hosts, err := LoadPolicies(strings.NewReader(input))
				if err != nil {
					assert.Less(t, len(err.Error()), 20_000)
					return
				}
				tr := &Transport{Base: base, Policy: policy, Hosts: hosts}
				if err := tr.Validate(); err != nil {
					assert.Less(t, len(err.Error()), 20_000)
				}
				req, err := http.NewRequest(http.MethodPost, "http://h1.example", nil)
				require.NoError(t, err)
				try(tr, req)
			})
		})
	}
}
