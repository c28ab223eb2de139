// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"cmp"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

// got is a request as the server received it.
type got struct {
	at     time.Time
	method string
	path   string
	host   string
	header http.Header
	body   string
}

// api is a server in memory that serves every host.
type api struct {
	*memhttp.Server
	t *testing.T

	mu   sync.Mutex
	seen []got
}

// newAPI returns a server with the handler serve, which also gets the number of
// the request, counted from 1.
func newAPI(t *testing.T, serve func(n int, w http.ResponseWriter, r *http.Request)) *api {
	a := &api{t: t}
	a.Server = memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		a.mu.Lock()
		a.seen = append(a.seen, got{time.Now(), r.Method, r.URL.Path, r.Host, r.Header.Clone(), string(body)})
		n := len(a.seen)
		a.mu.Unlock()
		serve(n, w, r)
	}))
	return a
}

func (a *api) requests() []got {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen
}

// gap returns the time between request n and the next one, counted from 1.
func (a *api) gap(n int) time.Duration {
	seen := a.requests()
	return seen[n].at.Sub(seen[n-1].at)
}

// base returns a RoundTripper that reaches the server, for https too.
func (a *api) base() http.RoundTripper { return plain{a.Transport()} }

// plain sends https requests without TLS.
type plain struct{ base http.RoundTripper }

func (p plain) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Scheme = "http"
	return p.base.RoundTrip(req)
}

// answer sets headers, and writes a status and a body.
func answer(w http.ResponseWriter, status int, body string, header ...string) {
	for i := 0; i < len(header); i += 2 {
		w.Header().Set(header[i], header[i+1])
	}
	w.WriteHeader(status)
	io.WriteString(w, body)
}

func post(t *testing.T, client *http.Client, url, body string) (*http.Response, string) {
	t.Helper()
	return do(t, client, play.MustRequest(t, http.MethodPost, url, strings.NewReader(body)))
}

func get(t *testing.T, client *http.Client, url string) (*http.Response, string) {
	t.Helper()
	return do(t, client, play.MustRequest(t, http.MethodGet, url, nil))
}

func do(t *testing.T, client *http.Client, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := client.Do(req)
	require.NoError(t, err)
	return resp, play.Finish(t, resp)
}

func TestRecipesAreValid(t *testing.T) {
	for name, client := range map[string]*http.Client{
		"LLMs": LLMs(nil), "GitHub": GitHub(nil), "Payments": Payments(nil), "Slack": Slack(nil), "Discord": Discord(nil), "ObjectStore": ObjectStore(nil, nil),
		"Scraper": Scraper(nil), "Mesh": Mesh(nil), "Deploy": Deploy(nil, 100), "Downloader": Downloader(nil), "OAuth2": OAuth2(nil, nil), "Connect": Connect(nil), "Webhooks": Webhooks(nil), "Poll": Poll(nil), "GraphQL": GraphQL(nil),
	} {
		transport := client.Transport.(*retrip.Transport)
		assert.NoError(t, transport.Validate(), name)
		if name == "Poll" { // it asks until the Deadline
			continue
		}
		assert.Empty(t, transport.Advice(), name)
		for _, p := range append(slices.Collect(maps.Values(transport.Hosts)), transport.Policy) {
			assert.Positive(t, cmp.Or(p.Deadline, transport.Policy.Deadline), name)
			if name != "Poll" { // whose Deadline says how often to ask
				assert.Positive(t, cmp.Or(p.AttemptTimeout, transport.Policy.AttemptTimeout), name)
			}
		}
	}
}
