// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// The switch reaches hosts with a MaxAttempts of their own, and requests of other sites
// don't reach the switch.
func TestRetrySwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		tr := &retrip.Transport{Base: testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
			calls++
			return respond(req, 503)
		}), Policy: retrip.Policy{Budget: retrip.Off}, Hosts: map[string]retrip.Policy{"store.internal": {MaxAttempts: 3, Hedge: 0.05}}}
		h := RetrySwitch(tr)
		turn := func(method, to, site string) int {
			req := httptest.NewRequest(method, "/retries/"+to, nil)
			req.Header.Set("Sec-Fetch-Site", site)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			return w.Code
		}
		expect := func(orders, store int) {
			t.Helper()
			for host, want := range map[string]int{"orders.internal": orders, "store.internal": store} {
				calls = 0
				get(t, &http.Client{Transport: tr}, "http://"+host+"/")
				assert.Equal(t, want, calls, host)
			}
		}
		expect(4, 3)
		assert.Equal(t, 403, turn(http.MethodPost, "off", "cross-site"))
		assert.Equal(t, 405, turn(http.MethodGet, "off", "same-origin"))
		expect(4, 3)
		assert.Equal(t, 200, turn(http.MethodPost, "off", "same-origin"))
		expect(1, 1)
		calls = 0
		own := retrip.WithPolicy(t.Context(), retrip.Policy{MaxAttempts: 2})
		do(t, &http.Client{Transport: tr}, play.MustRequest(t, http.MethodGet, "http://orders.internal/", nil).WithContext(own))
		assert.Equal(t, 2, calls, "a request's own MaxAttempts counts more")
		assert.Equal(t, 200, turn(http.MethodPost, "off", "same-origin"))
		assert.Equal(t, 200, turn(http.MethodPost, "on", "same-origin"))
		expect(4, 3)
	})
}
