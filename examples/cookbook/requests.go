// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/retrip/retrip"
)

// Poll returns a client whose GETs wait for a job: while the service answers 202,
// they ask again, every 2.5 to 5 s or when Retry-After says, for ten minutes.
func Poll(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: &retrip.Transport{Base: base, Policy: retrip.Policy{
		MaxAttempts:    240, // one each 2.5 s
		AttemptTimeout: 20 * time.Second,
		Deadline:       10 * time.Minute,
		MaxWait:        10 * time.Minute, // the default ends it at a Retry-After of more than 30 s
		Backoff:        retrip.Backoff{Base: 5 * time.Second, Cap: 5 * time.Second, Jitter: retrip.EqualJitter},
		Classify: func(req *http.Request, resp *http.Response, _ error) retrip.Verdict {
			if req.Method == http.MethodGet && resp != nil && resp.StatusCode == http.StatusAccepted {
				return retrip.Retryable
			}
			return retrip.ByRule
		},
	}}}
}

// NoSuchHost is a Policy.Classify for a cluster whose DNS starts together with
// the program: a name that doesn't exist yet is asked for again. MaxAttempts and
// Backoff must last until DNS is there.
func NoSuchHost(_ *http.Request, _ *http.Response, err error) retrip.Verdict {
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return retrip.Retryable // nothing was sent, so retrip repeats a POST too
	}
	return retrip.ByRule
}

// CodeInBody returns a Policy.Classify for services that say in the first 4 KiB of the body what
// a status means, such as the 400 of AWS with "ThrottlingException", for which v is Throttled, or
// the 429 of Gemini with "PerDay", for which it is Final.
func CodeInBody(status int, code string, v retrip.Verdict) func(*http.Request, *http.Response, error) retrip.Verdict {
	return func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
		if resp != nil && resp.StatusCode == status {
			if start, _ := retrip.Peek(resp, 4<<10); bytes.Contains(start, []byte(code)) {
				return v
			}
		}
		return retrip.ByRule
	}
}

// PerStatus ends the retries of a request when a status has come Most[status]
// times, such as {500: 1, 503: 3}. It replaces the Classify of the Transport's
// policies, and sends no hedges.
type PerStatus struct {
	*retrip.Transport
	Most map[int]int
}

// RoundTrip implements http.RoundTripper.
func (p PerStatus) RoundTrip(req *http.Request) (*http.Response, error) {
	came := map[int]int{}
	count := func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
		if resp != nil {
			came[resp.StatusCode]++
			if most := p.Most[resp.StatusCode]; most > 0 && came[resp.StatusCode] >= most {
				return retrip.Final
			}
		}
		return retrip.ByRule
	}
	own := retrip.Policy{Classify: count, Hedge: retrip.Off}
	return p.Transport.RoundTrip(req.WithContext(retrip.WithPolicy(req.Context(), own)))
}

// ByRoute gives requests the policy of the first of its routes that they follow.
// Budgets and breakers stay those of the host.
type ByRoute struct {
	*retrip.Transport
	Routes []Route
}

// Route is a part of a host, such as "shop.internal/reports/", and its policy.
type Route struct {
	Prefix string // of the host, in lower case and without its port, and the path
	Policy retrip.Policy
}

// RoundTrip implements http.RoundTripper.
func (b ByRoute) RoundTrip(req *http.Request) (*http.Response, error) {
	at := strings.ToLower(req.URL.Hostname()) + req.URL.Path
	for _, route := range b.Routes {
		if strings.HasPrefix(at, route.Prefix) {
			return b.Transport.RoundTrip(req.WithContext(retrip.WithPolicy(req.Context(), route.Policy)))
		}
	}
	return b.Transport.RoundTrip(req)
}
