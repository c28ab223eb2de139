// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// P16: a first attempt that succeeds is the caller's own request and allocates
// nothing, even while another host is in trouble.
func TestAllocations(t *testing.T) {
	type key int
	deep := t.Context()
	for i := range 10 {
		deep = context.WithValue(deep, key(i), i)
	}
	deadline, cancel := context.WithTimeout(deep, time.Hour)
	defer cancel()
	post := request(t, "POST", strings.NewReader("body"))
	require.NotNil(t, post.GetBody)
	for _, tt := range []struct {
		name   string
		req    *http.Request
		status int
	}{
		{"GET", request(t, "GET", nil), 200},
		{"HEAD", request(t, "HEAD", nil), 200},
		{"POST with GetBody", post, 200},
		{"deep context", request(t, "GET", nil).WithContext(deep), 200},
		{"deadline", request(t, "GET", nil).WithContext(deadline), 200},
		{"404", request(t, "GET", nil), 404},
	} {
		for _, setUp := range []struct {
			name string
			tr   *retrip.Transport
		}{
			{"zero", &retrip.Transport{}},
			{"metrics", &retrip.Transport{Metrics: retrip.NewMetrics()}},
			{"hosts", &retrip.Transport{Metrics: retrip.NewMetrics(), Hosts: map[string]retrip.Policy{"*.com": {MaxAttempts: 2}, "api.example.com:80": {}}}},
			{"breaker and gate", &retrip.Transport{Policy: retrip.Policy{Gate: retrip.On, Breaker: retrip.Breaker{Ratio: .5}}}},
			{"dialects", &retrip.Transport{Policy: retrip.Policy{Dialects: []string{"github", "openai"}}}},
		} {
			for _, trouble := range []bool{false, true} {
				resp := &http.Response{StatusCode: tt.status, Body: http.NoBody}
				var got *http.Request
				down := &http.Response{StatusCode: 500, Body: http.NoBody}
				tr := &retrip.Transport{Policy: setUp.tr.Policy, Hosts: setUp.tr.Hosts, Metrics: setUp.tr.Metrics, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
					if r.URL.Host == "elsewhere.org" {
						return down, nil
					}
					got = r
					return resp, nil
				})}
				if trouble {
					_, err := tr.RoundTrip(mustRequest(t, "GET", "http://elsewhere.org", nil).WithContext(retrip.WithPolicy(t.Context(), retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}})))
					require.NoError(t, err)
					require.NotEmpty(t, tr.HostStates())
				}
				n := testing.AllocsPerRun(100, func() {
					if _, err := tr.RoundTrip(tt.req); err != nil {
						t.Error(err)
					}
				})
				assert.Zero(t, n, "%s, %s, trouble elsewhere %v", tt.name, setUp.name, trouble)
				assert.Same(t, tt.req, got)
			}
		}
	}
}
