// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/PuerkitoBio/rehttp"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/gojek/heimdall/v7"
	"github.com/gojek/heimdall/v7/httpclient"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/ybbus/httpretry"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// The libraries, by the names in docs/migrating.md.
const (
	goRetryable = "go-retryablehttp"
	reHTTP      = "rehttp"
	failsafeGo  = "failsafe-go"
	heimdallLib = "heimdall"
	httpRetry   = "httpretry"
	ours        = "retrip"
)

type doer interface {
	Do(*http.Request) (*http.Response, error)
}

// clients creates each library's client with its defaults, or as its
// documentation begins if there is no default for the retries or their
// condition.
var clients = map[string]func(base http.RoundTripper) doer{
	goRetryable: func(base http.RoundTripper) doer {
		c := retryablehttp.NewClient()
		c.HTTPClient.Transport = base
		c.Logger = nil
		return c.StandardClient()
	},
	reHTTP: func(base http.RoundTripper) doer {
		return &http.Client{Transport: rehttp.NewTransport(base,
			rehttp.RetryAll(rehttp.RetryMaxRetries(3), rehttp.RetryStatusInterval(500, 600)),
			rehttp.ConstDelay(time.Second))}
	},
	failsafeGo: func(base http.RoundTripper) doer {
		return &http.Client{Transport: failsafehttp.NewRoundTripper(base, failsafehttp.NewRetryPolicyBuilder().Build())}
	},
	heimdallLib: func(base http.RoundTripper) doer {
		backoff := heimdall.NewConstantBackoff(2*time.Second, time.Millisecond)
		return httpclient.NewClient(
			httpclient.WithHTTPClient(&http.Client{Transport: base}),
			httpclient.WithRetrier(heimdall.NewRetrier(backoff)),
			httpclient.WithRetryCount(4))
	},
	httpRetry: func(base http.RoundTripper) doer {
		return httpretry.NewCustomClient(&http.Client{Transport: base})
	},
	ours: func(base http.RoundTripper) doer { return &http.Client{Transport: &retrip.Transport{Base: base}} },
}

// answer is one answer of a scripted server.
type answer struct {
	status int
	header http.Header
	body   io.Reader
}

// server is a base that answers from a script, repeats the last answer, and
// records what it gets.
type server struct {
	script []answer
	at     []time.Duration // times of the attempts
	bodies []string
	given  []*body
	opened time.Time
	arrive func() // runs when an attempt arrives, before its body is read
	closed int    // calls of CloseIdleConnections
}

type body struct {
	io.Reader
	read   int64
	closed bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.read += int64(n)
	return n, err
}

func (b *body) Close() error { b.closed = true; return nil }

func (s *server) CloseIdleConnections() { s.closed++ }

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.arrive != nil {
		s.arrive()
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if r.Body != nil {
		sent, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		s.bodies = append(s.bodies, string(sent))
		r.Body.Close()
	}
	a := s.script[min(len(s.at), len(s.script)-1)]
	s.at = append(s.at, time.Since(s.opened))
	content := a.body
	if content == nil {
		content = strings.NewReader("no")
	}
	b := &body{Reader: content}
	s.given = append(s.given, b)
	header := a.header
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: a.status, Header: header, Body: b, Request: r, ProtoMajor: 1, ProtoMinor: 1}, nil
}

// scene runs f for each library, in a bubble of its own, with a server that
// follows the script, and compares the observation of f with the claim about
// the library, and the claims with the documentation.
func scene[T any](t *testing.T, claims map[string]T, script func() []answer, f func(t *testing.T, c doer, s *server) T) {
	t.Helper()
	documented(t, claims)
	observe(t, claims, script, f)
}

// observe is scene without the documentation.
func observe[T any](t *testing.T, claims map[string]T, script func() []answer, f func(t *testing.T, c doer, s *server) T) {
	t.Helper()
	for name, want := range claims {
		play.Bubble(t, name, func(t *testing.T) {
			s := &server{script: script(), opened: time.Now()}
			got := f(t, clients[name](s), s)
			assert.Equal(t, want, got)
		})
	}
}

// always is the script of a server with a single answer.
func always(status int, header ...string) func() []answer {
	return func() []answer {
		h := http.Header{}
		for i := 0; i < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		return []answer{{status: status, header: h}}
	}
}

// then is the script of a first answer followed by 200.
func then(status int, header ...string) func() []answer {
	return func() []answer { return append(always(status, header...)(), answer{status: 200}) }
}

// thenBody is the script of a first answer with a long body, followed by 200.
func thenBody(status int, size int64) func() []answer {
	return func() []answer {
		return []answer{{status: status, body: io.LimitReader(play.Zeros{}, size)}, {status: 200}}
	}
}

func request(t *testing.T, method string, content io.Reader) *http.Request {
	t.Helper()
	return play.MustRequest(t, method, "http://api.example.com/", content)
}

// get makes a GET that is answered.
func get(t *testing.T, c doer) {
	t.Helper()
	_, err := do(c, request(t, http.MethodGet, nil))
	require.NoError(t, err)
}

// do makes a request and returns the status, or 0 for an error.
func do(c doer, req *http.Request) (int, error) {
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return resp.StatusCode, nil
}
