// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// Hosts without a place share what is known of them, and get their tokens back by
// successes, like other hosts.
//
//retrip:promise P15
func TestHostTable_OverflowRefills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := testenv.Status(http.StatusServiceUnavailable)
		tr := &retrip.Transport{
			Base:   testenv.RoundTripper(func(req *http.Request) (*http.Response, error) { return status.RoundTrip(req) }),
			Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}},
		}
		state := func(host string) retrip.HostState { return play.Must(tr.HostState(host + ":443")) }
		const alive = "alive.example" // nobody has asked it yet
		dead := ""
		for i := 0; !state(alive).Held; i++ {
			require.Less(t, i, 10_000, "the table is full")
			dead = fmt.Sprint("host", i)
			getFrom(t, tr, "https://"+dead)
		}
		getFrom(t, tr, "https://"+dead)
		want := retrip.HostState{Host: alive + ":443", Policy: "default", Held: true, Tokens: 4, Size: 5, FailedRetries: 2, Breaker: "closed"}
		assert.Equal(t, want, state(alive))
		assert.Equal(t, 2, state(dead).FailedRetries)
		states := tr.HostStates()
		others := states[len(states)-1]
		assert.Greater(t, others.Size, others.Tokens)
		others.Size, others.Tokens, others.FailedRetries = 0, 0, 0 // those of several entries
		assert.Equal(t, retrip.HostState{Host: "others", Policy: "default", Held: true, Breaker: "closed"}, others)

		status = http.StatusOK
		getFrom(t, tr, "https://"+dead)
		assert.Equal(t, 4.2, state(alive).Tokens)
		for range 4 {
			assert.True(t, state(alive).Held)
			getFrom(t, tr, "https://"+alive)
		}
		assert.Equal(t, 5., state(dead).Tokens, "they share it")
		assert.False(t, state(alive).Held)
	})
}

// A Transport opens the breaker of a host that is down, however rare the
// requests, even if only the breaker keeps the host in the table.
func TestTransport_BreakerAtALowRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(503))
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{OpenFor: time.Minute}}}
		get := func() error { return try(tr, play.Request(t, "GET", nil)) }
		for range 20 {
			require.EqualValues(t, "closed", play.Must(tr.HostState("example.com:80")).Breaker)
			require.NoError(t, get())
			time.Sleep(20 * time.Second)
			tr.HostStates() // like a scrape: drops hosts that have healed
		}
		assert.EqualValues(t, "open", play.Must(tr.HostState("example.com:80")).Breaker)
		failure := play.AsError(t, get())
		assert.Equal(t, retrip.ReasonBreakerOpen, failure.Reason)
		assert.Len(t, base.At, 20)
	})
}

func TestJitter_String(t *testing.T) {
	var words []string
	for j := range retrip.NoJitter + 2 {
		words = append(words, j.String())
	}
	assert.Equal(t, []string{"", "full", "equal", "decorrelated", "none", "Jitter(5)"}, words)
}
