// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/shed"
)

// Metric names and label values that dashboards use and docs/shed.md lists.
func TestMetrics_Names(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(&shed.Handler{Limit: 1}))
	families, err := registry.Gather()
	require.NoError(t, err)
	docs, err := os.ReadFile("../docs/shed.md")
	require.NoError(t, err)
	var got []string
	for _, family := range families {
		var values []string
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				values = append(values, label.GetName()+"="+label.GetValue())
				assert.Contains(t, string(docs), label.GetValue())
			}
		}
		slices.Sort(values)
		got = append(got, fmt.Sprint(family.GetName(), " ", family.GetType(), " ", values))
		assert.Contains(t, string(docs), "`"+family.GetName()+"`")
	}
	assert.Equal(t, []string{
		"retrip_shed_limit GAUGE []",
		"retrip_shed_queue_seconds HISTOGRAM []",
		"retrip_shed_refused_total COUNTER [reason=canceled reason=deadline reason=queue_time reason=retry]",
		"retrip_shed_requests_total COUNTER [attempt=1 attempt=2 attempt=3 attempt=4 attempt=5+]",
		"retrip_shed_running_requests GAUGE []",
		"retrip_shed_waiting_requests GAUGE []",
	}, got)
}
