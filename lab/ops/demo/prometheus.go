// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"net/url"

	"github.com/retrip/retrip/lab/ops"
)

// server is a running Prometheus.
type server struct{ *ops.Server }

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
	var data struct{ Alerts []alert }
	if err := s.Get(ctx, "alerts", nil, &data); err != nil {
		return nil, err
	}
	all := map[string]alert{}
	for _, a := range data.Alerts {
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
	if resp, err := http.Get(s.URL + "/" + name); err == nil {
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return s.URL + "/" + name
		}
	}
	return s.URL + "/classic/" + name
}
