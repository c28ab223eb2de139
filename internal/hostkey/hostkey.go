// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package hostkey says which host a URL, a pattern or a line of text means.
package hostkey

import (
	"cmp"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/retrip/retrip/internal/redact"
)

// Key identifies a host, whichever pattern chose its policy. All spellings of a
// host have the same Key, except that a name outside ASCII and its form in
// Punycode are two. What is too long for any host is cut: a URL made by hand, or the
// Location of a server, may have anything as its host.
type Key struct{ Host, Port string }

// These are more than any host and port have, in any spelling.
const mostName, mostPort = 1 << 10, 32

// String returns host and port on one line, for people.
func (k Key) String() string { return redact.Line(redact.Name(net.JoinHostPort(k.Host, k.Port))) }

// Compare orders keys by host, and then by port.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Host, other.Host), cmp.Compare(k.Port, other.Port))
}

// Clone returns a copy of k for keeping. The strings of k are parts of the
// string of a URL, which may be long, and which they would keep in memory.
func (k Key) Clone() Key { return Key{strings.Clone(k.Host), strings.Clone(k.Port)} }

// IsLong reports whether u may be too long to be kept for the sake of its host.
// It doesn't measure userinfo.
func IsLong(u *url.URL) bool {
	return u != nil && (u.User != nil || len(u.Opaque)+len(u.Host)+len(u.Path)+len(u.RawPath)+len(u.RawQuery)+len(u.Fragment)+len(u.RawFragment) > 256)
}

// Of returns the key of the host of u. Its port is the default port of the scheme if u
// names none.
func Of(u *url.URL) Key {
	if u == nil {
		return Key{}
	}
	host, port := splitPort(u.Host)
	host = host[max(0, len(host)-mostName):] // the end says which pattern it matches
	if port == "" {
		switch u.Scheme {
		case "http":
			port = "80"
		case "https":
			port = "443"
		}
	}
	if strings.IndexByte(host, ':') < 0 { // most hosts: no address with a zone
		return Key{undotted(lower(host)), unpadded(port)}
	}
	return Key{spell(Lower(host)), unpadded(port)}
}

// lower is [strings.ToLower], in a third of the time if s is ASCII in lower case.
func lower(s string) string {
	for i := range len(s) {
		if c := s[i]; c-'A' < 26 || c >= utf8.RuneSelf {
			return strings.ToLower(s)
		}
	}
	return s
}

// Lower returns host, or a pattern of hosts, in lower case, but for the zone of
// an IPv6 address: the names of interfaces differ in case.
func Lower(host string) string {
	address, zone, zoned := strings.Cut(host, "%")
	if !zoned {
		return strings.ToLower(host)
	}
	if lower := strings.ToLower(address); lower != address {
		return lower + "%" + zone
	}
	return host
}

// spell returns the one spelling of host, which is in lower case and has no
// brackets: a name without its trailing dot, and an IP address as RFC 5952
// writes it. Package net takes an IPv4 address that is mapped to IPv6 for the
// IPv4 address.
func spell(host string) string {
	if strings.IndexByte(host, ':') < 0 {
		return undotted(host)
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	var space [64]byte
	text := addr.Unmap().AppendTo(space[:0])
	if string(text) == host { // allocates nothing
		return host
	}
	return string(text)
}

// unpadded returns port without leading zeros, as package net reads it.
func unpadded(port string) string {
	if len(port) > 1 && port[0] == '0' && strings.Trim(port, "0123456789") == "" {
		port = cmp.Or(strings.TrimLeft(port, "0"), "0")
	}
	return port[:min(len(port), mostPort)]
}

// undotted returns the name of a host without its trailing dot, which stands
// for the root of DNS (RFC 3986 §3.2.2): the name is the same host with or
// without the dot. Anything that isn't a name stays as it is, such as "." or a
// name with an empty label before the dot.
func undotted(host string) string {
	name, ok := strings.CutSuffix(host, ".")
	if !ok || name == "" || name[len(name)-1] == '.' || strings.ContainsAny(name, "[]") {
		return host
	}
	return name
}

// splitPort splits "host", "host:port", "[::1]" and "[::1]:port". It removes
// the brackets.
func splitPort(hostport string) (host, port string) {
	host = hostport
	if i := strings.LastIndexByte(hostport, ':'); i >= 0 && strings.IndexByte(hostport[i:], ']') < 0 {
		host, port = hostport[:i], hostport[i+1:]
	}
	if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	return host, port
}
