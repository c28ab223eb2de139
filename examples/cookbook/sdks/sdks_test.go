// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sdks

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	vault "github.com/hashicorp/vault/api"
	"github.com/slack-go/slack"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v83"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// service is a fake service: throttle answers until it returns false.
type service struct {
	*memhttp.Server
	at   []time.Duration // instants of the requests
	keys []string        // Idempotency-Keys of the requests
}

func newService(t *testing.T, throttle func(n int, w http.ResponseWriter) bool, answer string) *service {
	t.Helper()
	s := &service{}
	start := time.Now()
	s.Server = memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		s.at = append(s.at, time.Since(start))
		s.keys = append(s.keys, r.Header.Get("Idempotency-Key"))
		w.Header().Set("Content-Type", "application/json")
		if !throttle(len(s.at), w) {
			io.WriteString(w, answer)
		}
	}))
	return s
}

// once throttles the first request, with a status, headers and a body.
func once(status int, body string, header ...string) func(int, http.ResponseWriter) bool {
	return func(n int, w http.ResponseWriter) bool {
		if n > 1 {
			return false
		}
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
		return true
	}
}

func TestGitHub_WaitsForTheReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, once(http.StatusForbidden, `{"message": "API rate limit exceeded for user ID 1."}`,
			"X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "0",
			"X-RateLimit-Reset", strconv.FormatInt(time.Now().Add(20*time.Second).Unix(), 10)), `{"login": "octocat"}`)
		client := GitHub(s.Transport())
		var err error
		client.BaseURL, err = url.Parse(s.URL + "/")
		require.NoError(t, err)
		user, _, err := client.Users.Get(t.Context(), "octocat")
		require.NoError(t, err)
		assert.Equal(t, "octocat", user.GetLogin())
		require.Len(t, s.at, 2)
		assert.GreaterOrEqual(t, s.at[1], 20*time.Second)
	})
}

func TestGitHub_HandsOnWhatTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reset := strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)
		s := newService(t, once(http.StatusForbidden, `{"message": "API rate limit exceeded for user ID 1."}`,
			"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", reset), `{"login": "octocat"}`)
		client := GitHub(s.Transport())
		var err error
		client.BaseURL, err = url.Parse(s.URL + "/")
		require.NoError(t, err)
		_, resp, err := client.Users.Get(t.Context(), "octocat")
		require.Error(t, err)
		assert.Equal(t, http.StatusForbidden, resp.StatusCode)
		assert.Len(t, s.at, 1)
		// The SDK sends the next call, because its check is off.
		_, _, err = client.Users.Get(t.Context(), "octocat")
		require.NoError(t, err)
	})
}

func TestStripe_HeedsTheServersWord(t *testing.T) {
	for word, sends := range map[string]int{"true": 2, "false": 1} {
		play.Bubble(t, word, func(t *testing.T) {
			s := newService(t, once(http.StatusTooManyRequests, `{"error": {"code": "lock_timeout", "type": "invalid_request_error"}}`,
				"Stripe-Should-Retry", word), `{"id": "cus_1", "object": "customer"}`)
			client := Stripe(s.Transport(), s.URL, "sk_test")
			customer, err := client.V1Customers.Create(t.Context(), &stripe.CustomerCreateParams{Name: stripe.String("Ada")})
			require.Len(t, s.at, sends)
			assert.NotEmpty(t, s.keys[0])
			if sends == 1 {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "cus_1", customer.ID)
			assert.Equal(t, s.keys[0], s.keys[1], "one key for one customer")
		})
	}
}

// vaultAt returns a client like Vault, for a server in memory.
func vaultAt(t *testing.T, s *service, change func(*vault.Config)) *vault.Client {
	t.Helper()
	t.Setenv("VAULT_ADDR", "")
	client, err := Vault(s.URL)
	require.NoError(t, err)
	config := client.CloneConfig()
	config.HttpClient.Transport.(*retrip.Transport).Base = s.Transport()
	change(config)
	client, err = vault.NewClient(config)
	require.NoError(t, err)
	return client
}

func TestVault_RetriesOnce(t *testing.T) {
	sealed := func(n int, w http.ResponseWriter) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, `{"errors": ["Vault is sealed"]}`)
		return true
	}
	for name, tt := range map[string]struct {
		change func(*vault.Config)
		sends  int
	}{
		"as it should be": {func(*vault.Config) {}, 4},
		// It would be three times four, but the budget ends the retries: 4, 4
		// and 2.
		"with its own retries too": {func(c *vault.Config) { c.MaxRetries = 2 }, 10},
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			s := newService(t, sealed, "")
			client := vaultAt(t, s, tt.change)
			_, err := client.Logical().ReadWithContext(t.Context(), "secret/data/x")
			require.Error(t, err)
			assert.Len(t, s.at, tt.sends)
		})
	}
}

// Creating a customer takes longer than an attempt may, and until then, Stripe refuses the key.
func TestStripe_OneCustomerWhileInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := newService(t, func(n int, w http.ResponseWriter) bool {
			if n == 1 {
				time.Sleep(35 * time.Second)
			}
			if time.Since(began) < 35*time.Second {
				w.WriteHeader(http.StatusConflict)
				io.WriteString(w, `{"error": {"type": "idempotency_error"}}`)
				return true
			}
			return false
		}, `{"id": "cus_1", "object": "customer"}`)
		customer, err := Stripe(s.Transport(), s.URL, "sk_test").V1Customers.Create(t.Context(), &stripe.CustomerCreateParams{Name: stripe.String("Ada")})
		require.NoError(t, err)
		assert.Equal(t, "cus_1", customer.ID)
		for _, key := range s.keys {
			assert.Equal(t, s.keys[0], key)
		}
	})
}

// A query is repeated, and a snapshot isn't.
func TestPrometheus_ASnapshotIsMadeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, func(_ int, w http.ResponseWriter) bool { w.WriteHeader(http.StatusServiceUnavailable); return true }, "")
		client, err := Prometheus(s.Transport(), s.URL)
		require.NoError(t, err)
		_, err = client.Snapshot(t.Context(), false)
		require.Error(t, err)
		assert.Len(t, s.at, 1)
		_, _, _, err = client.Query(t.Context(), "up", time.Time{})
		require.Error(t, err)
		assert.Len(t, s.at, 5)
	})
}

// Both SDKs send a POST that retrip repeats: one that was refused, and one that only reads.
func TestPOSTs_AreRepeated(t *testing.T) {
	for name, tt := range map[string]struct {
		answer string
		call   func(ctx context.Context, s *service) error
	}{
		"slack": {`{"ok": true, "channel": "C1", "ts": "1.2"}`, func(ctx context.Context, s *service) error {
			_, _, err := Slack(s.Transport(), s.URL+"/", "xoxb-test").PostMessageContext(ctx, "C1", slack.MsgOptionText("hello", false))
			return err
		}},
		"prometheus": {`{"status": "success", "data": {"resultType": "vector", "result": []}}`, func(ctx context.Context, s *service) error {
			client, err := Prometheus(s.Transport(), s.URL)
			require.NoError(t, err)
			_, _, _, err = client.Query(ctx, "up", time.Time{})
			return err
		}},
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			s := newService(t, once(http.StatusTooManyRequests, "", "Retry-After", "3"), tt.answer)
			require.NoError(t, tt.call(t.Context(), s))
			require.Len(t, s.at, 2)
			assert.GreaterOrEqual(t, s.at[1], 3*time.Second)
		})
	}
}
