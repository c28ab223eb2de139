// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

func respond(req *http.Request, status int) (*http.Response, error) {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
}

// restarting is a service that refuses connections for a time, and then answers 503,
// and does the same again half a minute later.
func restarting(from time.Time, refuses, busy time.Duration, attempts *atomic.Int64) http.RoundTripper {
	return testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
		attempts.Add(1)
		since := time.Since(from)
		if since >= 30*time.Second && busy < time.Hour {
			since -= 30 * time.Second
		}
		switch {
		case since < 0 || since >= refuses+busy:
			return respond(req, 200)
		case since < refuses:
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		default:
			return respond(req, 503)
		}
	})
}

// load sends rate requests per second for the given time, and returns how many
// don't get a 200.
func load(t *testing.T, client *http.Client, method string, rate int, lasts time.Duration) (lost int64) {
	var failed atomic.Int64
	all := int(lasts.Seconds() * float64(rate))
	done := make(chan struct{})
	for i := range all {
		go func() {
			defer func() { done <- struct{}{} }()
			time.Sleep(time.Duration(i) * lasts / time.Duration(all))
			req, err := http.NewRequestWithContext(t.Context(), method, "http://orders.internal/", nil)
			assert.NoError(t, err)
			resp, err := client.Do(req)
			if err != nil || resp.StatusCode != 200 {
				failed.Add(1)
			}
			if err == nil {
				resp.Body.Close()
			}
		}()
	}
	for range all {
		<-done
	}
	return failed.Load()
}

func TestDeploy_LosesNoRequest(t *testing.T) {
	const second = time.Second
	for _, rate := range []int{1, 20, 100} {
		for _, away := range [][2]time.Duration{{3 * second / 2, 3 * second / 2}, {3 * second, 0}, {0, 3 * second}} {
			testenv.Bubble(t, fmt.Sprint(rate, away), func(t *testing.T) {
				var attempts atomic.Int64
				base := restarting(time.Now().Add(5*second), away[0], away[1], &attempts)
				assert.Zero(t, load(t, Deploy(base, float64(rate)), http.MethodGet, rate, 45*second))
				assert.Less(t, attempts.Load(), int64(45*rate+2*6*3*rate))
			})
		}
		synctest.Test(t, func(t *testing.T) {
			var attempts atomic.Int64
			base := restarting(time.Now().Add(5*second), 3*second/2, 3*second/2, &attempts)
			lost := load(t, &http.Client{Transport: &retrip.Transport{Base: base}}, http.MethodGet, rate, 15*second)
			assert.EqualValues(t, 3*rate, lost, "with the default policy: all of the restart, as docs/cookbook.md says")
		})
	}
}

func TestNewRoutes_TheOthersKeepTheirRetries(t *testing.T) {
	lost := func(t *testing.T, below string, client func(http.RoundTripper) *http.Client) (lost int) {
		synctest.Test(t, func(t *testing.T) {
			orders := 0
			c := client(testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				if strings.HasPrefix(req.URL.Path, below+"/search/") {
					return respond(req, 500)
				}
				orders++
				if orders%10 == 0 {
					return respond(req, 503)
				}
				return respond(req, 200)
			}))
			for i := range 1000 {
				resp, _ := get(t, c, "http://shop.internal"+below+"/search/")
				assert.Equal(t, 500, resp.StatusCode)
				resp, _ = get(t, c, "http://shop.internal"+below+"/orders/"+strconv.Itoa(i))
				if resp.StatusCode != 200 {
					lost++
				}
			}
			c.CloseIdleConnections()
		})
		return lost
	}
	single := func(base http.RoundTripper) *http.Client {
		return &http.Client{Transport: &retrip.Transport{Base: base}}
	}
	assert.Zero(t, lost(t, "", single), "the first segment tells the routes apart")
	assert.Equal(t, 100, lost(t, "/shop", single), "as docs/cookbook.md says")
	assert.Zero(t, lost(t, "/shop", func(base http.RoundTripper) *http.Client { return NewRoutes(base, "shop.internal/shop/search/") }))
}

// The health of a Consul is a 429 or a 503, and its other answers fail now and then.
func TestHealthChecks_AreNoFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Keep(func(req *http.Request) (*http.Response, error) {
			switch health, ok := strings.CutPrefix(req.URL.Path, "/v1/agent/health/"); {
			case ok:
				status, err := strconv.Atoi(health)
				if err != nil {
					return nil, err
				}
				return respond(req, status)
			case req.Header.Get("Attempt") == "":
				return respond(req, 503)
			default:
				return respond(req, 200)
			}
		})
		metrics := &retrip.Metrics{}
		client := HealthChecks(&retrip.Transport{Base: base, Metrics: metrics, Policy: retrip.Policy{RetryHeader: "Attempt"}}, "consul.internal/v1/agent/health/")
		for range 100 {
			for _, status := range []int{429, 503, 200} {
				resp, _ := get(t, client, "http://consul.internal:8500/v1/agent/health/"+strconv.Itoa(status))
				assert.Equal(t, status, resp.StatusCode)
			}
		}
		assert.Equal(t, 300, base.Attempts())
		resp, _ := get(t, client, "http://consul.internal:8500/v1/kv/x")
		assert.Equal(t, 200, resp.StatusCode)
		_, err := client.Get("http://consul.internal:8500/v1/agent/health/wrong")
		assert.Error(t, err)
		client.CloseIdleConnections()
		assert.NotZero(t, base.Idle)
		counts := play.Gather(t, metrics)["default"]
		assert.EqualValues(t, 1, counts["requests_total"])
		assert.EqualValues(t, 1, counts["requests_total recovered"])
	})
}

// download downloads a file as docs/cookbook.md says.
func download(ctx context.Context, client *http.Client, url string, w io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(w, resp.Body)
	return err
}

// The connection of every response breaks after 300 kB, or freezes once, and the file has no
// tag, or changes.
func TestDownloader_BodiesAreWhole(t *testing.T) {
	file := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for _, tag := range []string{`"v1"`, "", "changes"} {
		synctest.Test(t, func(t *testing.T) {
			a := newAPI(t, func(n int, w http.ResponseWriter, r *http.Request) {
				switch tag {
				case "":
				case "changes":
					w.Header().Set("ETag", fmt.Sprintf(`"v%d"`, 1+n/3))
				default:
					w.Header().Set("ETag", tag)
				}
				if n == 2 {
					time.Sleep(time.Hour) // hangs: AttemptTimeout and BodyIdleTimeout end it
				}
				http.ServeContent(&breaking{w, 300_000}, r, "model.bin", time.Time{}, bytes.NewReader(file))
			})
			var got bytes.Buffer
			err := download(t.Context(), Downloader(a.base()), "http://files.internal/model.bin", &got)
			if tag != `"v1"` {
				assert.Error(t, err, "nothing shows that the rest is of the same file")
				assert.Less(t, got.Len(), len(file))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, sha256.Sum256(file), sha256.Sum256(got.Bytes()))
			assert.Len(t, a.requests(), 5)
			assert.Empty(t, a.requests()[0].header.Get("Range"))
			assert.Equal(t, tag, a.requests()[1].header.Get("If-Range"))
		})
	}
}

// breaking aborts the response after left bytes.
type breaking struct {
	http.ResponseWriter
	left int
}

func (b *breaking) Write(p []byte) (int, error) {
	n, err := b.ResponseWriter.Write(p[:min(len(p), b.left)])
	if b.left -= n; b.left == 0 {
		b.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// The mesh makes three attempts, and the service calls a store that is down.
func TestBelowMesh_AttemptsDoNotMultiply(t *testing.T) {
	calls := func(t *testing.T, wrap func(http.Handler) http.Handler) (calls int) {
		synctest.Test(t, func(t *testing.T) {
			store := &http.Client{Transport: &retrip.Transport{Base: testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				calls++
				return respond(req, 503)
			}), Policy: retrip.Policy{Budget: retrip.Off}}}
			service := wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://store.internal/", nil)
				assert.NoError(t, err)
				resp, err := store.Do(req)
				assert.NoError(t, err)
				w.WriteHeader(resp.StatusCode)
			}))
			a := newAPI(t, func(_ int, w http.ResponseWriter, r *http.Request) { service.ServeHTTP(w, r) })
			for attempt := 1; attempt <= 3; attempt++ {
				req := play.MustRequest(t, http.MethodGet, "http://orders.internal/", nil)
				req.Header.Set("X-Envoy-Attempt-Count", strconv.Itoa(attempt))
				req.Header.Set("X-Envoy-Expected-Rq-Timeout-Ms", "60000")
				resp, _ := do(t, &http.Client{Transport: a.base()}, req)
				assert.Equal(t, 503, resp.StatusCode)
			}
		})
		return calls
	}
	assert.Equal(t, 4+1+1, calls(t, BelowMesh))
	assert.Equal(t, 3*4, calls(t, func(h http.Handler) http.Handler { return h }))
}

// Headers that make no sense change nothing.
func TestBelowMesh_PassesTheDeadlineOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := BelowMesh(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			deadline, ok := r.Context().Deadline()
			assert.True(t, ok)
			assert.LessOrEqual(t, time.Until(deadline), 300*time.Millisecond)
		}))
		a := newAPI(t, func(_ int, w http.ResponseWriter, r *http.Request) { service.ServeHTTP(w, r) })
		req := play.MustRequest(t, http.MethodGet, "http://orders.internal/", nil)
		req.Header.Set("X-Envoy-Expected-Rq-Timeout-Ms", "300")
		for _, count := range []string{"1", "-1", "two", "99999999999999999999"} {
			req.Header.Set("X-Envoy-Attempt-Count", count)
			resp, _ := do(t, &http.Client{Transport: a.base()}, req)
			assert.Equal(t, 200, resp.StatusCode)
		}
	})
}

// A recipe without a base works, as a Transport does.
func TestRecipes_WithoutABase(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, rt := range []http.RoundTripper{
		Edited{Edit: IgnoreRetryAfter("a.example")}, PathSecret{}, TimeLeft{}, Signed{Sign: func(*http.Request) error { return nil }}, ObjectStore(nil, func(*http.Request) error { return nil }).Transport,
		HealthChecks(&retrip.Transport{}, "a.example/health").Transport,
	} {
		req, err := http.NewRequestWithContext(gone, http.MethodGet, "http://a.example/health", nil)
		require.NoError(t, err)
		_, err = rt.RoundTrip(req)
		assert.ErrorIs(t, err, context.Canceled, "%T", rt)
	}
}
