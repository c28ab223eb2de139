// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
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
	for _, host := range []string{"127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost"} {
		_, err := client.Get("http://" + host + ":1/")
		assert.ErrorContains(t, err, "is not a public address", host)
	}
	for want, all := range map[bool]string{
		false: "10.0.0.1 192.168.0.1 172.16.0.1 169.254.169.254 100.64.0.1 0.0.0.0 0.0.0.1 240.0.0.1 255.255.255.255 198.18.0.1 192.0.0.1 224.0.0.1 " +
			":: ::7f00:1 fe80::1 fec0::1 fd00:ec2::254 ff02::1 64:ff9b::7f00:1 64:ff9b:1::a00:1 2002:7f00:1:: 2001:0:7f00:1::",
		true: "1.1.1.1 172.32.0.1 100.128.0.1 223.255.255.1 2606:4700:4700::1111 2a00:1450::1",
	} {
		for ip := range strings.FieldsSeq(all) {
			assert.Equal(t, want, public(netip.MustParseAddr(ip)), ip)
		}
	}
}
