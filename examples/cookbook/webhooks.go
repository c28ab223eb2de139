// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/retrip/retrip"
)

// Webhooks returns the client of a queue that sends webhooks. Each run of the
// queue makes at most two attempts: longer failures belong in the queue, which
// outlives the program. signer adds the id and a fresh signature to each attempt.
func Webhooks(signer http.RoundTripper) *http.Client {
	return &http.Client{
		Transport: &retrip.Transport{Base: signer, Policy: retrip.Policy{
			MaxAttempts:    2,
			AttemptTimeout: 20 * time.Second,
			Deadline:       45 * time.Second,
			MaxWait:        5 * time.Second,
			Idempotent:     func(*http.Request) bool { return true }, // receivers know the id of a repeated message
		}},
		// An endpoint that has moved must update its URL.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Public returns a base that connects only to public addresses, whatever a name
// resolves to: strangers name the endpoints, and the sender can reach addresses
// that they can't.
func Public() *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err == nil && !public(at.Addr().Unmap()) {
			err = fmt.Errorf("%s is not a public address", at.Addr())
		}
		return err
	}}
	// No Proxy: it would connect for us, without this check.
	return &http.Transport{DialContext: dialer.DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConns: 100, IdleConnTimeout: 30 * time.Second, HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second}}
}

// special holds the networks within those of public addresses that lead elsewhere
// (RFC 6890). Of IPv6, these include a NAT64's, Teredo's and 6to4's, which embed the
// private addresses of IPv4.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/3"), netip.MustParsePrefix("4000::/2"), netip.MustParsePrefix("8000::/1"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2002::/16"),
}

func public(ip netip.Addr) bool {
	return ip.IsGlobalUnicast() && !ip.IsPrivate() && !slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(ip) })
}
