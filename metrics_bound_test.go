// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whatever the waits, a native histogram has a bounded number of buckets and
// loses no observation.
func TestMetrics_NativeHistogramIsBounded(t *testing.T) {
	m, r := NewMetrics(), &Rules{name: "x"}
	m.hold([]*Rules{r})
	const waits = 10_000
	for i := range waits {
		wait := time.Duration(math.Pow(1.004, float64(i%9900)))
		r.metrics.Retry(context.Background(), string(ReasonError), wait, false)
	}
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(*r.metrics.Waits.Series.Load()))
	families, err := registry.Gather()
	require.NoError(t, err)
	h := families[0].Metric[0].GetHistogram()
	assert.EqualValues(t, waits, h.GetSampleCount())
	var buckets uint32
	for _, span := range h.PositiveSpan {
		buckets += span.GetLength()
	}
	assert.Greater(t, buckets, uint32(20))
	assert.LessOrEqual(t, buckets, uint32(160))
}
