// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

func TestTransport_ThrottleBase(t *testing.T) {
	schedule := retrip.Backoff{Base: time.Second, Cap: 30 * time.Second, ThrottleBase: 5 * time.Second, Jitter: retrip.NoJitter}
	for _, tt := range []struct {
		name  string
		gate  bool
		steps []play.Step
		at    string
	}{
		{"429 without a word", false, []play.Step{play.Reply(429), play.Reply(503), play.Reply(429), play.Reply(200)}, "[0s 5s 7s 27s]"},
		{"Retry-After names the wait", false, []play.Step{play.Reply(429, "Retry-After: 1"), play.Reply(200)}, "[0s 1s]"},
		{"in the dialect", false, []play.Step{play.Reply(429, "Retry-After-Ms: 1000"), play.Reply(200)}, "[0s 1s]"},
		{"Retry-After: 0 names none", false, []play.Step{play.Reply(429, "Retry-After: 0"), play.Reply(200)}, "[0s 5s]"},
		{"a gate", true, []play.Step{play.Reply(429), play.Reply(200)}, "[0s 5s]"},
	} {
		play.Bubble(t, tt.name, func(t *testing.T) {
			base := play.Base(tt.steps...)
			tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Backoff: schedule, Gate: retrip.Gate{Enabled: play.Toggle(tt.gate)}, Dialects: []string{"retry-after-ms"}}}
			play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
			for i := range base.At {
				// The wait is up to 1 s longer than Retry-After.
				base.At[i] = base.At[i].Truncate(time.Second)
			}
			assert.Equal(t, tt.at, fmt.Sprint(base.At))
		})
	}
}

func TestJitter_String(t *testing.T) {
	var words []string
	for j := range retrip.NoJitter + 2 {
		words = append(words, j.String())
	}
	assert.Equal(t, []string{"", "full", "equal", "decorrelated", "none", "Jitter(5)"}, words)
}
