// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"github.com/retrip/retrip"
)

// Routes keeps one route of a host apart from the others.
type Routes struct {
	Prefix      string // of host, without its port, and path, such as "shop.internal/search/"
	Apart, Rest http.RoundTripper
}

// NewRoutes returns a client whose two Transports share the connections of base.
// A Transport has one budget and one breaker for each host, so a route that always
// fails may forbid the retries of the others. A Transport of its own has state of
// its own.
func NewRoutes(base http.RoundTripper, prefix string) *http.Client {
	return &http.Client{Transport: Routes{
		Prefix: prefix,
		Apart:  &retrip.Transport{Base: base, Policy: retrip.Policy{MaxAttempts: 2, AttemptTimeout: 2 * time.Second, Deadline: 5 * time.Second}},
		Rest:   &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: 2 * time.Second, Deadline: 10 * time.Second}},
	}}
}

// HealthChecks returns a client whose requests below prefix pass t by. To Vault or
// Consul, a 429 or a 503 is the answer to "how are you?": t would retry it, and
// count it as a failure of the host.
func HealthChecks(t *retrip.Transport, prefix string) *http.Client {
	return &http.Client{Transport: Routes{Prefix: prefix, Apart: cmp.Or(t.Base, http.DefaultTransport), Rest: t}}
}

// RoundTrip implements http.RoundTripper.
func (r Routes) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.HasPrefix(strings.ToLower(req.URL.Hostname())+req.URL.Path, r.Prefix) {
		return r.Apart.RoundTrip(req)
	}
	return r.Rest.RoundTrip(req)
}

// CloseIdleConnections makes http.Client.CloseIdleConnections work.
func (r Routes) CloseIdleConnections() {
	for _, rt := range []http.RoundTripper{r.Apart, r.Rest} {
		if idle, ok := rt.(interface{ CloseIdleConnections() }); ok {
			idle.CloseIdleConnections()
		}
	}
}
