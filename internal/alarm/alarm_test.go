// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package alarm

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

type ringer struct {
	rung  atomic.Int32
	again bool
}

func (r *ringer) Ring(a *Alarm) {
	r.rung.Add(1)
	if r.again {
		a.Again(time.Second)
	}
}

func TestAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r ringer
		a := Set(time.Now(), time.Second, &r)
		time.Sleep(time.Second - 1)
		synctest.Wait()
		assert.Zero(t, r.rung.Load())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.EqualValues(t, 1, r.rung.Load())
		assert.False(t, a.Stop())

		a = Set(time.Now(), time.Second, &r)
		assert.True(t, a.Stop())
		time.Sleep(time.Hour)
		assert.EqualValues(t, 1, r.rung.Load())
	})
}

func TestAlarm_Again(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := ringer{again: true}
		a := Set(time.Now(), time.Second, &r)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		assert.EqualValues(t, 5, r.rung.Load())
		assert.True(t, a.Stop())
	})
}

// Pooled timers never enter or leave a bubble: the runtime would end the
// process, or the timer would not follow the bubble's clock.
func TestAlarm_Bubbles(t *testing.T) {
	use := func() {
		var r ringer
		for range 50 {
			Set(time.Now(), time.Hour, &r).Stop()
		}
	}
	for range 3 {
		use()
		synctest.Test(t, func(t *testing.T) {
			use()
			var r ringer
			Set(time.Now(), time.Second, &r)
			time.Sleep(time.Second)
			synctest.Wait()
			assert.EqualValues(t, 1, r.rung.Load())
		})
	}
}

// A reused alarm never rings for a caller that stopped it in time.
func TestAlarm_Stress(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var stopped [2000]*ringer
			for i := range stopped {
				r := &ringer{}
				if Set(time.Now(), time.Duration(i%50)*time.Microsecond, r).Stop() && r.rung.Load() == 0 {
					stopped[i] = r
				}
			}
			for _, r := range stopped {
				if r != nil {
					assert.Zero(t, r.rung.Load())
				}
			}
		})
	}
	wg.Wait()
}
