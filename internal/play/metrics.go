// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package play

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// series is one time series of retrip's metrics.
type series struct {
	name, policy string
	words        []string // the other labels
	gauge        bool
	value        float64
}

func gather(t testing.TB, m *retrip.Metrics) (all []series) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(m))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, metric := range family.Metric {
			s := series{name: strings.TrimPrefix(family.GetName(), "retrip_")}
			for _, label := range metric.Label {
				if label.GetName() == "policy" {
					s.policy = label.GetValue()
				} else {
					s.words = append(s.words, label.GetValue())
				}
			}
			s.gauge = metric.Gauge != nil
			s.value = metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			all = append(all, s)
		}
	}
	return all
}

// Counted returns all series of m that are not zero, as "name{values} value".
func Counted(t testing.TB, m *retrip.Metrics) (lines []string) {
	t.Helper()
	for _, s := range gather(t, m) {
		if s.value != 0 {
			lines = append(lines, fmt.Sprintf("%s{%s} %g", s.name, strings.Join(append([]string{s.policy}, s.words...), ","), s.value))
		}
	}
	slices.Sort(lines)
	return lines
}

// Meter tells how metrics change.
type Meter struct {
	Metrics *retrip.Metrics
	before  map[string]float64
}

// Changes returns what has changed since the last call: "name{word}+n" for what is
// counted, and "name=value" for a gauge.
func (m *Meter) Changes(t testing.TB) (changes []string) {
	t.Helper()
	now := map[string]float64{}
	for _, s := range gather(t, m.Metrics) {
		name := strings.TrimSuffix(s.name, "_total")
		if len(s.words) > 0 {
			name += "{" + strings.Join(s.words, ",") + "}"
		}
		now[name] = s.value
		switch before := m.before[name]; {
		case s.value == before:
		case s.gauge:
			changes = append(changes, fmt.Sprintf("%s=%.4g", name, s.value))
		default:
			changes = append(changes, fmt.Sprintf("%s+%g", name, s.value-before))
		}
	}
	m.before = now
	slices.Sort(changes)
	return changes
}

// Sums holds the series of one policy: the sum of each metric, and each series
// by metric and other label.
type Sums map[string]float64

// Gather returns the metrics of m, by policy.
func Gather(t testing.TB, m *retrip.Metrics) map[string]Sums {
	t.Helper()
	all := map[string]Sums{}
	for _, s := range gather(t, m) {
		if all[s.policy] == nil {
			all[s.policy] = Sums{}
		}
		all[s.policy][s.name] += s.value
		for _, word := range s.words {
			all[s.policy][s.name+" "+word] = s.value
		}
	}
	return all
}
