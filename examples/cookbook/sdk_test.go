// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

func TestWaitsThreeSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
		client := &http.Client{Transport: &retrip.Transport{
			Base:   &http.Transport{DialContext: refuse},
			Policy: retrip.Policy{MaxAttempts: 3, Backoff: retrip.Backoff{Base: time.Second, Jitter: retrip.NoJitter}},
		}}
		start := time.Now()
		_, err := client.Get("http://example.com/")
		if waited := time.Since(start); err == nil || waited != 3*time.Second {
			t.Errorf("%v after %s", err, waited)
		}
	})
}

// Of an SDK's client, a POST that the API refuses is sent again, and one that it
// may have processed isn't.
func TestNewClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
