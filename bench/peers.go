// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package bench compares the cost of retries with retrip and with its peers.
// The command in cmd/peers runs it.
package bench

import (
	"net/http"
	"time"

	"github.com/PuerkitoBio/rehttp"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/gojek/heimdall/v7"
	"github.com/gojek/heimdall/v7/httpclient"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/retrip/retrip"
	"github.com/ybbus/httpretry"
)

// Retries is how often each peer may retry a request. All peers are set to
// three retries, whatever their default is, so that they do the same work.
const Retries = 3

// Doer is what a program calls.
type Doer interface {
	Do(*http.Request) (*http.Response, error)
}

// Wait is how long a peer waits before a retry.
type Wait int

const (
	Usual Wait = iota // the default of the library
	None              // no wait
	Hour              // so long that the peer is still waiting when it is measured
)

func (w Wait) duration() time.Duration {
	if w == Hour {
		return time.Hour
	}
	return 0
}

// Peer is a library, or a substitute for one.
type Peer struct {
	Name string

	once bool // it makes no second attempt

	// Transport wraps base. It is nil if the library is a client only, or has a
	// whole client inside its RoundTripper.
	Transport func(base http.RoundTripper, wait Wait) http.RoundTripper

	// client is set for peers without Transport.
	client func(base http.RoundTripper, wait Wait) Doer
}

// Retries reports whether p makes a second attempt.
func (p Peer) Retries() bool { return !p.once }

// Client returns what a program would use. Each result contains exactly one
// http.Client, so that peers are comparable.
func (p Peer) Client(base http.RoundTripper, wait Wait) Doer {
	if p.client != nil {
		return p.client(base, wait)
	}
	return &http.Client{Transport: p.Transport(base, wait)}
}

// Peers lists everything that is measured. The first is the reference.
var Peers = []Peer{
	{Name: "bare", once: true, Transport: func(base http.RoundTripper, _ Wait) http.RoundTripper { return base }},
	{Name: "bare-timeout", once: true, Transport: func(base http.RoundTripper, _ Wait) http.RoundTripper { return timeout{base} }},
	{Name: "loop", Transport: func(base http.RoundTripper, wait Wait) http.RoundTripper { return &loop{base, wait} }},
	{Name: "retrip", Transport: newRetrip(false, false)},
	{Name: "retrip-metrics", Transport: newRetrip(true, false)},
	{Name: "retrip-timeouts", Transport: newRetrip(true, true)},
	{Name: "rehttp", Transport: newRehttp},
	{Name: "httpretry", Transport: newHTTPRetry},
	{Name: "failsafe-go", Transport: newFailsafe},
	{Name: "go-retryablehttp", client: newRetryable},
	{Name: "heimdall", client: newHeimdall},
}

// newRetrip returns a retrip Transport with or without metrics, and with or
// without a deadline and an attempt timeout.
func newRetrip(metrics, timeouts bool) func(http.RoundTripper, Wait) http.RoundTripper {
	return func(base http.RoundTripper, wait Wait) http.RoundTripper {
		t := &retrip.Transport{Base: base}
		if metrics {
			t.Metrics = retrip.NewMetrics()
		}
		if timeouts {
			t.Policy.Deadline, t.Policy.AttemptTimeout = 24*time.Hour, time.Hour
		}
		switch wait {
		case None:
			t.Policy.Backoff.Base = retrip.Off
		case Hour:
			t.Policy.Backoff = retrip.Backoff{Base: time.Hour, Cap: time.Hour, Jitter: retrip.NoJitter}
		}
		if wait != Usual {
			// The cases with permanent failures would exhaust the budget.
			t.Policy.Budget = retrip.Unlimited
		}
		return t
	}
}

func newRehttp(base http.RoundTripper, wait Wait) http.RoundTripper {
	delay := rehttp.ConstDelay(wait.duration())
	if wait == Usual {
		delay = rehttp.ExpJitterDelay(100*time.Millisecond, 10*time.Second)
	}
	retry := rehttp.RetryAll(rehttp.RetryMaxRetries(Retries),
		rehttp.RetryAny(rehttp.RetryStatusInterval(500, 600), rehttp.RetryTemporaryErr()))
	return rehttp.NewTransport(base, retry, delay)
}

func newHTTPRetry(base http.RoundTripper, wait Wait) http.RoundTripper {
	options := []httpretry.Option{httpretry.WithMaxRetryCount(Retries)}
	if wait != Usual {
		options = append(options, httpretry.WithBackoffPolicy(func(int) time.Duration { return wait.duration() }))
	}
	return httpretry.NewCustomClient(&http.Client{Transport: base}, options...).Transport
}

func newFailsafe(base http.RoundTripper, wait Wait) http.RoundTripper {
	policy := failsafehttp.NewRetryPolicyBuilder().WithMaxRetries(Retries)
	if wait == Hour {
		policy = policy.WithDelay(time.Hour)
	}
	return failsafehttp.NewRoundTripper(base, policy.Build())
}

func newRetryable(base http.RoundTripper, wait Wait) Doer {
	c := retryablehttp.NewClient()
	c.HTTPClient = &http.Client{Transport: base}
	c.Logger = nil
	c.RetryMax = Retries
	if wait != Usual {
		c.Backoff = func(time.Duration, time.Duration, int, *http.Response) time.Duration { return wait.duration() }
	}
	return retryable{c}
}

type retryable struct{ *retryablehttp.Client }

func (c retryable) Do(req *http.Request) (*http.Response, error) {
	r, err := retryablehttp.FromRequest(req)
	if err != nil {
		return nil, err
	}
	return c.Client.Do(r)
}

func newHeimdall(base http.RoundTripper, wait Wait) Doer {
	retrier := heimdall.NewRetrierFunc(func(int) time.Duration { return wait.duration() })
	if wait == Usual {
		retrier = heimdall.NewRetrier(heimdall.NewExponentialBackoff(100*time.Millisecond, 10*time.Second, 2, 10*time.Millisecond))
	}
	return httpclient.NewClient(
		httpclient.WithHTTPClient(&http.Client{Transport: base}),
		httpclient.WithRetryCount(Retries),
		httpclient.WithRetrier(retrier))
}
