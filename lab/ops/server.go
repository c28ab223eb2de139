// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"bytes"
	"context"
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
	"strings"
	"time"
)

// Server is a running Prometheus.
type Server struct {
	URL  string
	Done chan struct{} // closed when it has ended
	Log  bytes.Buffer  // complete then
}

// Start starts a Prometheus that scrapes targets, which are URLs, as one job, and
// evaluates the rules of a file, both at an interval. Its data are in dir. It ends with
// ctx; wait for Done.
func Start(ctx context.Context, dir, rules, job string, interval time.Duration, targets []string, flags ...string) (*Server, error) {
	path, err := exec.LookPath("prometheus")
	if err != nil {
		return nil, errors.New("there is no prometheus on the PATH: `make demo` installs it on Debian, elsewhere see https://prometheus.io/download")
	}
	quoted := make([]string, len(targets))
	for i, target := range targets {
		quoted[i] = fmt.Sprintf("%q", strings.TrimPrefix(target, "http://"))
	}
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `
global: {scrape_interval: %[1]v, evaluation_interval: %[1]v}
rule_files: [%[2]q]
scrape_configs:
  - job_name: %[3]s
    static_configs: [{targets: [%[4]s]}]
`, interval, rules, job, strings.Join(quoted, ", ")), 0o600); err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s := &Server{URL: "http://" + address, Done: make(chan struct{})}
	cmd := exec.CommandContext(ctx, path, append([]string{
		"--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address, "--log.level=warn",
	}, flags...)...)
	cmd.Stdout, cmd.Stderr = &s.Log, &s.Log
	if runtime.GOOS != "windows" { // where no process can be interrupted
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	}
	cmd.WaitDelay = 5 * time.Second // after that it is killed
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(s.Done)
		_ = cmd.Wait()
	}()
	for {
		if resp, err := http.Get(s.URL + "/-/ready"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return s, nil
			}
		}
		select {
		case <-ctx.Done():
			<-s.Done
			return nil, ctx.Err()
		case <-s.Done:
			return nil, fmt.Errorf("prometheus ended: %s", s.Log.String())
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

// Get gets the data of an API response. Warnings are errors.
func (s *Server) Get(ctx context.Context, path string, params url.Values, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/api/v1/"+path+"?"+params.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
		Warnings      []string
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" || len(answer.Warnings) > 0 {
		return fmt.Errorf("%s: %s: %s %q", path, params, answer.Error, answer.Warnings)
	}
	return json.Unmarshal(answer.Data, data)
}
