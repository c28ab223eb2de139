// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package hostkey

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

func TestKeyOf(t *testing.T) {
	for in, want := range map[string]string{
		"https://Example.COM/x":      "example.com:443",
		"https://example.com:443":    "example.com:443",
		"http://example.com":         "example.com:80",
		"http://example.com:8080":    "example.com:8080",
		"https://[2001:DB8::1]":      "[2001:db8::1]:443",
		"https://[2001:db8::1]:8443": "[2001:db8::1]:8443",
		"ftp://example.com":          "example.com:",
	} {
		u, err := url.Parse(in)
		require.NoError(t, err)
		assert.Equal(t, want, Of(u).String(), in)
	}
	assert.Equal(t, Key{}, Of(nil))
}

// If the name is only a dot, or an address in brackets, the dot is part of it.
func TestHostPort_TrailingDot(t *testing.T) {
	for in, want := range map[string]Key{
		"api.example.com.":      {"api.example.com", "443"},
		"API.example.com.:8443": {"api.example.com", "8443"},
		"a.":                    {"a", "443"},
		"a..":                   {"a..", "443"},
		".":                     {".", "443"},
		"..":                    {"..", "443"},
		".:80":                  {".", "80"},
		"":                      {"", "443"},
		"127.0.0.1.":            {"127.0.0.1", "443"},
		"[::1]":                 {"::1", "443"},
		"[::1.]":                {"::1.", "443"},
		"[::1].":                {"[::1].", "443"},
		"[fe80::1%25a.]:80":     {"fe80::1%25a.", "80"},
	} {
		key := Of(&url.URL{Scheme: "https", Host: in})
		assert.Equal(t, want, key, in)
		assert.Equal(t, key, Of(&url.URL{Host: key.String()}), in)
	}
}

// spelling returns a spelling of addr and port at random, as in a URL.
func spelling(r *rand.Rand, addr netip.Addr, port uint16) string {
	text := addr.String()
	switch {
	case addr.Is4() && r.IntN(2) == 0:
		text = netip.AddrFrom16(addr.As16()).String()
		if r.IntN(2) == 0 {
			four := addr.As4()
			text = fmt.Sprintf("0:0:0:0:0:ffff:%x:%04x", int(four[0])<<8|int(four[1]), int(four[2])<<8|int(four[3]))
		}
	case addr.Is6():
		switch r.IntN(3) {
		case 0:
			text = addr.StringExpanded()
		case 1:
			var groups []string
			for group := range strings.SplitSeq(addr.WithZone("").StringExpanded(), ":") {
				groups = append(groups, strings.TrimLeft(group[:3], "0")+group[3:])
			}
			text = strings.Join(groups, ":")
			if zone := addr.Zone(); zone != "" {
				text += "%" + zone
			}
		}
	}
	if address, zone, zoned := strings.Cut(text, "%"); r.IntN(2) == 0 {
		if text = strings.ToUpper(address); zoned {
			text += "%" + zone
		}
	}
	if strings.Contains(text, ":") {
		text = "[" + text + "]"
	}
	return fmt.Sprintf("%s:%s%d", text, strings.Repeat("0", max(0, r.IntN(10)-4)), port)
}

// Package net knows which spellings mean one address. All of them have one key,
// as URLs, as lines of text and as patterns, and no others have it.
//
//retrip:promise P15
func TestSpellings_OfAddresses(t *testing.T) {
	r := rand.New(rand.NewPCG(26, 5))
	list := []string{"::", "::1", "1::", "::1:0:0:1", "2001:db8::1", "2001:db8::10", "2001:db8:0:1:1:1:1:1", "fe80::1%eth0", "fe80::1%Eth0", "fe80::1%1", "fe80::1",
		"127.0.0.1", "127.0.0.10", "0.0.0.0", "255.255.255.255", "::7f00:1", "64:ff9b::7f00:1"}
	for range 200 {
		var a [16]byte
		for i := range a {
			a[i] = []byte{0, 0, 0, 1, 0x10, 0xff}[r.IntN(6)]
		}
		list = append(list, netip.AddrFrom16(a).Unmap().String())
	}
	byKey, byAddress := map[Key]string{}, map[string]Key{}
	for range 10_000 {
		addr := netip.MustParseAddr(list[r.IntN(len(list))])
		port := []uint16{1, 8, 80, 443, 8080, 65535}[r.IntN(6)]
		host := spelling(r, addr, port)
		means, err := net.ResolveTCPAddr("tcp", host)
		require.NoError(t, err, host)

		u := &url.URL{Scheme: "http", Host: host}
		key := Of(u)
		parsed, err := Parse(host)
		require.NoError(t, err, host)
		require.Equal(t, key, parsed, host)
		name, number, err := ParsePattern(host)
		require.NoError(t, err, host)
		require.Equal(t, key, Key{name, number}, host)
		require.Equal(t, key, Of(&url.URL{Host: key.String()}), "%s: a key is its own spelling", host)

		address := means.String()
		if before, known := byAddress[address]; known {
			require.Equal(t, before, key, "%s means %s", host, address)
		}
		byAddress[address] = key
		if before, known := byKey[key]; known {
			require.Equal(t, before, address, "%s shares the key %v", host, key)
		}
		byKey[key] = address
	}
}

//retrip:promise P15
func TestSpellings_OfNames(t *testing.T) {
	want := Key{"api.example.com", "80"}
	for _, host := range []string{"api.example.com", "API.Example.com", "api.example.com.", "api.example.com:", "api.example.com:80", "api.example.com:080",
		"api.example.com:00000000000000000000080", "api.example.com:" + strings.Repeat("0", 1000) + "80", "Api.Example.Com.:0080"} {
		u := &url.URL{Scheme: "http", Host: host}
		assert.Equal(t, want, Of(u), host)
	}
	for _, host := range []string{strings.Repeat("Example.", 1<<17) + "com", "a:" + strings.Repeat("0", 1<<20) + "80", "a:" + strings.Repeat("1", 1<<20), strings.Repeat("ä", 1<<20), "[::1%" + strings.Repeat("x", 1<<20) + "]"} {
		u := &url.URL{Scheme: "http", Host: host}
		assert.Less(t, len(Of(u).Host)+len(Of(u).Port), 2<<10)
		assert.Less(t, len(Of(u).String()), 8<<10)
		assert.True(t, IsLong(u))
	}
	for _, host := range []string{"api.example.com:8", "api.example.com:800", "api.example.com:65616", "api.example.com:0", "api.example.com:+80", "api.example.com:http",
		"api.example.com..", "0api.example.com"} {
		assert.NotEqual(t, want, Of(&url.URL{Scheme: "http", Host: host}), host)
	}
	assert.Equal(t, Key{"a", "0"}, Of(&url.URL{Scheme: "http", Host: "a:000"}))
	assert.Equal(t, Key{"127.0.0.01", "80"}, Of(&url.URL{Scheme: "http", Host: "127.0.0.01"}), "to package net, a name")
}

// A zone is the name of an interface, which URLs escape.
//
//retrip:promise P15
func TestSpellings_OfZones(t *testing.T) {
	u, err := url.Parse("http://[FE80::1%25Eth0]/")
	require.NoError(t, err)
	want := Key{"fe80::1%Eth0", "80"}
	assert.Equal(t, want, Of(u))
	for _, host := range []string{"[fe80::1%25Eth0]:80", "[fe80::1%Eth0]:80", want.String()} {
		key, err := Parse(host)
		require.NoError(t, err)
		assert.Equal(t, want, key, host)
		name, port, err := ParsePattern(host)
		require.NoError(t, err)
		assert.Equal(t, want, Key{name, port}, host)
	}
}

//retrip:promise P15
func TestSpellings_Invalid(t *testing.T) {
	for host, want := range map[string]string{
		"[]:80": "only an IPv6 address may be in brackets", "[a]:80": "only an IPv6 address may be in brackets", "[1.2.3.4]:80": "only an IPv6 address may be in brackets",
		"[::1::2]:80": "only an IPv6 address may be in brackets", "[:::1]:80": "only an IPv6 address may be in brackets", "[1:2]:80": "only an IPv6 address may be in brackets",
		"[12345::]:80": "only an IPv6 address may be in brackets", "[::1%]:80": "only an IPv6 address may be in brackets", "[::ffff:1.2.3.400]:80": "only an IPv6 address may be in brackets",
		"::1": "an IPv6 address must be in brackets", "a:0": `the port is "0": it must be 1 to 65535`, "a:000": `the port is "000": it must be 1 to 65535`,
		"a:65536": `the port is "65536": it must be 1 to 65535`, "a:0065536": "it must be 1 to 65535", "a:+80": "it must be 1 to 65535", "a:8_0": "it must be 1 to 65535",
	} {
		_, err := Parse(host)
		assert.ErrorContains(t, err, want, host)
		_, _, err = ParsePattern(host)
		assert.ErrorContains(t, err, want, host)
	}
}

// Requests to an address cost no allocation while other hosts are in trouble.
//
//retrip:promise P16
func TestSpellings_AllocateNothing(t *testing.T) {
	for _, host := range []string{"[::1]:8080", "[2001:db8::1]", "127.0.0.1:080", "api.example.com:00443"} {
		u := &url.URL{Scheme: "https", Host: host}
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			Of(u)
		}), host)
	}
}

// A host or pattern of twice the length costs less than three times the time.
//
//retrip:promise P12
func TestParse_Growth(t *testing.T) {
	for _, part := range []string{"a", "A", ".", "a.", ":", "1:", "[", "]", "%", "%25", "/", `\`, "?", "@", "#", "*", "*.", " ", "0", "1", "é", "\xff"} {
		t.Run(part, func(t *testing.T) {
			input := func(n int) []string {
				long := strings.Repeat(part, n)
				return []string{
					long, "*." + long, "." + long, long + ".", long + ":80", long + ".:080", "a:" + long, "a:" + long + "80",
					"[" + long + "]", "[" + long + "]:80", "[::1%" + long + "]:80", "[::" + long + "]", "//" + long,
				}
			}
			testenv.Growth(t, 5_000, input, func(all []string) {
				for _, text := range all {
					_, _ = Parse(text)
					_, _, _ = ParsePattern(text)
					_ = Of(&url.URL{Scheme: "https", Host: text})
				}
			})
		})
	}
}
