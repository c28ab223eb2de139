// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
)

// Payments charges, and loses its connection; search stalls now and then; uploads refuses
// once; and the operators write a file that is wrong.
func TestService(t *testing.T) {
	content, err := os.ReadFile("policies.json")
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "policies.json")
		require.NoError(t, os.WriteFile(path, content, 0o600))
		var mu sync.Mutex
		keys, sends, traced := map[string]bool{}, map[string]int{}, 0
		upstreams := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			sends[r.Host]++
			n := sends[r.Host]
			if strings.HasPrefix(r.Header.Get("Traceparent"), "00-") {
				traced++
			}
			if key := r.Header.Get("Idempotency-Key"); key != "" {
				keys[key] = true
			}
			mu.Unlock()
			switch {
			case r.Host == "payments.internal" && n == 1:
				panic(http.ErrAbortHandler)
			case r.Host == "search.internal" && n == 30:
				<-r.Context().Done()
			case r.Host == "search.internal":
				time.Sleep(time.Duration(n%20+1) * time.Millisecond)
			case r.Host == "uploads.internal" && n == 1:
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			w.Write(body)
		}))
		var log bytes.Buffer
		old := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		defer slog.SetDefault(old)
		registry := prometheus.NewRegistry()
		prometheus.DefaultRegisterer, prometheus.DefaultGatherer = registry, registry
		spans := tracetest.NewInMemoryExporter()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		public, debug := http.NewServeMux(), http.NewServeMux()
		require.NoError(t, service(ctx, public, debug, path, upstreams.Transport(), trace.NewTracerProvider(trace.WithSyncer(spans))))
		send := func(mux http.Handler, method, url, body string) string {
			t.Helper()
			w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
			if body == "" {
				r.Body = http.NoBody // as a server sets it
			}
			mux.ServeHTTP(w, r)
			assert.Equal(t, 200, w.Code, url)
			return w.Body.String()
		}

		assert.Equal(t, "20 EUR", send(public, "POST", "/orders/7", "20 EUR"))
		for range 30 {
			began := time.Now()
			send(public, "GET", "/search?q=x", "")
			assert.Less(t, time.Since(began), 100*time.Millisecond)
		}
		file := strings.Repeat("x", 1<<19)
		assert.Equal(t, file, send(public, "PUT", "/files/a", file))
		assert.Equal(t, map[string]int{"payments.internal": 2, "search.internal": 31, "uploads.internal": 2}, sends)
		assert.Equal(t, map[string]bool{"7": true}, keys)
		assert.Equal(t, 35, traced, "the servers' spans have parents")
		assert.Len(t, spans.GetSpans(), 35+32)

		metrics := send(debug, "GET", "/metrics", "")
		assert.Contains(t, metrics, `retrip_requests_total{outcome="recovered",policy="payments.internal"} 1`)
		assert.Contains(t, metrics, `retrip_hedges_total{policy="search.internal",result="won"} 1`)
		assert.Contains(t, send(debug, "GET", "/debug/retrip", ""), "uploads.internal")
		assert.Contains(t, log.String(), "retrip: recovered")

		require.NoError(t, os.WriteFile(path, []byte(`{"max_attempts": "many"}`), 0o600))
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, 1, strings.Count(log.String(), "the previous policies stay in force"))
		assert.Contains(t, send(debug, "GET", "/debug/retrip", ""), "uploads.internal")
	})
}

// The file is as Kubernetes mounts a ConfigMap: a link into ..data, which is a link to a
// directory and is replaced as a whole.
func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		data := filepath.Join(dir, "..data")
		path := filepath.Join(dir, "policies.json")
		require.NoError(t, os.Symlink(filepath.Join("..data", "policies.json"), path))
		project := func(version, content string) {
			t.Helper()
			require.NoError(t, os.Mkdir(filepath.Join(dir, version), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, version, "policies.json"), []byte(content), 0o600))
			require.NoError(t, os.Symlink(version, data+"_tmp"))
			require.NoError(t, os.Rename(data+"_tmp", data))
		}
		transport := &retrip.Transport{}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		assert.Error(t, reload(ctx, transport, path), "there is no file yet")
		project("..1", `{"max_attempts": 3}`)
		require.NoError(t, reload(ctx, transport, path))
		for _, step := range []struct {
			change   func()
			attempts int
		}{
			{func() {}, 3},
			{func() { project("..2", `{"max_attempts": 5}`) }, 5},
			{func() { project("..3", `{"max_attempts": 2, "hosts": {"api.example.com": {"max_attempt": 1}}}`) }, 5},
			{func() { require.NoError(t, os.Remove(data)) }, 5},
			{func() { project("..4", `{"attempt_timeout": "1s", "deadline": "1500ms"}`) }, 4},
			{func() { require.NoError(t, os.WriteFile(path, []byte(`{"max_attempts": 2}`), 0o600)) }, 2},
		} {
			step.change()
			time.Sleep(6 * time.Second)
			synctest.Wait()
			policy, err := transport.PolicyFor("api.example.com:443")
			require.NoError(t, err)
			assert.Equal(t, step.attempts, policy.MaxAttempts)
		}
	})
}
