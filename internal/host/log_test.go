// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// At the level of slog.Default, the log says that retries work, and which error no retry
// can fix: once, and then once a minute with the number of the others.
//
//retrip:promise P19
func TestLog_AtInfo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		attempts := 0
		tr := &retrip.Transport{Logger: slog.New(slog.NewTextHandler(&log, nil)), Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}},
			Hosts: map[string]retrip.Policy{"gate.example": {Gate: retrip.Gate{Enabled: retrip.On}}},
			Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				attempts++
				switch {
				case r.URL.Host == "nowhere.example":
					return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: r.URL.Host, IsNotFound: true}}
				case attempts%2 == 1 && r.URL.Host == "gate.example":
					return play.Reply(429, "Retry-After: 1")(r)
				case attempts%2 == 1 && r.URL.Host != "well.example":
					return play.Reply(503)(r)
				}
				return play.Reply(200)(r)
			})}
		call := func(host string) string {
			log.Reset()
			attempts = 0
			resp, err := tr.RoundTrip(play.MustRequest(t, http.MethodGet, "http://"+host+"/path?secret=1", nil))
			if err == nil {
				require.NoError(t, resp.Body.Close())
			}
			return strings.TrimSpace(regexp.MustCompile(`time=\S+ `).ReplaceAllString(log.String(), ""))
		}
		assert.Empty(t, call("well.example"))
		const recovered = `level=INFO msg="retrip: recovered" method=GET url=http://flaky.example/path policy=default attempt=2 reason=server_error status=200`
		const failed = `level=INFO msg="retrip: failed" method=GET url=http://nowhere.example/path policy=default attempt=1 reason=no_such_host error="dial: lookup nowhere.example: no such host"`
		assert.Equal(t, recovered, call("flaky.example"))
		assert.Equal(t, failed, call("nowhere.example"))
		for range 10 {
			assert.Empty(t, call("flaky.example"))
			assert.Empty(t, call("nowhere.example"))
		}
		time.Sleep(time.Minute)
		assert.Equal(t, recovered+" omitted=10", call("flaky.example"))
		assert.Equal(t, failed+" omitted=10", call("nowhere.example"))
		assert.Empty(t, call("flaky.example"))
		time.Sleep(3 * time.Minute)
		assert.Equal(t, `level=INFO msg="retrip: omitted" record="retrip: recovered" host=flaky.example:80 policy=default reason=server_error omitted=1`, call("well.example"))

		// A gate follows a rate limit by refused requests that recover.
		assert.NotContains(t, call("gate.example"), "recovered")
	})
}
