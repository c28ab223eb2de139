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
	read := func(file string) string {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return string(text)
	}
	readme, policy, metrics := read("README.md"), read("docs/policy.md"), read("docs/metrics.md")
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Policy]()) {
		assert.Contains(t, policy, "| `"+f.Name+"` |", "the table of defaults")
	}
	for _, reason := range giveUpReasons {
		assert.Contains(t, policy, "`"+string(reason)+"`")
	}
	for _, reason := range retryReasons {
		assert.Contains(t, metrics, "`"+string(reason)+"`")
	}
	names := metricNames(t, NewMetrics())
	for _, name := range regexp.MustCompile(`retrip_[a-z_]+`).FindAllString(readme+policy, -1) {
		assert.Contains(t, names, name)
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
