// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/retrip/retrip"
)

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

// In searches, one request in twenty may get a second attempt, if the first one takes
// longer than nearly all others.
func ExamplePolicy_hedge() {
	transport := &retrip.Transport{
		Policy: retrip.Policy{AttemptTimeout: 2 * time.Second},
		Hosts:  map[string]retrip.Policy{"search.internal": {Hedge: 0.05}},
		Trace:  &retrip.Trace{Hedge: func(e retrip.Event) { fmt.Println("a hedge has", e.Reason, "after", e.Wait) }},
	}
	for _, host := range []string{"search.internal:443", "api.example.com:443"} {
		p, err := transport.PolicyFor(host)
		fmt.Println(host, p.Hedge, err)
	}
	// Output:
	// search.internal:443 0.05 <nil>
	// api.example.com:443 0 <nil>
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
