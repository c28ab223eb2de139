// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

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
	"strings"
	"time"
)

// server is a running Prometheus.
type server struct {
	url  string
	done chan struct{} // closed when it has ended
	cmd  *exec.Cmd
}

// startPrometheus starts a Prometheus that scrapes targets and evaluates rules,
// with its data in dir. It ends with ctx; wait for done.
func startPrometheus(ctx context.Context, dir, rules string, targets []string) (*server, error) {
	path, err := exec.LookPath("prometheus")
	if err != nil {
		return nil, errors.New("there is no prometheus on the PATH: `make demo` installs it on Debian, elsewhere see https://prometheus.io/download")
	}
	file := filepath.Join(dir, "rules.yml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		return nil, err
	}
	quoted := make([]string, len(targets))
	for i, target := range targets {
		quoted[i] = fmt.Sprintf("%q", strings.TrimPrefix(target, "http://"))
	}
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `
global: {scrape_interval: 500ms, evaluation_interval: 500ms}
rule_files: [%q]
scrape_configs:
  - job_name: shop
    static_configs: [{targets: [%s]}]
`, file, strings.Join(quoted, ", ")), 0o600); err != nil {
		return nil, err
	}
	// Prometheus doesn't report which port it gets for port 0.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return nil, err
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, path, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &log, &log
	if interrupts {
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	}
	cmd.WaitDelay = 5 * time.Second // after that it is killed
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{url: "http://" + address, done: make(chan struct{}), cmd: cmd}
	go func() {
		defer close(s.done)
		cmd.Wait()
	}()
	for {
		if resp, err := http.Get(s.url + "/-/ready"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return s, nil
			}
		}
		select {
		case <-ctx.Done():
			<-s.done
			return nil, ctx.Err()
		case <-s.done:
			return nil, fmt.Errorf("prometheus ended: %s", log.String())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// alert is a firing alert.
type alert struct {
	Labels, Annotations map[string]string
	State               string
}

func (a alert) key() string {
	return a.Labels["alertname"] + " " + a.Labels["policy"] + " " + a.Labels["reason"]
}

// firing returns the alerts that are firing, by key.
func (s *server) firing(ctx context.Context) (map[string]alert, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/api/v1/alerts", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct{ Data struct{ Alerts []alert } }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	all := map[string]alert{}
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			all[a.key()] = a
		}
	}
	return all, nil
}

// graph returns the URL of a graph of the last three minutes.
func (s *server) graph(expr string) string {
	q := url.Values{"g0.expr": {expr}, "g0.tab": {"0"}, "g0.range_input": {"3m"}, "g0.step_input": {"1"}, "g0.stacked": {"0"}}
	return s.page("graph") + "?" + q.Encode()
}

// page returns the URL of a page of the user interface. Builds that have only
// the old interface, such as Debian's, use different URLs.
func (s *server) page(name string) string {
	if resp, err := http.Get(s.url + "/" + name); err == nil {
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return s.url + "/" + name
		}
	}
	return s.url + "/classic/" + name
}
