// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

// world is a proxy and its backend.
type world struct {
	backend *memhttp.Server
	proxy   *httputil.ReverseProxy
	reason  retrip.Reason // why the last request was given up
}

func newWorld(t *testing.T, backend http.HandlerFunc) *world {
	t.Helper()
	w := &world{backend: memhttp.NewServer(t, memhttp.HTTP1, backend)}
	target, err := url.Parse(w.backend.URL)
	require.NoError(t, err)
	w.proxy = newProxy(target, w.backend.Transport(), &retrip.Trace{Done: func(e retrip.Event) { w.reason = e.Reason }})
	return w
}

func (w *world) do(method string, body io.Reader, length int64) *http.Response {
	req := httptest.NewRequest(method, "http://proxy.example/", body)
	req.ContentLength = length
	req.Header.Set("Idempotency-Key", "foreign")
	recorder := httptest.NewRecorder()
	w.proxy.ServeHTTP(recorder, req)
	return recorder.Result()
}

func TestProxy_RepeatsByMethodAlone(t *testing.T) {
	for method, want := range map[string]int{http.MethodGet: 2, http.MethodPut: 2, http.MethodPost: 1, http.MethodPatch: 1} {
		play.Bubble(t, method, func(t *testing.T) {
			var keys []string
			w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
				keys = append(keys, r.Header.Get("Idempotency-Key"))
				if len(keys) == 1 {
					rw.WriteHeader(http.StatusServiceUnavailable)
				}
			})
			resp := w.do(method, nil, 0)
			assert.Len(t, keys, want)
			assert.Equal(t, want == 2, resp.StatusCode == http.StatusOK)
			for _, key := range keys {
				assert.Equal(t, "foreign", key, "the backend gets the client's key")
			}
		})
	}
}

// TestProxy_NetHTTPDoesNotRepeatEither breaks the connection that a POST
// reuses. net/http would repeat the POST if it took it for idempotent.
//
//retrip:promise P6
func TestProxy_NetHTTPDoesNotRepeatEither(t *testing.T) {
	for name, body := range map[string]string{"no body": "", "body": "pay 10 EUR"} {
		play.Bubble(t, name, func(t *testing.T) {
			var posts atomic.Int32
			w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				if r.Method == http.MethodPost && posts.Add(1) == 1 {
					panic(http.ErrAbortHandler)
				}
			})
			assert.Equal(t, http.StatusOK, w.do(http.MethodGet, nil, 0).StatusCode)
			resp := w.do(http.MethodPost, strings.NewReader(body), int64(len(body)))
			assert.Equal(t, http.StatusBadGateway, resp.StatusCode)
			assert.Equal(t, int32(1), posts.Load())
			assert.Equal(t, 1, w.backend.Listener.Dials(), "the connection was reused")
		})
	}
}

func TestProxy_KeepsNothingOfUploads(t *testing.T) {
	const size = 64 << 20
	synctest.Test(t, func(t *testing.T) {
		var got int64
		w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			got += n
			rw.WriteHeader(http.StatusServiceUnavailable)
		})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		resp := w.do(http.MethodPut, io.LimitReader(play.Zeros{}, size), size)
		runtime.ReadMemStats(&after)
		assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		assert.Equal(t, int64(size), got, "sent once")
		assert.Equal(t, retrip.ReasonBodyNotReplayable, w.reason)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(size/16), "allocated, freed or not")

		got = 0
		w.do(http.MethodPut, io.LimitReader(play.Zeros{}, 100), 100)
		assert.Equal(t, int64(100), got, "small ones neither")
	})
}

// TestProxy_RepeatsUploadsThatNobodyHasRead: while the backend is unreachable,
// even a POST is retried, with its whole body.
func TestProxy_RepeatsUploadsThatNobodyHasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got string
		w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got = string(body)
		})
		w.proxy.Transport.(*retrip.Transport).Trace.Retry = func(retrip.Event) { w.backend.Listener.Refuse(false) }
		w.backend.Listener.Refuse(true)
		resp := w.do(http.MethodPost, io.MultiReader(strings.NewReader("pay 10 EUR")), 10)
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.Equal(t, "pay 10 EUR", got)
	})
}
