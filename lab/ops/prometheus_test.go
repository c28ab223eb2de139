// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// server is a running Prometheus.
type server struct {
	url  string
	done chan struct{} // closed when it has ended
	log  bytes.Buffer  // complete then
}

// startServer starts a Prometheus that scrapes target and evaluates alerts.yml.
func startServer(t *testing.T, target string, flags ...string) *server {
	t.Helper()
	path, dir := find(t, "prometheus"), t.TempDir()
	alerts, err := filepath.Abs("alerts.yml")
	require.NoError(t, err)
	config := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
global: {scrape_interval: 250ms, evaluation_interval: 250ms}
rule_files: [%q]
scrape_configs:
  - job_name: program
    static_configs: [{targets: [%q]}]
`, alerts, strings.TrimPrefix(target, "http://")), 0o600))
	address, err := freeAddress()
	require.NoError(t, err)
	s := &server{url: "http://" + address, done: make(chan struct{})}
	cmd := exec.CommandContext(t.Context(), path, append([]string{
		"--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address, "--log.level=warn",
	}, flags...)...)
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	if runtime.GOOS != "windows" { // where no process can be interrupted
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	}
	cmd.WaitDelay = 5 * time.Second // after that it is killed
	require.NoError(t, cmd.Start())
	go func() {
		defer close(s.done)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		if <-s.done; t.Failed() {
			t.Logf("%s", s.log.String())
		}
	})
	for {
		if resp, err := http.Get(s.url + "/-/ready"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return s
			}
		}
		select {
		case <-s.done:
			require.FailNow(t, "prometheus ended")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// freeAddress returns an address for a Prometheus, which doesn't report the port it gets
// for port 0. It avoids the range that systems assign to outgoing sockets, because such a
// port may be taken before Prometheus listens.
func freeAddress() (string, error) {
	const first, ports = 28_000, 4000
	for i := range ports {
		address := fmt.Sprintf("127.0.0.1:%d", first+(os.Getpid()*131+i)%ports)
		if listener, err := net.Listen("tcp", address); err == nil {
			return address, listener.Close()
		}
	}
	return "", errors.New("no free port")
}

// get gets the data of an API response. Warnings are errors.
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
	require.Equal(t, "success", answer.Status, "%s: %s: %s", path, params, answer.Error)
	require.Empty(t, answer.Warnings)
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
