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
		"exact.api.example.com", "[::1]", "[2001:DB8::1]:8443", "localhost:8080", "localhost:65535", "127.0.0.1",
	} {
		patterns[p] = Policy{}
	}
	m, err := compile(Policy{}, patterns)
	require.NoError(t, err)
	for in, want := range map[string]string{
		// The exact host, any port, any case.
		"https://example.com":              "example.com",
		"http://example.com":               "example.com",
		"http://EXAMPLE.com:81/path?query": "example.com",
		"https://example.com:8443":         "example.com:8443",

		// The default port depends on the scheme.
		"https://example.org":     "example.org:443",
		"https://example.org:443": "example.org:443",
		"http://example.org:443":  "example.org:443",
		"http://example.org":      "default",
		"http://plain.example":    "plain.example:80",
		"http://plain.example:80": "plain.example:80",
		"https://plain.example":   "default",
		"http://localhost:8080":   "localhost:8080",
		"http://localhost:65535":  "localhost:65535",
		"http://localhost":        "default",

		// Suffixes: the longest wins, never the bare domain, and the port
		// decides between two of the same length.
		"https://a.example.com":          "*.example.com",
		"https://a.b.example.com":        "*.example.com",
		"https://a.example.com:9000":     "*.example.com:9000",
		"https://api.example.com":        "*.example.com",
		"https://a.api.example.com":      "*.api.example.com",
		"https://b.a.api.example.com":    "*.api.example.com",
		"https://EXACT.api.example.com":  "exact.api.example.com",
		"https://x.api.example.com:9000": "*.api.example.com",
		"https://notexample.com":         "*.com",
		"https://other.com":              "*.com",
		"https://com":                    "default",
		"https://a.x":                    "*.x",
		"https://example.net":            "default",

		// A trailing dot makes no difference.
		"https://example.com.":         "example.com",
		"https://EXAMPLE.com.:8443":    "example.com:8443",
		"http://plain.example.":        "plain.example:80",
		"https://plain.example.":       "default",
		"https://a.example.com.":       "*.example.com",
		"https://a.example.com.:9000":  "*.example.com:9000",
		"https://b.a.api.example.com.": "*.api.example.com",
		"https://dotted.example":       "dotted.example.",
		"https://dotted.example.":      "dotted.example.",
		"https://dotted.example:81":    "dotted.example.:81",
		"https://a.dotted.example.:82": "*.dotted.example.",
		"https://localhost.:8080":      "localhost:8080",
		"http://127.0.0.1.:5000":       "127.0.0.1",
		"https://com.":                 "default",
		"https://x.":                   "default",

		// A name with empty labels is not a spelling of another name.
		"https://example.com..": "default",
		"https://x..":           "default",
		"https://.":             "default",
		"https://..":            "default",

		// Addresses.
		"http://[::1]":               "[::1]",
		"http://[::1]:1234":          "[::1]",
		"https://[2001:db8::1]:8443": "[2001:db8::1]:8443",
		"https://[2001:db8::1]":      "default",
		"http://127.0.0.1:5000":      "127.0.0.1",
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
		"example.com#x":       "not contain spaces, @, ? or #",
		"user@example.com":    "not contain spaces, @, ? or #",
		"example .com":        "not contain spaces",
		"example.com\n":       "not contain spaces",
		"example.com:":        "port is missing",
		"example.com:0":       `the port is "0"`,
		"example.com:000":     `the port is "000"`,
		"[1:2]":               "only an IPv6 address may be in brackets",
		"[::1::2]:80":         "only an IPv6 address may be in brackets",
		"example.com:65536":   `the port is "65536"`,
		"example.com:https":   `the port is "https"`,
		"example.com:-1":      `the port is "-1"`,
		":443":                "host is missing",
		"*":                   "for all hosts, use Policy",
		"*:443":               "for all hosts, use Policy",
		"*.":                  "for all hosts, use Policy",
		".x.com":              `a host must not begin with a dot; for all hosts below x.com, use "*.x.com"`,
		"..x.com:443":         `use "*.x.com"`,
		".":                   "a label of the name is empty",
		"..":                  "a label of the name is empty",
		".:443":               "a label of the name is empty",
		"a..b":                "a label of the name is empty",
		"a..":                 "a label of the name is empty",
		"*..":                 "a label of the name is empty",
		"*..com":              "a label of the name is empty",
		"*.com..":             "a label of the name is empty",
		"*example.com":        "for all hosts, use Policy",
		"*.*.example.com":     `only the first label`,
		"api.*.example.com":   `"*" may only stand`,
		"example.*":           `"*" may only stand`,
		"*.0.0.1":             "no host is below an IP address",
		"*.0.0.1.:443":        "no host is below an IP address",
		"*.1":                 "no host is below an IP address",
		"exa|mple.com":        "no host name may contain",
		"*.exa%41mple.com":    "no host name may contain",
		"::1":                 "must be in brackets",
		"2001:db8::1":         "must be in brackets",
		"[::1]:":              "port is missing",
		"[::1]:x":             `the port is "x"`,
		"[::1":                "brackets",
		"[2001:db8::1":        "brackets",
		"::1]":                "brackets",
		"example.com]":        "brackets",
		"[]":                  "brackets",
		"[example.com]":       "brackets",
		"[::1]x":              "brackets",
		"exam[ple].com":       "brackets",
		"*.[::1]":             "brackets",
		"a\x00.com":           "U+0000",
		"*.a\x7f.com":         "U+007F",
		"a\u0085.com":         "U+0085",
		"a.com\u00a0":         "U+00A0",
		"a\u00ad.com":         "U+00AD",
		"\ufeffa.com":         "U+FEFF",
		"a\u200b.com:80":      "U+200B",
		"moc.a\u202e.com":     "U+202E",
		"a\u2066.com":         "U+2066",
		"a\u2028.com":         "U+2028",
		"b\ufffdcher.com":     "U+FFFD",
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
		{"example.com:8443", "Example.com:8443"},
		{"*.example.com", "*.Example.com"},
		{"*.example.com:80", "*.Example.com:80"},
		{"example.com", "example.com."},
		{"example.com:8443", "EXAMPLE.com.:8443"},
		{"*.example.com", "*.example.com."},
		{"*.example.com:80", "*.example.com.:80"},
		{"example.com:8443", "example.com:08443"},
		{"*.example.com:80", "*.example.com:0080"},
		{"[::1]", "[0:0:0:0:0:0:0:1]"},
		{"[2001:db8::1]:80", "[2001:DB8:0::1]:080"},
		{"127.0.0.1", "[::ffff:127.0.0.1]"},
	} {
		_, err := compile(Policy{}, map[string]Policy{twins[0]: {}, twins[1]: {}})
		assert.ErrorContains(t, err, "spelled differently", "%q", twins)
	}
	_, err := compile(Policy{}, map[string]Policy{"example.com": {}, "example.com:443": {}, "*.example.com": {}})
	assert.NoError(t, err)
}

// FuzzMatch varies the case and the trailing dot of hosts and patterns, which
// doesn't change the match.
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
		// dotted returns a name with a trailing dot, if that is another
		// spelling of it.
		dotted := func(name string) (string, bool) {
			bare, port, colon := strings.Cut(name, ":")
			if colon {
				port = ":" + port
			}
			return bare + "." + port, bare != "" && !strings.HasSuffix(bare, ".") && !strings.ContainsAny(name, "[]") && strings.Count(name, ":") < 2
		}
		if other, ok := dotted(host); ok {
			if k := hostkey.Of(at(other)); k != key {
				t.Fatalf("%q is %+v, %q is %+v", host, key, other, k)
			}
			if by := m.find(at(other)).Name; by != found {
				t.Fatalf("%q finds %q, %q finds %q", host, found, other, by)
			}
		}
		if other, ok := dotted(pattern); ok {
			m2, err := compile(Policy{}, map[string]Policy{other: {}})
			if err != nil {
				t.Fatalf("%q is a pattern, %q is none: %v", pattern, other, err)
			}
			if by := m2.find(at(host)).Name; (by == "default") != (found == "default") {
				t.Fatalf("%q finds %q for %q, and %q for %q", host, found, pattern, by, other)
			}
			if _, err := compile(Policy{}, map[string]Policy{pattern: {}, other: {}}); err == nil {
				t.Fatalf("%q and %q are the same", pattern, other)
			}
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
