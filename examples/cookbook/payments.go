// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/retrip/retrip"
)

// Payments returns a client for Stripe, or for another API that accepts an
// Idempotency-Key. While the first attempt is still being processed, although it
// has timed out, the API answers 409 to its key: this is no refusal, and the money
// may move. If even the last answer is such a 409, ask later, with the same key.
func Payments(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			Dialects:       []string{"stripe"},
			RetryOn:        []int{409},
			MaxAttempts:    6, // with waits of at least 1, 2, 4, 8 and 8 s
			Backoff:        retrip.Backoff{Base: 2 * time.Second, Cap: 16 * time.Second, Jitter: retrip.EqualJitter},
			AttemptTimeout: 30 * time.Second,
			Deadline:       4 * time.Minute,
		},
	}}
}

// Charge charges an order once, however often the request is sent. The key
// belongs to the order and must be stored with it, so that the program sends
// the same key after a restart.
func Charge(ctx context.Context, client *http.Client, orderKey string, form url.Values) (*http.Response, error) {
	const charges = "https://api.stripe.com/v1/payment_intents"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, charges, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Idempotency-Key", orderKey)
	return client.Do(req)
}
