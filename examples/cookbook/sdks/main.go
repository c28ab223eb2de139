// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"sync/atomic"
	"time"

	"github.com/slack-go/slack"
	"github.com/stripe/stripe-go/v83"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
	fmt.Println("So the SDKs leave the retries to retrip below them: two sends for each call, where two layers of retries could multiply.")
}

// run makes a call through each SDK to a service that is busy at first, and
// prints how often the request was sent.
func run(ctx context.Context, out io.Writer) error {
	for _, sdk := range []struct {
		name   string
		answer string
		call   func(url string) error
	}{
		{"go-github, a GET", `{"login": "octocat"}`, func(server string) error {
			client := GitHub(nil)
			var err error
			if client.BaseURL, err = url.Parse(server + "/"); err != nil {
				return err
			}
			_, _, err = client.Users.Get(ctx, "octocat")
			return err
		}},
		{"stripe-go, a POST with a key", `{"id": "cus_1", "object": "customer"}`, func(url string) error {
			_, err := Stripe(nil, url, "sk_test").V1Customers.Create(ctx, &stripe.CustomerCreateParams{Name: stripe.String("Ada")})
			return err
		}},
		{"slack-go, a POST that was refused", `{"ok": true, "channel": "C1", "ts": "1.2"}`, func(url string) error {
			_, _, err := Slack(nil, url+"/", "xoxb-test").PostMessageContext(ctx, "C1", slack.MsgOptionText("hello", false))
			return err
		}},
		{"vault, a GET", `{"data": {"key": "value"}}`, func(url string) error {
			client, err := Vault(url)
			if err != nil {
				return err
			}
			_, err = client.Logical().ReadWithContext(ctx, "secret/x")
			return err
		}},
		{"prometheus, a POST that reads", `{"status": "success", "data": {"resultType": "vector", "result": []}}`, func(url string) error {
			client, err := Prometheus(nil, url)
			if err != nil {
				return err
			}
			_, _, _, err = client.Query(ctx, "up", time.Time{})
			return err
		}},
	} {
		var sends atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			if sends.Add(1) == 1 {
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			io.WriteString(w, sdk.answer)
		}))
		began := time.Now()
		err := sdk.call(server.URL)
		server.Close()
		outcome := "it succeeded"
		if err != nil {
			outcome = err.Error()
		}
		fmt.Fprintf(out, "%-34s sent %d times in %v: %s\n", sdk.name, sends.Load(), time.Since(began).Round(time.Millisecond), outcome)
	}
	return nil
}
