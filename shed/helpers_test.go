// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/testenv"
	"github.com/retrip/retrip/shed"
)

const ms = time.Millisecond

func TestMain(m *testing.M) { testenv.RareGC(m) }

// each runs f in a bubble, once per protocol.
func each(t *testing.T, f func(t *testing.T, proto memhttp.Proto)) {
	for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2, memhttp.H2C} {
		t.Run(proto.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { f(t, proto) })
		})
	}
}

// sleeper serves for as long as the path says, such as /50ms.
func sleeper(w http.ResponseWriter, r *http.Request) {
	d, err := time.ParseDuration(strings.TrimPrefix(r.URL.Path, "/"))
	if err != nil {
		panic(err)
	}
	time.Sleep(d)
	w.WriteHeader(http.StatusNoContent)
}

var sleeping = http.HandlerFunc(sleeper)

// answered is a client's answer and the time it took.
type answered struct {
	status int
	header http.Header
	body   string
	took   time.Duration
	err    error
}

// do makes a request and reads the answer. Each header is a line.
func do(ctx context.Context, rt http.RoundTripper, method, url string, body io.Reader, header ...string) (a answered) {
	start := time.Now()
	defer func() { a.took = time.Since(start) }()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return answered{err: err}
	}
	setHeader(req, header)
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return answered{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answered{status: resp.StatusCode, header: resp.Header, body: string(text), err: err}
}

func setHeader(r *http.Request, lines []string) {
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
}

// direct gives h a request without a connection.
func direct(h http.Handler, path string, header ...string) answered {
	start, w, r := time.Now(), httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
	setHeader(r, header)
	h.ServeHTTP(w, r)
	return answered{status: w.Code, header: w.Header(), body: w.Body.String(), took: time.Since(start)}
}

// meanwhile runs f in the background and returns a channel for its answer.
func meanwhile(f func() answered) <-chan answered {
	c := make(chan answered, 1)
	go func() { c <- f() }()
	synctest.Wait()
	return c
}

// site is a server and its client.
type site struct {
	*memhttp.Server
	t    *testing.T
	base *http.Transport
}

func newSite(t *testing.T, proto memhttp.Proto, h http.Handler) *site {
	s := memhttp.NewServer(t, proto, h)
	return &site{s, t, s.Transport()}
}

func (s *site) get(path string, header ...string) answered {
	return do(s.t.Context(), s.base, "GET", s.URL+path, nil, header...)
}

// getting is get in the background.
func (s *site) getting(path string, header ...string) <-chan answered {
	return meanwhile(func() answered { return s.get(path, header...) })
}

// counted returns the metrics of h by name and label values.
func counted(t *testing.T, h *shed.Handler) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(h))
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var name strings.Builder
			name.WriteString(strings.TrimPrefix(family.GetName(), "retrip_shed_"))
			for _, label := range m.GetLabel() {
				name.WriteString(" " + label.GetValue())
			}
			if v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount()); v != 0 {
				values[name.String()] = v
			}
		}
	}
	return values
}
