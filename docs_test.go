// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestREADME_NamesEveryField(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Policy]()) {
		assert.Contains(t, string(readme), "| `"+f.Name+"` |", "the table of defaults")
	}
	descriptions := NewMetrics()
	for _, name := range regexp.MustCompile(`retrip_[a-z_]+`).FindAllString(string(readme), -1) {
		assert.Contains(t, metricNames(t, descriptions), name)
	}
	for _, reason := range append(append([]Reason{}, retryReasons...), giveUpReasons...) {
		assert.Contains(t, string(readme), string(reason))
	}
}

func metricNames(t *testing.T, m *Metrics) string {
	t.Helper()
	descs := make(chan *prometheus.Desc, 100)
	m.Describe(descs)
	close(descs)
	var names []string
	for d := range descs {
		names = append(names, d.String())
	}
	return strings.Join(names, "\n")
}
