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
		"500":                 func(s *Table, c *Ticket, now time.Duration) { s.Pass(c, "", now, 0) },
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
				s.Accept(first, "", now, 0)
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
