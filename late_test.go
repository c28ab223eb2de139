// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// Whatever else is called first, the fields count that a Transport has at its first
// request.
func TestTransport_FieldsUntilTheFirstRequest(t *testing.T) {
	for name, call := range map[string]func(*retrip.Transport){
		"HostStates":           func(tr *retrip.Transport) { assert.Empty(t, tr.HostStates()) },
		"HostState":            func(tr *retrip.Transport) { _, _ = tr.HostState("example.com:80") },
		"PolicyFor":            func(tr *retrip.Transport) { _, _ = tr.PolicyFor("example.com:80") },
		"Policies":             func(tr *retrip.Transport) { _, _, _ = tr.Policies() },
		"SetPolicies":          func(tr *retrip.Transport) { require.NoError(t, tr.SetPolicies(retrip.Policy{MaxAttempts: 3}, nil)) },
		"CloseIdleConnections": (*retrip.Transport).CloseIdleConnections,
		"Validate":             func(tr *retrip.Transport) { require.NoError(t, tr.Validate()) },
		"Advice":               func(tr *retrip.Transport) { tr.Advice() },
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			never := play.Base(play.Err(http.ErrNotSupported))
			other := &retrip.Metrics{}
			tr := &retrip.Transport{Base: never, Metrics: other}
			call(tr)
			var log bytes.Buffer
			hooks := 0
			base := play.Base(play.Reply(503))
			tr.Base, tr.Metrics, tr.Logger = base, &retrip.Metrics{}, slog.New(slog.NewTextHandler(&log, nil))
			tr.Trace = &retrip.Trace{Attempt: func(retrip.Event) { hooks++ }}
			tr.Policy.MaxAttempts = 3
			play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
			assert.Equal(t, 3, base.Attempts())
			assert.Zero(t, never.Attempts())
			assert.Equal(t, 3, hooks)
			assert.Contains(t, log.String(), "give up")
			assert.Equal(t, 1.0, sumOf(t, tr.Metrics, "retrip_requests_total"))
			assert.Zero(t, sumOf(t, other, "retrip_requests_total"))
			assert.NoError(t, tr.Validate())
		})
	}
}

func sumOf(t *testing.T, m *retrip.Metrics, name string) (sum float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, series := range f.GetMetric() {
			if f.GetName() == name {
				sum += series.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// What changes too late is no secret.
func TestTransport_FieldsAfterTheFirstRequest(t *testing.T) {
	deaf := testenv.RoundTripper(play.Reply(200)) // can't be compared
	for name, tt := range map[string]struct {
		base   http.RoundTripper
		change func(*retrip.Transport)
		want   string // a part of the error; empty for none
	}{
		"nothing":            {nil, func(*retrip.Transport) {}, ""},
		"Base":               {nil, func(tr *retrip.Transport) { tr.Base = play.Base(play.Reply(200)) }, "retrip: Base was changed after the first request"},
		"Base of other type": {nil, func(tr *retrip.Transport) { tr.Base = deaf }, "retrip: Base was"},
		"Base, incomparable": {deaf, func(tr *retrip.Transport) { tr.Base = nil }, "retrip: Base was"},
		"Fleet":              {deaf, func(tr *retrip.Transport) { tr.Fleet = retrip.NewFleet(nil) }, "retrip: Fleet was"},
		"Metrics":            {nil, func(tr *retrip.Transport) { tr.Metrics = &retrip.Metrics{} }, "retrip: Metrics was"},
		"Logger":             {nil, func(tr *retrip.Transport) { tr.Logger = slog.Default() }, "retrip: Logger was"},
		"Trace":              {nil, func(tr *retrip.Transport) { tr.Trace = &retrip.Trace{} }, "retrip: Trace was"},
		"Durations":          {nil, func(tr *retrip.Transport) { tr.Metrics.Durations = []string{} }, "retrip: Metrics.Durations was"},
		"Policy":             {nil, func(tr *retrip.Transport) { tr.Policy.RetryOn = []int{404} }, "call SetPolicies"},
		"a hook of Policy":   {nil, func(tr *retrip.Transport) { tr.Policy.Classify = nil }, "call SetPolicies"},
		"Hosts":              {nil, func(tr *retrip.Transport) { tr.Hosts["example.com"] = retrip.Policy{MaxAttempts: 2} }, "call SetPolicies"},
		"SetPolicies":        {nil, func(tr *retrip.Transport) { require.NoError(t, tr.SetPolicies(retrip.Policy{MaxAttempts: 2}, nil)) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			classify := func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.ByRule }
			tr := &retrip.Transport{Base: tt.base, Metrics: &retrip.Metrics{}, Policy: retrip.Policy{Classify: classify}, Hosts: map[string]retrip.Policy{}}
			if tr.Base == nil {
				tr.Base = play.Base(play.Reply(200))
			}
			testutil.CollectAndCount(tr.Metrics)
			play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
			tt.change(tr)
			if tt.want == "" {
				assert.NoError(t, tr.Validate())
			} else {
				assert.ErrorContains(t, tr.Validate(), tt.want)
			}
		})
	}
}
