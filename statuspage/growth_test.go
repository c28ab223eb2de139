// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package statuspage

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// A request of twice the size costs less than three times the time.
//
//retrip:promise P12
func TestHandler_Growth(t *testing.T) {
	h := Handler(map[string]*retrip.Transport{"a": {Base: down, Hosts: map[string]retrip.Policy{"*.example.com": {}}}})
	parts := []string{"a", ".", "a.", ":", "[", "]", "[::1]", "%", "%25", "//", "//a", "//a@", "@", "?", "? ", "//?@", "#", "*", "*.", `\`, " ", "\t", "\n", "é", "\xff", ",",
		"application/json", "text/html,", "host=", "&", "format=json&"}
	for name, input := range map[string]func(values []string) *http.Request{
		"Accept": func(values []string) *http.Request {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header["Accept"] = values
			return r
		},
		"host": func(values []string) *http.Request {
			return httptest.NewRequest(http.MethodGet, "/?"+url.Values{"host": values, "format": values}.Encode(), nil)
		},
		"query": func(values []string) *http.Request {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.URL.RawQuery = "host=" + values[0] + "&format=" + values[0]
			return r
		},
		"port": func(values []string) *http.Request {
			return httptest.NewRequest(http.MethodGet, "/?"+url.Values{"host": {values[0] + ".example.com:443"}}.Encode(), nil)
		},
	} {
		for _, part := range parts {
			t.Run(name+"/"+part, func(t *testing.T) {
				testenv.Growth(t, 1000, func(n int) *http.Request { return input(testenv.LongValues(n, part)[0]) }, func(r *http.Request) {
					h.ServeHTTP(httptest.NewRecorder(), r)
				})
			})
		}
	}
}
