// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/gojek/heimdall/v7/httpclient"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/ybbus/httpretry"

	"github.com/retrip/retrip"
)

// retriesOf returns how many retries a client makes of a GET that always gets a
// 503, and the waits before them.
func retriesOf(t *testing.T, client func(base http.RoundTripper) doer) (waits []time.Duration) {
	t.Helper()
	s := &server{script: always(503)(), opened: time.Now()}
	do(client(s), request(t, http.MethodGet, nil))
	for i := 1; i < len(s.at); i++ {
		waits = append(waits, s.at[i]-s.at[i-1])
	}
	return waits
}

// TestDefaults checks the defaults that the tables of docs/migrating.md show in
// brackets against the behaviour of the libraries with their zero
// configuration.
func TestDefaults(t *testing.T) {
	page := read(t, "../../../docs/migrating.md")
	says := func(format string, args ...any) {
		t.Helper()
		assert.Contains(t, page, fmt.Sprintf(format, args...))
	}
	synctest.Test(t, func(t *testing.T) {
		waits := retriesOf(t, func(base http.RoundTripper) doer {
			c := retryablehttp.NewClient()
			c.HTTPClient.Transport, c.Logger = base, nil
			return c.StandardClient()
		})
		says("| `RetryMax` (%d) |", len(waits))
		says("| `RetryWaitMin` (%d s), ", waits[0]/time.Second)
		says("`RetryMax = %d` is `MaxAttempts: %d`", len(waits), len(waits)+1)
		assert.Equal(t, 2*waits[0], waits[1], "it doubles")

		many := retryablehttp.NewClient()
		many.RetryMax, many.Logger = 10, nil
		waits = retriesOf(t, func(base http.RoundTripper) doer {
			many.HTTPClient.Transport = base
			return many.StandardClient()
		})
		says("`RetryWaitMax` (%d s) |", waits[9]/time.Second)

		waits = retriesOf(t, func(base http.RoundTripper) doer {
			return &http.Client{Transport: failsafehttp.NewRoundTripper(base, failsafehttp.NewRetryPolicyBuilder().Build())}
		})
		says("`NewRetryPolicyBuilder().WithMaxRetries(n)` (%d)", len(waits))
		says("(default: no delay at all)")
		assert.Equal(t, make([]time.Duration, len(waits)), waits)

		waits = retriesOf(t, func(base http.RoundTripper) doer {
			return httpclient.NewClient(httpclient.WithHTTPClient(&http.Client{Transport: base}))
		})
		says("| `WithRetryCount(n)` (%d) |", len(waits))

		waits = retriesOf(t, func(base http.RoundTripper) doer { return httpretry.NewCustomClient(&http.Client{Transport: base}) })
		says("| `WithMaxRetryCount(n)` (%d) |", len(waits))

		p, err := new(retrip.Transport).PolicyFor("example.com:443")
		require.NoError(t, err)
		says("one more than `RetryMax` (%d) |", p.MaxAttempts)
		says("`Backoff.Base` (%d ms; %d s after a 429 without `Retry-After`, by `ThrottleBase`), `Backoff.Cap` (%d s) |",
			p.Backoff.Base/time.Millisecond, p.Backoff.ThrottleBase/time.Second, p.Backoff.Cap/time.Second)
	})
}
