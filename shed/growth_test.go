// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/retrip/retrip/internal/testenv"
	"github.com/retrip/retrip/shed"
)

// A request or an answer with a header of twice the size costs less than three times
// the time.
//
//retrip:promise P12
func TestHandler_Growth(t *testing.T) {
	parts := []string{"9", "0", "1,", ".", "e", " ", "\t", "-", "_1", "nan", "inf", "x", "0x1p", "text/event-stream", "text/", ",", "é"}
	h := &shed.Handler{Limit: 10, DeadlineHeader: "Deadline", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = r.Header["Content-Type"]
		w.WriteHeader(http.StatusOK)
	})}
	for _, field := range []string{"Retry-Attempt", "Deadline", "Accept", "Upgrade", "Expect", "Content-Type"} {
		for _, part := range parts {
			t.Run(field+"/"+part, func(t *testing.T) {
				input := func(n int) (all []*http.Request) {
					for _, values := range testenv.LongValues(n, part) {
						r := httptest.NewRequest(http.MethodGet, "/", nil)
						r.Header = http.Header{"Accept": {"text/event-stream"}}
						r.Header[field] = values
						all = append(all, r)
					}
					return all
				}
				testenv.Growth(t, 5_000, input, func(all []*http.Request) {
					for _, r := range all {
						h.ServeHTTP(idle{http.Header{}}, r)
					}
				})
			})
		}
	}
}
