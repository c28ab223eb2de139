// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/fleet"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// A retry waits for the account's answer if that takes longer than its own wait, but for
// at most 50 ms.
//
//retrip:promise P22
func TestFleet_AsksWithinTheWait(t *testing.T) {
	for _, test := range []struct{ delay, backoff, want time.Duration }{
		{10 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond},
		{30 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond},
		{300 * time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond},
		{300 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond},
	} {
		testenv.Bubble(t, fmt.Sprint(test.delay, test.backoff), func(t *testing.T) {
			base := play.Base(play.Reply(503))
			get(t, &retrip.Transport{Fleet: opened(t, fullStore(test.delay)), Policy: twice(test.backoff), Base: base}, "a")
			assert.Equal(t, []time.Duration{0, test.want}, base.At)
		})
	}
}

// The answer takes longer than the wait that the server asked for, which is the
// server's nevertheless.
func TestFleet_AsksWithinTheServersWait(t *testing.T) {
	for asked, want := range map[string]bool{"Retry-After-Ms: 5": true, "Server: x": false} {
		synctest.Test(t, func(t *testing.T) {
			var fromServer []bool
			tr := &retrip.Transport{Fleet: opened(t, fullStore(30*time.Millisecond)), Policy: twice(5 * time.Millisecond), Base: play.Base(play.Reply(503, asked)),
				Trace: &retrip.Trace{Retry: func(e retrip.Event) {
					assert.Zero(t, e.Wait)
					fromServer = append(fromServer, e.FromServer)
				}}}
			tr.Policy.Dialects = []string{"retry-after-ms"}
			get(t, tr, "a")
			assert.Equal(t, []bool{want}, fromServer, asked)
		})
	}
}

//retrip:promise P22
func TestFleet_DeadlineBoundsTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(func(r *http.Request) (*http.Response, error) {
			time.Sleep(5 * time.Millisecond)
			return play.Reply(503)(r)
		}, play.Reply(503))
		tr := &retrip.Transport{Fleet: opened(t, fleet.HangingStore), Policy: twice(retrip.Off), Base: base}
		tr.Policy.Deadline = 20 * time.Millisecond
		get(t, tr, "a")
		assert.Equal(t, []time.Duration{0, 15 * time.Millisecond}, base.At, "there is room for the attempt")
	})
}

//retrip:promise P22
func TestFleet_CallerGoesWhileAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := play.Base(play.Reply(503))
		tr := &retrip.Transport{Fleet: opened(t, fleet.HangingStore), Policy: steady, Base: base}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		began := time.Now()
		_, err := tr.RoundTrip(requestTo(t, "a").WithContext(ctx))
		assert.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 20*time.Millisecond, time.Since(began))
		e := play.AsError(t, err)
		assert.Equal(t, retrip.ReasonCanceled, e.Reason)
		assert.Equal(t, 503, e.StatusCode)
		assert.Equal(t, 1, base.ClosedBodies(), "the response in hand is closed")
		assertUntouched(t, tr)
	})
}
