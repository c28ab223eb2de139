// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

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

// retries is how often each peer may retry a request. All peers are set to
// three retries, whatever their default is, so that they do the same work.
const retries = 3

// doer is what a program calls.
type doer interface {
	Do(*http.Request) (*http.Response, error)
}

// peer is a library, or a substitute for one.
type peer struct {
	name string

	once bool // it makes no second attempt

	// transport wraps base, with the waits of the library or without any. It is nil
	// if the library is a client only, or has a whole client inside its
	// RoundTripper.
	transport func(base http.RoundTripper, instant bool) http.RoundTripper

	// whole is set for peers without transport.
	whole func(base http.RoundTripper, instant bool) doer
}

// client returns what a program would use. Each result contains exactly one
// http.Client, so that peers are comparable.
func (p peer) client(base http.RoundTripper, instant bool) doer {
	if p.whole != nil {
		return p.whole(base, instant)
	}
	return &http.Client{Transport: p.transport(base, instant)}
}

// peers lists everything that is measured. The first is the reference.
var peers = []peer{
	{name: "bare", once: true, transport: func(base http.RoundTripper, _ bool) http.RoundTripper { return base }},
	{name: "bare-timeout", once: true, transport: func(base http.RoundTripper, _ bool) http.RoundTripper { return timeout{base} }},
	{name: "loop", transport: func(base http.RoundTripper, instant bool) http.RoundTripper { return &loop{base, instant} }},
	{name: "retrip", transport: newRetrip(nil, retrip.Policy{})},
	{name: "retrip-metrics", transport: newRetrip(&retrip.Metrics{}, retrip.Policy{})},
	{name: "retrip-timeouts", transport: newRetrip(&retrip.Metrics{}, retrip.Policy{Deadline: 24 * time.Hour, AttemptTimeout: time.Hour})},
	{name: "retrip-hedge", transport: newRetrip(&retrip.Metrics{}, retrip.Policy{Hedge: 0.05})},
	{name: "rehttp", transport: newRehttp},
	{name: "httpretry", transport: newHTTPRetry},
	{name: "failsafe-go", transport: newFailsafe},
	{name: "go-retryablehttp", whole: newRetryable},
	{name: "heimdall", whole: newHeimdall},
}

// newRetrip returns a retrip Transport with these metrics, or none, and this policy.
func newRetrip(metrics *retrip.Metrics, policy retrip.Policy) func(http.RoundTripper, bool) http.RoundTripper {
	return func(base http.RoundTripper, instant bool) http.RoundTripper {
		t := &retrip.Transport{Base: base, Metrics: metrics, Policy: policy}
		if instant {
			t.Policy.Backoff.Base = retrip.Off
			t.Policy.Budget = retrip.Off // failures in a row would exhaust it
		}
		return t
	}
}

func newRehttp(base http.RoundTripper, instant bool) http.RoundTripper {
	delay := rehttp.ExpJitterDelay(100*time.Millisecond, 10*time.Second)
	if instant {
		delay = rehttp.ConstDelay(0)
	}
	retry := rehttp.RetryAll(rehttp.RetryMaxRetries(retries),
		rehttp.RetryAny(rehttp.RetryStatusInterval(500, 600), rehttp.RetryTemporaryErr()))
	return rehttp.NewTransport(base, retry, delay)
}

func newHTTPRetry(base http.RoundTripper, instant bool) http.RoundTripper {
	options := []httpretry.Option{httpretry.WithMaxRetryCount(retries)}
	if instant {
		options = append(options, httpretry.WithBackoffPolicy(func(int) time.Duration { return 0 }))
	}
	return httpretry.NewCustomClient(&http.Client{Transport: base}, options...).Transport
}

// newFailsafe doesn't wait by default.
func newFailsafe(base http.RoundTripper, _ bool) http.RoundTripper {
	return failsafehttp.NewRoundTripper(base, failsafehttp.NewRetryPolicyBuilder().WithMaxRetries(retries).Build())
}

func newRetryable(base http.RoundTripper, instant bool) doer {
	c := retryablehttp.NewClient()
	c.HTTPClient = &http.Client{Transport: base}
	c.Logger = nil
	c.RetryMax = retries
	if instant {
		c.Backoff = func(time.Duration, time.Duration, int, *http.Response) time.Duration { return 0 }
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

func newHeimdall(base http.RoundTripper, instant bool) doer {
	retrier := heimdall.NewRetrier(heimdall.NewExponentialBackoff(100*time.Millisecond, 10*time.Second, 2, 10*time.Millisecond))
	if instant {
		retrier = heimdall.NewRetrierFunc(func(int) time.Duration { return 0 })
	}
	return httpclient.NewClient(
		httpclient.WithHTTPClient(&http.Client{Transport: base}),
		httpclient.WithRetryCount(retries),
		httpclient.WithRetrier(retrier))
}
