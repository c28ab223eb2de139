// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
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

// freeAddress returns an address for a Prometheus, which doesn't report the
// port it gets for port 0. It avoids the range that systems assign to outgoing
// sockets, because such a port may be taken before Prometheus listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	const first, ports = 28_000, 4000
	for i := range ports {
		address := fmt.Sprintf("127.0.0.1:%d", first+(os.Getpid()*131+i)%ports)
		if listener, err := net.Listen("tcp", address); err == nil {
			require.NoError(t, listener.Close())
			return address
		}
	}
	require.FailNow(t, "no free port")
	return ""
}

// server is a running Prometheus.
type server struct{ url string }

// startServer starts a Prometheus that scrapes target and evaluates alerts.yml.
func startServer(t *testing.T, target string, flags ...string) *server {
	t.Helper()
	prometheus := find(t, "prometheus")
	alerts, err := filepath.Abs("alerts.yml")
	require.NoError(t, err)
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
global: {scrape_interval: 250ms, evaluation_interval: 250ms}
rule_files: [%q]
scrape_configs:
  - job_name: program
    static_configs: [{targets: [%q]}]
`, alerts, strings.TrimPrefix(target, "http://")), 0o600))

	address := freeAddress(t)
	var log bytes.Buffer
	cmd := exec.Command(prometheus, append([]string{
		"--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address, "--log.level=warn",
	}, flags...)...)
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("%s", log.String())
		}
	})
	s := &server{"http://" + address}
	require.Eventually(t, func() bool {
		resp, err := http.Get(s.url + "/-/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, 30*time.Second, 50*time.Millisecond, "prometheus is not ready")
	return s
}

// get returns the data of an API response.
func (s *server) get(t *testing.T, path string, params url.Values, data any) {
	t.Helper()
	resp, err := http.Get(s.url + "/api/v1/" + path + "?" + params.Encode())
	require.NoError(t, err)
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
		Warnings      []string
	}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&answer))
	require.Equal(t, "success", answer.Status, "%s: %s", params, answer.Error)
	require.Empty(t, answer.Warnings, "%s", params)
	require.NoError(t, json.Unmarshal(answer.Data, data))
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
