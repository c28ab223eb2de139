// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/fleet"
	"github.com/retrip/retrip/internal/testenv"
)

type storeFunc = fleet.StoreFunc

var fixedStore, hangingStore = fleet.FixedStore, fleet.HangingStore

func opened(t *testing.T, store storeFunc) *retrip.Fleet {
	t.Helper()
	f := retrip.NewFleet(store)
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	return f
}

// get makes a request, and doesn't read the response.
func get(t *testing.T, rt http.RoundTripper, url string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := rt.RoundTrip(req)
	if resp != nil {
		resp.Body.Close()
	}
	return resp, err
}

func answer(r *http.Request, status int) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}
}

func alwaysAnswers(status int) testenv.RoundTripper {
	return func(r *http.Request) (*http.Response, error) { return answer(r, status), nil }
}

var steady = retrip.Policy{Backoff: retrip.Backoff{Base: 100 * time.Millisecond, Cap: 100 * time.Millisecond, Jitter: retrip.NoJitter}}

// gathered returns the counters of m, one per line, without help texts.
func gathered(t *testing.T, m *retrip.Metrics) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	require.NoError(t, err)
	var b strings.Builder
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, pair := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", pair.GetName(), pair.GetValue()))
			}
			if m.GetCounter() != nil {
				fmt.Fprintf(&b, "%s{%s} %v\n", family.GetName(), strings.Join(labels, ","), m.GetCounter().GetValue())
			}
		}
	}
	return b.String()
}
