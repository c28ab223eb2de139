// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/retrip/retrip"
)

// failing returns a server that answers with status n times, and then with 200.
func failing(n int32, status int) *httptest.Server {
	var calls atomic.Int32
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) <= n {
			w.WriteHeader(status)
		}
	}))
}

func ExampleTransport() {
	server := failing(2, http.StatusServiceUnavailable)
	defer server.Close()

	client := &http.Client{Transport: &retrip.Transport{}}
	resp, err := client.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}

func ExampleTransport_Validate() {
	transport := &retrip.Transport{
		Policy: retrip.Policy{AttemptTimeout: 2 * time.Second},
		Hosts: map[string]retrip.Policy{
			"api.example.com":  {MaxAttempts: -5},
			"http://localhost": {},
		},
	}
	fmt.Println(transport.Validate())
	// Output:
	// retrip: Hosts["api.example.com"].MaxAttempts is -5: it must be positive, or 0 to inherit
	// retrip: Hosts["http://localhost"]: a host pattern must not have a scheme or a path
}

func ExampleTransport_PolicyFor() {
	transport := &retrip.Transport{
		Policy: retrip.Policy{AttemptTimeout: 2 * time.Second},
		Hosts: map[string]retrip.Policy{
			"*.example.com": {MaxAttempts: 6},
		},
	}
	p, err := transport.PolicyFor("api.example.com:443")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.MaxAttempts, p.AttemptTimeout, p.MaxWait)
	// Output: 6 2s 30s
}

func ExampleTransport_HostState() {
	server := failing(100, http.StatusServiceUnavailable)
	defer server.Close()
	transport := &retrip.Transport{Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}}
	client := &http.Client{Transport: transport}

	for range 3 {
		resp, err := client.Get(server.URL)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
	}
	state, err := transport.HostState(server.Listener.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%v of %v tokens left, %v failed retries in a row, breaker %s, last give-up %s\n", state.Tokens, state.Size, state.FailedRetries, state.Breaker, state.LastGiveUp)
	// Output: 3.5 of 5 tokens left, 3 failed retries in a row, breaker closed, last give-up retries_failing
}

func ExampleTransport_Advice() {
	transport := &retrip.Transport{Policy: retrip.Policy{AttemptTimeout: 2 * time.Second, Deadline: 5 * time.Second}}
	for _, advice := range transport.Advice() {
		fmt.Println(advice)
	}
	// Output: retrip: Policy.Deadline is 5s: 4 attempts of 2s with waits of up to 700ms in total need 8.7s
}

// A POST is repeated after a status that says that the host did nothing.
func ExamplePolicy_unprocessed() {
	server := failing(1, http.StatusTooManyRequests)
	defer server.Close()
	client := &http.Client{Transport: &retrip.Transport{
		Policy: retrip.Policy{Unprocessed: []int{http.StatusTooManyRequests}},
	}}
	resp, err := client.Post(server.URL, "text/plain", strings.NewReader("10 EUR"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}

func ExampleWithPolicy() {
	server := failing(1, http.StatusServiceUnavailable)
	defer server.Close()
	client := &http.Client{Transport: &retrip.Transport{}}

	// This request isn't worth a second attempt.
	ctx := retrip.WithPolicy(context.Background(), retrip.Policy{MaxAttempts: 1})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 503
}

func ExampleWithTrace() {
	server := failing(2, http.StatusBadGateway)
	defer server.Close()
	client := &http.Client{Transport: &retrip.Transport{}}

	trace := &retrip.Trace{
		Retry: func(e retrip.Event) { fmt.Printf("attempt %d: %d, again (%s)\n", e.Attempt, e.StatusCode, e.Reason) },
		Done:  func(e retrip.Event) { fmt.Printf("attempt %d: %d, done\n", e.Attempt, e.StatusCode) },
	}
	req, err := http.NewRequestWithContext(retrip.WithTrace(context.Background(), trace), http.MethodGet, server.URL, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	// Output:
	// attempt 1: 502, again (server_error)
	// attempt 2: 502, again (server_error)
	// attempt 3: 200, done
}

func ExampleError() {
	server := failing(0, 0)
	url := server.URL
	server.Close() // nobody listens from here on

	client := &http.Client{Transport: &retrip.Transport{Policy: retrip.Policy{Backoff: retrip.Backoff{Base: time.Millisecond}}}}
	_, err := client.Get(url)
	var failure *retrip.Error
	if errors.As(err, &failure) {
		fmt.Println(failure.Attempts, failure.Reason, failure.Timeout())
	}
	// Output: 4 max_attempts false
}

func ExampleLoadPolicies() {
	policy, hosts, err := retrip.LoadPolicies(strings.NewReader(`{
		"attempt_timeout": "2s",
		"hosts": {
			"fraud.internal": {"attempt_timeout": "150ms", "deadline": "1300ms"}
		}
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	transport := &retrip.Transport{Policy: policy, Hosts: hosts}
	fraud, err := transport.PolicyFor("fraud.internal:443")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(fraud.AttemptTimeout, transport.Validate(), transport.Advice())

	_, _, err = retrip.LoadPolicies(strings.NewReader("{\n  \"attempt_timout\": \"2s\"\n}"))
	fmt.Println(strings.SplitAfter(err.Error(), ";")[0])
	// Output:
	// 150ms <nil> []
	// retrip: line 2: attempt_timout: there is no such field;
}

func ExampleParseRetryAfter() {
	header := http.Header{
		"Date":        {"Fri, 02 Jan 2026 03:04:05 GMT"}, // the server's clock may be wrong
		"Retry-After": {"Fri, 02 Jan 2026 03:04:35 GMT"},
	}
	wait, ok := retrip.ParseRetryAfter(header, time.Now())
	fmt.Println(wait, ok)
	// Output: 30s true
}

// AttemptTimeout ends an attempt that hangs, and Deadline bounds attempts and waits
// together. A wait that can't end in time isn't begun, and neither cuts a body.
func ExamplePolicy_timeouts() {
	var calls atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("/hangs-once", func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			<-r.Context().Done()
		}
	})
	mux.HandleFunc("/come-back-later", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "20")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	client := &http.Client{Transport: &retrip.Transport{Policy: retrip.Policy{
		AttemptTimeout: 200 * time.Millisecond,
		Deadline:       10 * time.Second,
	}}}
	for _, path := range []string{"/hangs-once", "/come-back-later"} {
		resp, err := client.Get(server.URL + path)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(path, resp.StatusCode)
	}
	// Output:
	// /hangs-once 200
	// /come-back-later 503
}

// Without a key, a POST isn't repeated after a status that leaves open whether it was
// processed. With one, the server recognizes the second request.
func ExamplePolicy_idempotencyKey() {
	keys := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if keys[r.Header.Get("Idempotency-Key")]++; len(keys) == 1 && keys[r.Header.Get("Idempotency-Key")] == 1 {
			w.WriteHeader(http.StatusGatewayTimeout)
		}
	}))
	defer server.Close()
	client := &http.Client{Transport: &retrip.Transport{Policy: retrip.Policy{IdempotencyKey: retrip.On}}}
	resp, err := client.Post(server.URL, "text/plain", strings.NewReader("10 EUR"))
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	for _, requests := range keys {
		fmt.Printf("%d: one key, %d requests\n", resp.StatusCode, requests)
	}
	// Output: 200: one key, 2 requests
}

// While a host is down, its breaker refuses requests at once.
func ExampleBreaker() {
	server := failing(1000, http.StatusServiceUnavailable)
	defer server.Close()
	client := &http.Client{Transport: &retrip.Transport{Policy: retrip.Policy{
		MaxAttempts: 1,
		Breaker:     retrip.Breaker{Ratio: 0.5, MinVolume: 5},
	}}}
	for range 6 {
		resp, err := client.Get(server.URL)
		var failure *retrip.Error
		if errors.As(err, &failure) {
			fmt.Println(failure.Reason, "after", failure.Attempts, "attempts")
			return
		}
		resp.Body.Close()
	}
	// Output: breaker_open after 0 attempts
}

func ExampleMetrics() {
	server := failing(1, http.StatusServiceUnavailable)
	defer server.Close()
	metrics := &retrip.Metrics{}
	registry := prometheus.NewRegistry() // for promhttp.HandlerFor
	registry.MustRegister(metrics)
	client := &http.Client{Transport: &retrip.Transport{Metrics: metrics}}
	resp, err := client.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, family := range families {
		for _, metric := range family.Metric {
			if n := metric.GetCounter().GetValue(); n > 0 && family.GetName() == "retrip_retries_total" {
				fmt.Println(family.GetName(), metric.GetLabel()[1].GetValue(), n)
			}
		}
	}
	// Output: retrip_retries_total server_error 1
}

// answers is a Base that gives the answers in turn, and then the last one again. Each is a
// status and, after a colon, a body.
type answers []string

func (a *answers) RoundTrip(req *http.Request) (*http.Response, error) {
	var status int
	body := (*a)[0]
	if _, err := fmt.Sscan(body[:3], &status); err != nil {
		return nil, err
	}
	if len(*a) > 1 {
		*a = (*a)[1:]
	}
	resp := &http.Response{StatusCode: status, Header: http.Header{}, Request: req,
		Body: io.NopCloser(strings.NewReader(strings.TrimPrefix(body[3:], ":")))}
	if status == http.StatusTooManyRequests {
		resp.Header.Set("Retry-After", "20")
	}
	return resp, nil
}

// Some services report an error inside a 200.
func ExamplePolicy_classify() {
	client := &http.Client{Transport: &retrip.Transport{
		Base: &answers{`200:{"error": "overloaded"}`, `200:{"items": []}`},
		Policy: retrip.Policy{Classify: func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
			if resp != nil && resp.StatusCode == http.StatusOK {
				if begin, err := retrip.Peek(resp, 100); err == nil && bytes.Contains(begin, []byte(`"error"`)) {
					return retrip.Retryable
				}
			}
			return retrip.ByRule
		}},
	}}
	resp, err := client.Get("http://api.example.com/items")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Println(string(body), err)
	// Output: {"items": []} <nil>
}

// When a host refuses a request, new ones wait too. Here that is too long for them.
func ExampleGate() {
	client := &http.Client{Transport: &retrip.Transport{
		Base:   &answers{"429"}, // with a Retry-After of 20 s
		Policy: retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, MaxWait: 5 * time.Second},
	}}
	for range 2 {
		resp, err := client.Get("http://api.example.com/items")
		var failure *retrip.Error
		if errors.As(err, &failure) {
			fmt.Println(failure.Reason, "after", failure.Attempts, "attempts")
			return
		}
		fmt.Println(resp.StatusCode)
		resp.Body.Close()
	}
	// Output:
	// 429
	// wait_too_long after 0 attempts
}

// At level Debug, the log has a record of each retry.
func ExampleTransport_logger() {
	client := &http.Client{Transport: &retrip.Transport{
		Base:   &answers{"503", "200"},
		Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}},
		Logger: slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: withoutTime})),
	}}
	resp, err := client.Get("http://api.example.com/items?token=secret")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	// Output:
	// level=DEBUG msg="retrip: retry" method=GET url=http://api.example.com/items policy=default attempt=1 reason=server_error status=503 wait=0s
	// level=INFO msg="retrip: recovered" method=GET url=http://api.example.com/items policy=default attempt=2 reason=server_error status=200
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// A record of each retry, at a level and in words of your own.
func ExampleTrace() {
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	client := &http.Client{Transport: &retrip.Transport{
		Base:   &answers{"503", "200"},
		Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}},
		Trace: &retrip.Trace{Retry: func(e retrip.Event) {
			log.WarnContext(e.Request.Context(), "retry", "url", e.URL(), "attempt", e.Attempt,
				"reason", e.Reason, "status", e.StatusCode, "wait", e.Wait)
		}},
	}}
	resp, err := client.Get("http://user:password@api.example.com/items?token=secret")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	// Output: level=WARN msg=retry url=http://api.example.com/items attempt=1 reason=server_error status=503 wait=0s
}
