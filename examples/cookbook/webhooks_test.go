// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// stamp signs as Standard Webhooks does: with the message's id and the time.
type stamp struct{ base http.RoundTripper }

func (s stamp) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Webhook-Id", "msg_1")
	req.Header.Set("Webhook-Timestamp", strconv.FormatInt(time.Now().Unix(), 10))
	return s.base.RoundTrip(req)
}

func TestWebhooks_TwoAttemptsPerRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, func(_ int, w http.ResponseWriter, _ *http.Request) { answer(w, 503, "", "Retry-After", "3") })
		resp, _ := post(t, Webhooks(stamp{a.base()}), "https://shop.example.com/hook", `{"type":"paid"}`)
		assert.Equal(t, 503, resp.StatusCode, "the queue decides from the last response")
		require.Len(t, a.requests(), 2)
		first, second := a.requests()[0], a.requests()[1]
		assert.GreaterOrEqual(t, a.gap(1), 3*time.Second)
		assert.Equal(t, first.body, second.body)
		assert.Equal(t, first.header["Webhook-Id"], second.header["Webhook-Id"])
		assert.NotEqual(t, first.header["Webhook-Timestamp"], second.header["Webhook-Timestamp"])
	})
}

func TestWebhooks_LeavesLongWaitsAndRedirectsToTheQueue(t *testing.T) {
	for status, header := range map[int][]string{429: {"Retry-After", "60"}, 307: {"Location", "https://shop.example.com/new"}, 410: nil} {
		testenv.Bubble(t, fmt.Sprint(status), func(t *testing.T) {
			a := newAPI(t, func(_ int, w http.ResponseWriter, _ *http.Request) { answer(w, status, "", header...) })
			resp, _ := post(t, Webhooks(stamp{a.base()}), "https://shop.example.com/hook", "{}")
			assert.Equal(t, status, resp.StatusCode)
			assert.Len(t, a.requests(), 1)
		})
	}
}

func TestPublic_DialsNoPrivateAddress(t *testing.T) {
	client := &http.Client{Transport: Public(), Timeout: time.Minute}
	for _, host := range []string{"127.0.0.1:1", "[::1]:1", "10.0.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "[::ffff:10.0.0.1]", "[fe80::1]", "0.0.0.0"} {
		_, err := client.Get("http://" + host + "/")
		assert.ErrorContains(t, err, "is not a public address", host)
	}
}
