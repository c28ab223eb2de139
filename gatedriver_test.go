// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// Nothing is sent in a pause that is longer than MaxWait: every request is
// returned at once, and the log says for want of what.
func TestGate_MaxWaitIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		base := plays(replies(429, "Retry-After: 60"), replies(200))
		tr := &retrip.Transport{Base: base, Metrics: retrip.NewMetrics(), Policy: retrip.Policy{Gate: true},
			Logger: slog.New(slog.NewTextHandler(&log, nil))}
		resp, err := tr.RoundTrip(request(t, "GET", nil))
		require.NoError(t, err)
		assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode, "it is in hand")
		finish(t, resp)
		for range 29 {
			start := time.Now()
			_, err = tr.RoundTrip(request(t, "GET", nil))
			assert.Equal(t, retrip.ReasonWaitTooLong, asError(t, err).Reason)
			assert.Zero(t, time.Since(start))
			time.Sleep(time.Second)
		}
		assert.Equal(t, 1, base.attempts())
		assert.Contains(t, counted(t, tr.Metrics), "give_ups_total{default,wait_too_long} 30")
		assert.Regexp(t, `level=INFO msg="retrip: give up".* reason=wait_too_long max_wait=30s`, log.String())

		time.Sleep(2 * time.Second) // 29 s are left, which is short enough
		resp, err = tr.RoundTrip(request(t, "GET", nil))
		require.NoError(t, err)
		finish(t, resp)
		assert.GreaterOrEqual(t, base.at[1], 60*time.Second)
	})
}
