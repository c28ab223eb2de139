// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

// An attempt that doesn't count says what it would say of the host if it counted, and
// takes nothing: no token, no step of the backoff, no attempt. Hedges then stop.
func TestObey(t *testing.T) {
	const word = 7 * time.Second
	for _, tt := range []struct {
		status   int
		word     time.Duration
		verdict  decide.Verdict
		without  bool // is a refusal without a gate
		withGate bool
	}{
		{status: 503, word: word, without: true, withGate: true},
		{status: 503},
		{status: 429, word: word, withGate: true},
		{status: 429, withGate: true},
		{status: 500, word: word},
		{status: 200},
		{status: 503, word: word, verdict: decide.Final},
		{status: 200, word: word, verdict: decide.Retryable},
	} {
		for _, gate := range []retrip.Switch{retrip.Off, retrip.On} {
			r := play.Rules(t, retrip.Policy{Gate: retrip.Gate{Enabled: gate}})
			o := play.Repeatable(tt.status)
			o.RetryAfter, o.Verdict = tt.word, tt.verdict
			want := tt.without
			if gate == retrip.On {
				want = tt.withGate
			}
			assert.Equal(t, want, r.Refused(&o), "%+v, gate %v", tt, gate)
			if !want {
				continue
			}
			var h, counted host.Record
			r.Next(&counted, &decide.Call{Attempts: 4}, o, 0, play.Lowest)
			call := &decide.Call{Attempts: 1}
			change, _ := r.Obey(&h, call, &o, 0, play.Lowest)
			assert.Equal(t, tt.word > 0, change == host.Paused)
			assert.Equal(t, counted.PausedFor(0), h.PausedFor(0))
			assert.Equal(t, r.State(&host.Record{}, 0).Tokens, r.State(&h, 0).Tokens)
			assert.Equal(t, 1, call.Attempts)
			if tt.word > 0 || gate == retrip.On {
				assert.NotEqual(t, decide.NoHold, r.HoldsHedge(&h, "", time.Millisecond), "%+v, gate %v", tt, gate)
			}
		}
	}
}
