// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/testenv"
)

func TestMatch(t *testing.T) {
	patterns := map[string]Policy{}
	for _, p := range []string{
		"example.com", "example.com:8443", "Example.ORG:443", "plain.example:80",
		"*.example.com", "*.api.example.com", "*.example.com:9000", "*.com", "*.x",
		"Dotted.example.", "dotted.example.:81", "*.dotted.example.",
		"exact.api.example.com", "[::1]", "[2001:DB8::1]:8443", "localhost:8080",
	} {
		patterns[p] = Policy{}
	}
	m, err := compile(Policy{}, patterns)
	require.NoError(t, err)
	for in, want := range map[string]string{
		// The exact host, any port, any case.
		"https://example.com":      "example.com",
		"http://example.com":       "example.com",
		"https://example.com:8443": "example.com:8443",

		// The default port depends on the scheme.
		"https://example.org":     "example.org:443",
		"https://example.org:443": "example.org:443",
		"http://example.org":      "default",
		"http://plain.example":    "plain.example:80",
		"https://plain.example":   "default",
		"http://localhost:8080":   "localhost:8080",
		"http://localhost":        "default",

		// Suffixes: the longest wins, never the bare domain, and the port
		// decides between two of the same length.
		"https://a.example.com":         "*.example.com",
		"https://a.example.com:9000":    "*.example.com:9000",
		"https://api.example.com":       "*.example.com",
		"https://a.api.example.com":     "*.api.example.com",
		"https://EXACT.api.example.com": "exact.api.example.com",
		"https://notexample.com":        "*.com",
		"https://com":                   "default",
		"https://a.x":                   "*.x",
		"https://example.net":           "default",

		// A trailing dot makes no difference.
		"https://example.com.":         "example.com",
		"https://a.example.com.:9000":  "*.example.com:9000",
		"https://dotted.example":       "dotted.example.",
		"https://dotted.example:81":    "dotted.example.:81",
		"https://a.dotted.example.:82": "*.dotted.example.",
		"https://com.":                 "default",

		// A name with empty labels is not a spelling of another name.
		"https://example.com..": "default",

		// Addresses.
		"http://[::1]":               "[::1]",
		"https://[2001:db8::1]:8443": "[2001:db8::1]:8443",
		"unix://":                    "default",
	} {
		u, err := url.Parse(in)
		require.NoError(t, err)
		assert.Equal(t, want, m.find(u).Name, in)
	}
	assert.Equal(t, "default", m.find(nil).Name)
}

// Names are compared without IDNA conversion.
func TestMatch_IDNA(t *testing.T) {
	m, err := compile(Policy{}, map[string]Policy{"bücher.example": {}, "xn--bcher-kva.test": {}})
	require.NoError(t, err)
	assert.Equal(t, "bücher.example", m.find(&url.URL{Scheme: "https", Host: "BÜCHER.example"}).Name)
	assert.Equal(t, "default", m.find(&url.URL{Scheme: "https", Host: "xn--bcher-kva.example"}).Name)
	assert.Equal(t, "xn--bcher-kva.test", m.find(&url.URL{Scheme: "https", Host: "xn--bcher-kva.test"}).Name)
}

func TestMatch_WithoutHosts(t *testing.T) {
	m, err := compile(Policy{}, nil)
	require.NoError(t, err)
	u := &url.URL{Scheme: "https", Host: "A.Example.com"}
	assert.Same(t, m.fallback, m.find(u))
	assert.Zero(t, testing.AllocsPerRun(100, func() { m.find(u) }))
}

func TestMatch_Refuses(t *testing.T) {
	for pattern, want := range map[string]string{
		"":                    "must not be empty",
		"https://example.com": "a scheme or a path",
		"example.com/path":    "a scheme or a path",
		"example.com?x":       "not contain spaces, @, ? or #",
		"user@example.com":    "not contain spaces, @, ? or #",
		"example .com":        "not contain spaces",
		"example.com:":        "port is missing",
		"example.com:https":   `the port is "https"`,
		":443":                "host is missing",
		"*":                   "for all hosts, use Policy",
		".x.com":              `a host must not begin with a dot; for all hosts below x.com, use "*.x.com"`,
		".":                   "a label of the name is empty",
		"a..b":                "a label of the name is empty",
		"*..com":              "a label of the name is empty",
		"*example.com":        "for all hosts, use Policy",
		"*.*.example.com":     `only the first label`,
		"api.*.example.com":   `"*" may only stand`,
		"*.1":                 "no host is below an IP address",
		"*.exa%41mple.com":    "no host name may contain",
		"::1":                 "must be in brackets",
		"[::1]:x":             `the port is "x"`,
		"[::1":                "brackets",
		"example.com]":        "brackets",
		"[example.com]":       "brackets",
		"*.[::1]":             "brackets",
		"a\x00.com":           "U+0000",
		"\ufeffa.com":         "U+FEFF",
		"moc.a\u202e.com":     "U+202E",
		"b\xfccher.com":       "U+FFFD, which stands for what isn't UTF-8",
		"[fe80::1%\u202e]":    "U+202E",
	} {
		_, err := compile(Policy{}, map[string]Policy{pattern: {}})
		if assert.Error(t, err, "%q", pattern) {
			assert.Contains(t, err.Error(), fmt.Sprintf("Hosts[%q]", strings.NewReplacer("user@", "…@", "?x", "?…").Replace(pattern)), "the pattern is named, without what may be secret")
			assert.Contains(t, err.Error(), want, "%q", pattern)
		}
	}
}

// Some names outside ASCII have characters that join others.
func TestMatch_Joiners(t *testing.T) {
	_, err := compile(Policy{}, map[string]Policy{"نامه\u200cای.example": {}, "ශ්\u200dරී.example": {}})
	assert.NoError(t, err)
}

//retrip:promise P15
func TestMatch_RefusesTwins(t *testing.T) {
	for _, twins := range [][2]string{
		{"example.com", "EXAMPLE.com"},
		{"*.example.com", "*.Example.com"},
		{"example.com", "example.com."},
		{"*.example.com", "*.example.com."},
		{"example.com:8443", "example.com:08443"},
		{"[::1]", "[0:0:0:0:0:0:0:1]"},
		{"127.0.0.1", "[::ffff:127.0.0.1]"},
	} {
		_, err := compile(Policy{}, map[string]Policy{twins[0]: {}, twins[1]: {}})
		assert.ErrorContains(t, err, "spelled differently", "%q", twins)
	}
	_, err := compile(Policy{}, map[string]Policy{"example.com": {}, "example.com:443": {}, "*.example.com": {}})
	assert.NoError(t, err)
}

// A host and its key find the same rules.
func FuzzMatch(f *testing.F) {
	for _, pattern := range []string{"example.com", "*.example.com", "example.com:8443", "*.example.com:80", "[::1]", "[::1]:80", "a..", ".", "127.0.0.1", "BÜCHER.example"} {
		for _, host := range []string{"example.com", "a.example.com:80", "[::1]", "[::1]:80", "[::1].", "a.", "a..", ".", "", "bücher.example", "x:1]", "[[a]]"} {
			f.Add(pattern, host)
		}
	}
	f.Fuzz(func(t *testing.T, pattern, host string) {
		if u, err := url.Parse("https://" + host + "/"); err != nil || u.Host != host {
			return // no request has such a host
		}
		at := func(host string) *url.URL { return &url.URL{Scheme: "https", Host: host} }
		key := hostkey.Of(at(host))
		if again := hostkey.Of(at(key.String())); again != key {
			t.Fatalf("%q is %+v, which is %+v", host, key, again)
		}
		m, err := compile(Policy{}, map[string]Policy{pattern: {}})
		if err != nil {
			return
		}
		found := m.find(at(host)).Name
		if by := m.find(at(key.String())).Name; by != found {
			t.Fatalf("%q finds %q, its key %q", host, found, by)
		}
	})
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
