// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// A Transport opens the breaker of a host that is down, however rare the
// requests, even if only the breaker keeps the host in the table.
func TestTransport_BreakerAtALowRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(503))
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{OpenFor: time.Minute}}}
		get := func() error {
			resp, err := tr.RoundTrip(play.Request(t, "GET", nil))
			if err == nil {
				play.Finish(t, resp)
			}
			return err
		}
		for range 20 {
			require.EqualValues(t, "closed", play.Must(tr.HostState("example.com:80")).Breaker)
			require.NoError(t, get())
			time.Sleep(20 * time.Second)
			tr.HostStates() // like a scrape: drops hosts that have healed
		}
		assert.EqualValues(t, "open", play.Must(tr.HostState("example.com:80")).Breaker)
		var failure *retrip.Error
		require.ErrorAs(t, get(), &failure)
		assert.Equal(t, retrip.ReasonBreakerOpen, failure.Reason)
		assert.Len(t, base.At, 20)
	})
}
