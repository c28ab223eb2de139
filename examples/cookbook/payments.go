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
// Idempotency-Key.
func Payments(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base:   base,
		Policy: retrip.Policy{Dialects: []string{"stripe"}, AttemptTimeout: 30 * time.Second},
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
