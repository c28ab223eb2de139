// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// When a probe has no response for a second, another one goes. If the first then ends
// without a word about the pace, that one is still the probe, and the others wait for it.
//
//retrip:promise P23
func TestGate_OverdueProbeEnds(t *testing.T) {
	for name, end := range map[string]func(*Table, *Ticket, time.Duration){
		"canceled":            func(s *Table, c *Ticket, _ time.Duration) { s.Leave(c, 0) },
		"500":                 func(s *Table, c *Ticket, now time.Duration) { s.Pass(c, "", false, now, 0) },
		"429 without a wait":  func(s *Table, c *Ticket, now time.Duration) { s.Refuse(c, "", 0, now, 0, 0) },
		"an answer, at least": nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := Table{Made: new(atomic.Int64)}
			s.Refuse(new(Ticket), "", time.Second, 0, 0, 0)
			var now time.Duration
			release := func() *Ticket {
				c := new(Ticket)
				for {
					a := s.Admit(c, &Request{Patience: time.Hour}, now, 0, 0)
					require.Zero(t, a.Refusal)
					if !a.Waits {
						return c
					}
					now += a.Wait
				}
			}
			first := release()
			began := now
			release()
			require.Equal(t, time.Second, now-began)
			second := now
			now += time.Second / 2
			if end == nil {
				s.Pass(first, "", true, now, 0)
				release()
				assert.Equal(t, time.Second/2, now-second)
				return
			}
			end(&s, first, now)
			release()
			assert.Equal(t, time.Second, now-second)
		})
	}
}

// A request that was sent before a pause makes it longer. Those that don't wait so long
// give up at once, also if it is only a little longer.
//
//retrip:promise P9 P23
func TestGate_PauseALittleLonger(t *testing.T) {
	s := Table{Made: new(atomic.Int64)}
	var sent [3]Ticket
	for i := range sent {
		require.False(t, s.Admit(&sent[i], &Request{Patience: time.Minute}, 0, 0, 0).Waits)
	}
	s.Refuse(&sent[0], "", time.Second, 0, 0, 0)
	now := time.Second * 3 / 4
	waits := func(who string, patience time.Duration) {
		require.True(t, s.Admit(new(Ticket), &Request{Who: who, Patience: patience}, now, 0, 0).Waits)
	}
	waits("patient", time.Minute)
	waits("hasty", time.Second/2)
	waits("hastier", time.Second/4)
	_, wakes := s.Refuse(&sent[1], "", time.Second/4+1, now, 0, 0)
	assert.True(t, wakes)
	assert.Equal(t, []any{"hastier", nil}, []any{s.NextWoken(), s.NextWoken()})
	_, wakes = s.Refuse(&sent[2], "", time.Second, now, 0, 0)
	assert.True(t, wakes)
	assert.Equal(t, []any{"hasty", nil}, []any{s.NextWoken(), s.NextWoken()})
	waiting, _ := s.Waiting(now)
	assert.Equal(t, 1, waiting)
}
