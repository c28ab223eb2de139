// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package hostkey

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/retrip/retrip/internal/redact"
)

// Parse parses a host with its port, as in a URL.
func Parse(host string) (Key, error) {
	bad := func(format string, args ...any) (Key, error) {
		return Key{}, fmt.Errorf("retrip: %q is not a valid host: %w", short(redact.Name(host)), fmt.Errorf(format, args...))
	}
	if u, err := url.Parse(host); err == nil && u.Host != "" {
		return bad("it is a URL; its host is %q", Of(u))
	}
	if strings.ContainsAny(host, "/\\?#@") {
		return bad(`it must be a host and port as in a URL, such as "example.com:443"`)
	}
	if strings.HasPrefix(host, "*") {
		return bad("it is a pattern, not a host")
	}
	if strings.Count(host, ":") > 1 && host[0] != '[' {
		return bad("an IPv6 address must be in brackets: [::1]:8080")
	}
	name, port := splitPort(unescaped(Lower(host)))
	bracketed := strings.HasPrefix(host, "[")
	if port == "" {
		if name = spell(name); name == "" {
			return bad("it is empty")
		}
		name = short(name)
		return bad("it has no port; for https it is %q, for http %q", net.JoinHostPort(name, "443"), net.JoinHostPort(name, "80"))
	}
	if err := checkPort(port); err != nil {
		return bad("%w", err)
	}
	if !bracketed {
		name = undotted(name)
	}
	if err := checkName(name, bracketed); err != nil {
		return bad("%w", err)
	}
	return Key{spell(name), unpadded(port)}, nil
}

// unescaped returns host with the percent sign before the zone of an IPv6 address
// as url.Parse leaves it in URL.Host.
func unescaped(host string) string {
	if !strings.HasPrefix(host, "[") {
		return host
	}
	return strings.Replace(host, "%25", "%", 1)
}

var errBrackets = errors.New("only an IPv6 address may be in brackets: [::1] or [::1]:8080")

// isIPv6 reports whether text is an IPv6 address, without brackets.
func isIPv6(text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && addr.Is6()
}

// checkName returns why name, without its brackets, can't be the name of a
// host.
func checkName(name string, bracketed bool) error {
	if bracketed {
		if !isIPv6(name) {
			return errBrackets
		}
		return nil
	}
	switch {
	case name == "":
		return errors.New("the name is missing before the port")
	case len(name) > 253:
		return errors.New("a name may have at most 253 bytes")
	case strings.HasPrefix(name, ".") || strings.Contains(name+".", ".."):
		return errors.New("a label of the name is empty")
	case strings.ContainsFunc(name, isForbidden):
		return errForbidden
	}
	return nil
}

var errForbidden = errors.New("the name contains a character that no host name may contain")

func isForbidden(r rune) bool {
	return r <= ' ' || r == 0x7f || strings.ContainsRune("\"%<>[]^`{|}*", r)
}

// ParsePattern parses a key of Transport.Hosts into a name and a port, which are
// spelled as in a Key. The name keeps its leading "*". The port is "" if any port
// matches.
func ParsePattern(pattern string) (name, port string, err error) {
	switch {
	case pattern == "":
		return "", "", errors.New("a host pattern must not be empty")
	case strings.Contains(pattern, "/"):
		return "", "", errors.New("a host pattern must not have a scheme or a path")
	case strings.ContainsAny(pattern, " \t\r\n@?#"):
		return "", "", errors.New("a host pattern must not contain spaces, @, ? or #")
	}
	if err := checkVisible(pattern); err != nil {
		return "", "", err
	}
	bare := strings.Count(pattern, ":") > 1 && pattern[0] != '['
	if bare {
		return "", "", errors.New("an IPv6 address must be in brackets: [::1] or [::1]:8080")
	}
	name, port = splitPort(unescaped(Lower(pattern)))
	if strings.HasSuffix(pattern, ":") {
		return "", "", errors.New("the port is missing after the colon")
	}
	if port != "" {
		if err := checkPort(port); err != nil {
			return "", "", err
		}
		port = unpadded(port)
	}
	if strings.ContainsAny(name, "[]") || pattern[0] == '[' && !isIPv6(name) {
		return "", "", errBrackets
	}
	if pattern[0] == '[' {
		return spell(name), port, nil
	}
	if name = undotted(name); strings.ContainsFunc(strings.ReplaceAll(name, "*", ""), isForbidden) {
		return "", "", errForbidden
	}
	if rest, ok := strings.CutPrefix(name, "*"); ok {
		if err := checkSuffix(rest); err != nil {
			return "", "", err
		}
		return name, port, nil
	}
	if name == "" {
		return "", "", errors.New("the host is missing before the port")
	}
	if strings.Contains(name, "*") {
		return "", "", errors.New(`"*" may only stand for the first labels, as in "*.example.com"`)
	}
	if suffix := strings.TrimLeft(name, "."); suffix != name && suffix != "" {
		return "", "", fmt.Errorf(`a host must not begin with a dot; for all hosts below %[1]s, use "*.%[1]s"`, short(suffix))
	}
	if strings.Contains(name+".", "..") {
		return "", "", errors.New("a label of the name is empty")
	}
	return name, port, nil
}

// checkSuffix checks what follows the "*" of a pattern for many hosts.
func checkSuffix(rest string) error {
	switch {
	case len(rest) < 2 || rest[0] != '.':
		return errors.New(`a pattern for many hosts must be "*." and a suffix, such as "*.example.com"; for all hosts, use Policy`)
	case strings.Contains(rest, "*"):
		return errors.New(`only the first label may be "*"`)
	case strings.Contains(rest+".", ".."):
		return errors.New("a label of the name is empty")
	case strings.Trim(rest[strings.LastIndexByte(rest, '.')+1:], "0123456789") == "":
		return errors.New("no host is below an IP address: list the addresses one by one")
	}
	return nil
}

// checkVisible returns an error if text has a character that a reader doesn't see, such as
// one that turns the direction of others, or the stand-in for one that was lost.
func checkVisible(text string) error {
	const nonJoiner, joiner = '\u200c', '\u200d' // parts of words in some scripts
	for _, r := range text {
		switch {
		case r == utf8.RuneError:
			return errors.New("it contains U+FFFD, which stands for what isn't UTF-8")
		case !unicode.IsPrint(r) && r != nonJoiner && r != joiner:
			return fmt.Errorf("it contains %U, which can't be seen", r)
		}
	}
	return nil
}

func checkPort(port string) error {
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("the port is %q: it must be 1 to 65535", short(port))
	}
	return nil
}

// short returns text as errors show it.
func short(text string) string { return redact.Short(text, 260) } // more than any valid name has
