// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sdks

import (
	"net/http"
	"time"

	"github.com/stripe/stripe-go/v83"

	"github.com/retrip/retrip"
)

// Stripe returns a client for the API at url that obeys Stripe-Should-Retry.
// With its retries off, stripe-go sends an Idempotency-Key only if the call's
// parameters have one. retrip adds the missing keys.
func Stripe(base http.RoundTripper, url, key string) *stripe.Client {
	transport := &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			Dialects:       []string{"stripe"},
			IdempotencyKey: retrip.On,
			RetryOn:        []int{http.StatusConflict}, // the first attempt is still in progress
			Backoff:        retrip.Backoff{Base: 2 * time.Second, Cap: 16 * time.Second, Jitter: retrip.EqualJitter},
			AttemptTimeout: 30 * time.Second,
			Deadline:       3 * time.Minute,
		},
	}
	backend := stripe.GetBackendWithConfig(stripe.APIBackend, &stripe.BackendConfig{
		URL:               stripe.String(url),
		HTTPClient:        &http.Client{Transport: transport},
		MaxNetworkRetries: stripe.Int64(0),
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull},
	})
	return stripe.NewClient(key, stripe.WithBackends(&stripe.Backends{API: backend}))
}
