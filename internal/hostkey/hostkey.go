// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package hostkey says which host a URL, a pattern or a line of text means.
package hostkey

import (
	"net"
	"net/url"
	"strings"
)

// Key identifies a host, whichever pattern chose its policy.
type Key struct{ Host, Port string }

func (k Key) String() string { return net.JoinHostPort(k.Host, k.Port) }

// Clone returns a copy of k for keeping. The strings of k are parts of the
// string of a URL, which may be long, and which they would keep in memory.
func (k Key) Clone() Key { return Key{strings.Clone(k.Host), strings.Clone(k.Port)} }

// IsLong reports whether u may be too long to be kept for the sake of its host.
// It doesn't measure userinfo.
func IsLong(u *url.URL) bool {
	return u != nil && (u.User != nil || len(u.Opaque)+len(u.Path)+len(u.RawPath)+len(u.RawQuery)+len(u.Fragment)+len(u.RawFragment) > 256)
}

func Of(u *url.URL) Key {
	if u == nil {
		return Key{}
	}
	host, port := Split(u)
	return Key{host, port}
}

// Split returns the host of u, in lower case and without brackets or a
// trailing dot, and its port: the default port of the scheme if u names none.
func Split(u *url.URL) (host, port string) {
	host, port = splitPort(u.Host)
	if port == "" {
		switch u.Scheme {
		case "http":
			port = "80"
		case "https":
			port = "443"
		}
	}
	return undotted(strings.ToLower(host)), port
}

// undotted returns the name of a host without its trailing dot, which stands
// for the root of DNS (RFC 3986 §3.2.2): the name is the same host with or
// without the dot. Anything that isn't a name stays as it is, such as an IPv6
// address, "." or a name with an empty label before the dot.
func undotted(host string) string {
	name, ok := strings.CutSuffix(host, ".")
	if !ok || name == "" || name[len(name)-1] == '.' || strings.ContainsAny(name, ":[]") {
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
