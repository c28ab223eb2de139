// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// Of an SDK's client, a POST that the API refuses is sent again, and one that it
// may have processed isn't. A user's transport that retries, too, is named.
func TestNewClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nested := NewClient("http://api.test", &retrip.Transport{}).http.Transport.(*retrip.Transport)
		assert.NotEmpty(t, nested.Advice())
		for _, tt := range []struct {
			refuse []int
			status int
		}{{[]int{429, 429}, 200}, {[]int{503}, 503}} {
			sent := 0
			c := NewClient("http://api.test", testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				status := 200
				if sent < len(tt.refuse) {
					status = tt.refuse[sent]
				}
				sent++
				return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}, r.Body.Close()
			}))
			resp, err := c.http.Post(c.base, "text/plain", strings.NewReader("x"))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, tt.status, resp.StatusCode)
		}
	})
}
