// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package play

import (
	"fmt"
	"sort"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// Counted returns all series of m that are not zero, as "name{values} value".
func Counted(t testing.TB, m *retrip.Metrics) []string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(m))
	families, err := reg.Gather()
	require.NoError(t, err)
	var lines []string
	for _, f := range families {
		for _, s := range f.Metric {
			var labels []string
			for _, l := range s.Label {
				if l.GetName() == "policy" {
					labels = append([]string{l.GetValue()}, labels...)
				} else {
					labels = append(labels, l.GetValue())
				}
			}
			value := s.GetCounter().GetValue() + s.GetGauge().GetValue()
			if h := s.GetHistogram(); h != nil {
				value = float64(h.GetSampleCount())
			}
			if value != 0 {
				lines = append(lines, fmt.Sprintf("%s{%s} %g", strings.TrimPrefix(f.GetName(), "retrip_"), strings.Join(labels, ","), value))
			}
		}
	}
	sort.Strings(lines)
	return lines
}

// Sums holds the series of one policy: the sum of each metric, and each series
// by metric and label.
type Sums map[string]float64

// Gather returns the metrics of m, by policy.
func Gather(t testing.TB, m *retrip.Metrics) map[string]Sums {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(m))
	families, err := registry.Gather()
	require.NoError(t, err)
	all := map[string]Sums{}
	for _, family := range families {
		name := strings.TrimPrefix(family.GetName(), "retrip_")
		for _, metric := range family.Metric {
			var policy, word string
			for _, label := range metric.Label {
				if label.GetName() == "policy" {
					policy = label.GetValue()
				} else {
					word = label.GetValue()
				}
			}
			value := metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			if all[policy] == nil {
				all[policy] = Sums{}
			}
			all[policy][name] += value
			all[policy][name+" "+word] = value
		}
	}
	return all
}
