// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/testenv"
	"github.com/retrip/retrip/shed"
)

// idle is a ResponseWriter and a handler without any cost.
type idle struct{ header http.Header }

func (idle) ServeHTTP(http.ResponseWriter, *http.Request) {}
func (w idle) Header() http.Header                        { return w.header }
func (idle) Write(p []byte) (int, error)                  { return len(p), nil }
func (idle) WriteHeader(int)                              {}

// calm returns a typical client request.
func calm() *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/path", nil)
	setHeader(r, []string{"Accept: application/json", "User-Agent: client/1.0", "Authorization: Bearer abc"})
	return r
}

func TestAllocations(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector allocates too")
	}
	w := idle{http.Header{}}
	for name, h := range map[string]*shed.Handler{
		"usual":           {Handler: w, Limit: 64},
		"deadline header": {Handler: w, Limit: 64, DeadlineHeader: "X-Timeout-Ms"},
		"no limit":        {Handler: w, Limit: -1},
		"one":             {Handler: w, Limit: 1},
	} {
		r := calm()
		assert.Equal(t, 1.0, testing.AllocsPerRun(1000, func() { h.ServeHTTP(w, r) }), "%s: the ResponseWriter that the handler gets", name)
	}
}

func BenchmarkHandler(b *testing.B) {
	w := idle{http.Header{}}
	for name, h := range map[string]http.Handler{"bare": w, "shed": &shed.Handler{Handler: w, Limit: 64}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			r := calm()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
		})
		b.Run(name+"/parallel", func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				r := calm()
				for pb.Next() {
					h.ServeHTTP(w, r)
				}
			})
		})
	}
	// The cost of refusing a request.
	b.Run("refusal", func(b *testing.B) {
		b.ReportAllocs()
		h := &shed.Handler{Handler: w, Limit: 64, DeadlineHeader: "X-Timeout-Ms"}
		r := calm()
		r.Header.Set("X-Timeout-Ms", "0")
		for b.Loop() {
			h.ServeHTTP(w, r)
		}
	})
}
