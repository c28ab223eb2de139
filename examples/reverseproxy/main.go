// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Reverseproxy retries under httputil.ReverseProxy. A proxy must not repeat
// requests that aren't idempotent (RFC 9110 §9.2.2, RFC 10008). An
// Idempotency-Key on a client's POST is an agreement between that client and
// the backend: the proxy passes it on, but doesn't repeat the POST because of
// it. The proxy keeps no uploads in memory.
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

// newProxy returns a proxy to target that sends its requests through base.
// trace, if not nil, observes them.
func newProxy(target *url.URL, base http.RoundTripper, trace *retrip.Trace) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: &retrip.Transport{
			Base:  base,
			Trace: trace,
			Policy: retrip.Policy{
				// Only the method decides, not a header from the client.
				Idempotent: idempotentMethod,
				// Off: a body that has been read from is not sent again. A body
				// that nobody has read from can be sent again at no cost.
				MaxReplayBody: retrip.Off,
				Backoff:       retrip.Backoff{Base: 20 * time.Millisecond},
				// The client is waiting too: an honest 503 after a second is
				// better.
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

	for _, request := range []struct{ method, note string }{
		{http.MethodGet, "retried: a GET is idempotent"},
		{http.MethodPost, "not retried: the backend may have processed a POST, and the client's key doesn't bind this proxy"},
	} {
		req, err := http.NewRequest(request.method, proxy.URL, nil)
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
		fmt.Printf("client: %s: %s (%s)\n", request.method, resp.Status, request.note)
	}
	fmt.Println("So clients see fewer failures of the backend, and the proxy never repeats a request that may run only once.")
}
