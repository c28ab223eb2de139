// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Reverseproxy retries under httputil.ReverseProxy. A proxy must not repeat
// requests that aren't idempotent (RFC 9110 §9.2.2, RFC 10008), and a key that a foreign
// client put on its POST is between that client and the backend: it is passed
// on, but doesn't make this proxy repeat anything. Nor are uploads kept in
// memory.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip"
)

// newProxy returns a proxy to target, whose requests go through base, and
// trace, if not nil, sees what becomes of them.
func newProxy(target *url.URL, base http.RoundTripper, trace *retrip.Trace) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: &retrip.Transport{
			Base:  base,
			Trace: trace,
			Policy: retrip.Policy{
				// The method alone decides, not what a client says of itself.
				Idempotent: idempotentMethod,
				// A body that has been read from is not sent again. One that
				// nobody has read from yet is, since that costs nothing.
				MaxReplayBody: retrip.Off,
				Backoff:       retrip.Backoff{Base: 20 * time.Millisecond},
				// The client waits too: better an honest 503 after a second.
				MaxWait: time.Second,
			},
		},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.SetXForwarded()
			respell(r.Out.Header, "Idempotency-Key", "X-Idempotency-Key")
		},
	}
}

func idempotentMethod(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete, "QUERY":
		return true
	}
	return false
}

// respell puts headers under their names in lower case. For the backend they
// are the same (RFC 9110 §5.1), but net/http doesn't find them: it would itself
// repeat a POST that has such a key, when the connection it used is dead.
func respell(h http.Header, names ...string) {
	for _, name := range names {
		if values, ok := h[name]; ok {
			delete(h, name)
			h[strings.ToLower(name)] = values
		}
	}
}

func main() {
	var calls atomic.Int64
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := calls.Add(1)
		fmt.Printf("  backend: %s, Idempotency-Key %q\n", r.Method, r.Header.Get("Idempotency-Key"))
		if n%2 == 1 {
			http.Error(w, "overloaded", http.StatusServiceUnavailable)
		}
	}))
	defer backend.Close()
	target, err := url.Parse(backend.URL)
	if err != nil {
		log.Fatal(err)
	}
	proxy := httptest.NewServer(newProxy(target, nil, nil))
	defer proxy.Close()

	for _, method := range []string{http.MethodGet, http.MethodPost} {
		req, err := http.NewRequest(method, proxy.URL, nil)
		if err != nil {
			log.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", "of-the-client")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			log.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		fmt.Printf("client: %s: %s\n", method, resp.Status)
	}
}
