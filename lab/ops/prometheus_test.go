// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// find returns the path of a program, or skips the test if it isn't installed.
func find(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("there is no %s here: on Debian, apt-get install --no-install-recommends prometheus", name)
	}
	return path
}

// server is a Prometheus of a test.
type server struct{ *Server }

// startServer starts a Prometheus that scrapes target and evaluates alerts.yml.
func startServer(t *testing.T, target string, flags ...string) *server {
	t.Helper()
	find(t, "prometheus")
	alerts, err := filepath.Abs("alerts.yml")
	require.NoError(t, err)
	s, err := Start(t.Context(), t.TempDir(), alerts, "program", 250*time.Millisecond, []string{target}, flags...)
	require.NoError(t, err)
	t.Cleanup(func() {
		if <-s.Done; t.Failed() {
			t.Logf("%s", s.Log.String())
		}
	})
	return &server{s}
}

// get returns the data of an API response.
func (s *server) get(t *testing.T, path string, params url.Values, data any) {
	t.Helper()
	require.NoError(t, s.Get(t.Context(), path, params, data))
}

// vector is the result of a query: values by labels, such as "policy=a
// reason=b", without job and instance.
type vector map[string]float64

// query evaluates expr as of the given time.
func (s *server) query(t *testing.T, expr string, at time.Time) vector {
	t.Helper()
	var data struct {
		ResultType string
		Result     []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	s.get(t, "query", url.Values{"query": {expr}, "time": {strconv.FormatFloat(float64(at.UnixMilli())/1000, 'f', 3, 64)}}, &data)
	require.Equal(t, "vector", data.ResultType, expr)
	v := vector{}
	for _, sample := range data.Result {
		var labels []string
		for name, value := range sample.Metric {
			if name != "job" && name != "instance" && name != "__name__" {
				labels = append(labels, name+"="+value)
			}
		}
		slices.Sort(labels)
		text, _ := sample.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		require.NoError(t, err, "%s: %v", expr, sample)
		v[strings.Join(labels, " ")] = value
	}
	return v
}
