// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"net"
	"net/http"
	"time"
)

// Via returns a base that reaches every host through one address, such as that of a
// gateway or a sidecar. retrip keeps a budget, a breaker and a policy for each host of
// a URL, whatever Request.Host says: so put the service's name into the URL, and the
// address here. Connections are those of retrip's default base, with its pings.
func Via(address string) *http.Transport {
	dialer := &net.Dialer{Timeout: 30 * time.Second}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, address)
		},
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 100,
		IdleConnTimeout:     90 * time.Second,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
}
