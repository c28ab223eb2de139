// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
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
		if err != nil {
			return err
		}
		shared := netip.MustParsePrefix("100.64.0.0/10") // RFC 6598
		if ip := at.Addr().Unmap(); !ip.IsGlobalUnicast() || ip.IsPrivate() || shared.Contains(ip) {
			return fmt.Errorf("%s is not a public address", ip)
		}
		return nil
	}}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.Proxy = nil // a proxy would connect for us, without this check
	base.DialContext = dialer.DialContext
	return base
}
