// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// collector collects the waits of a Policy.
type collector struct{ *Policy }

func (collector) Describe(chan<- *prometheus.Desc)      {}
func (w collector) Collect(ch chan<- prometheus.Metric) { w.waits.collect(ch) }

// Whatever the waits, a native histogram has a bounded number of buckets and
// loses no observation.
func TestMetrics_NativeHistogramIsBounded(t *testing.T) {
	plain := func(context.Context) prometheus.Labels { return nil }
	p := New("x", plain, &Words{Retries: {"error"}}, nil)
	const retries = 10_000
	for i := range retries {
		wait := time.Duration(math.Pow(1.004, float64(i%9900)))
		p.Retry(t.Context(), "error", wait, false)
	}
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(collector{p}))
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	h := families[0].Metric[0].GetHistogram()
	assert.EqualValues(t, retries, h.GetSampleCount())
	var buckets uint32
	for _, span := range h.PositiveSpan {
		buckets += span.GetLength()
	}
	assert.Greater(t, buckets, uint32(20))
	assert.LessOrEqual(t, buckets, uint32(160))
}
