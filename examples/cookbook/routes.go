// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"strings"
	"time"

	"github.com/retrip/retrip"
)

// Routes keeps one route of a host apart from the others. A Transport has one
// budget and one breaker for each host, so a route that always fails would
// forbid the retries of the others. A Transport of its own has state of its own.
type Routes struct {
	Prefix      string // of the paths of the route, such as "/search/"
	Apart, Rest *retrip.Transport
}

// NewRoutes returns a client whose two Transports share the connections of base.
func NewRoutes(base http.RoundTripper, prefix string) *http.Client {
	return &http.Client{Transport: Routes{
		Prefix: prefix,
		Apart:  &retrip.Transport{Base: base, Policy: retrip.Policy{MaxAttempts: 2, AttemptTimeout: 2 * time.Second, Deadline: 5 * time.Second}},
		Rest:   &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: 2 * time.Second, Deadline: 10 * time.Second}},
	}}
}

// RoundTrip implements http.RoundTripper.
func (r Routes) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.HasPrefix(req.URL.Path, r.Prefix) {
		return r.Apart.RoundTrip(req)
	}
	return r.Rest.RoundTrip(req)
}

// CloseIdleConnections makes http.Client.CloseIdleConnections work.
func (r Routes) CloseIdleConnections() {
	r.Apart.CloseIdleConnections()
	r.Rest.CloseIdleConnections()
}
