// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/alarm"
)

// Watched is a response body that must make progress. A Read doesn't read the
// clock. It changes a counter, and an alarm compares the counter with its last
// value. The alarm is set only while somebody reads. One goroutine may call
// Read while another calls Close.
type Watched struct {
	io.ReadCloser
	limit   time.Duration
	stalled error
	context Cutter // of the attempt
	stalls  interface{ Stalled() }

	// state is odd during a Read, and grows by two with each Read that returns
	// bytes. Its highest bit says that a Read has stalled.
	state atomic.Uint64
	set   atomic.Bool // the alarm will ring, or never has to again

	mu    sync.Mutex // guards the fields below
	alarm *alarm.Alarm
	seen  uint64        // state when the alarm last rang
	stuck time.Duration // for how long state has been the same
}

const stalledBit = 1 << 63

// Watch returns body as one that must make progress. At most half a second after
// a Read has waited for limit without a byte, it counts in stalls and ends
// context, and with it the Read. Each Read that fails from then on returns
// stalled.
func Watch(body io.ReadCloser, limit time.Duration, stalled error, context Cutter, stalls interface{ Stalled() }) *Watched {
	return &Watched{ReadCloser: body, limit: limit, stalled: stalled, context: context, stalls: stalls}
}

func (b *Watched) Read(p []byte) (int, error) {
	if b.state.Add(1)&1 == 0 {
		// The previous Read panicked.
		b.state.Add(1)
	}
	if !b.set.Load() {
		b.arm()
	}
	n, err := b.ReadCloser.Read(p)
	if n < 0 || n > len(p) {
		n, err = 0, errNegative
	}
	leave := ^uint64(0) // back to what state was before
	if n > 0 {
		leave = 1
	}
	stalled := b.state.Add(leave)&stalledBit != 0
	if err == nil {
		return n, nil
	}
	b.disarm(false)
	switch {
	case !stalled || err == io.EOF || err == http.ErrBodyReadAfterClose:
	case errors.Is(err, context.Canceled):
		err = alarm.Ended(b.stalled, err)
	default:
		err = b.stalled
	}
	return n, err
}

// Close closes the body.
func (b *Watched) Close() error {
	b.disarm(true)
	return b.ReadCloser.Close()
}

// period is the interval at which the alarm rings: the limit divided into equal
// parts of at most half a second.
func (b *Watched) period() time.Duration {
	const least, most = time.Millisecond, time.Second / 2
	times := (b.limit + most - 1) / most
	return max(least, (b.limit+times-1)/times)
}

// arm sets the alarm.
func (b *Watched) arm() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.set.Load() {
		return
	}
	b.set.Store(true)
	b.seen, b.stuck = b.state.Load(), 0
	if b.alarm == nil {
		b.alarm = alarm.Set(time.Now(), b.period(), b)
	} else {
		b.alarm.Again(b.period())
	}
}

// await says whether somebody waits for the Read in progress. It may take any time while
// nobody does.
func (b *Watched) await(somebody bool) {
	if somebody {
		b.arm()
	} else {
		b.disarm(false)
	}
}

// disarm stops the alarm, for good or until another Read sets one.
func (b *Watched) disarm(forGood bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.alarm != nil {
		b.alarm.Stop()
		b.alarm = nil
		b.set.Store(false)
	}
	if forGood {
		b.set.Store(true)
	}
}

// Ring implements [alarm.Ringer].
func (b *Watched) Ring(a *alarm.Alarm) {
	if b.overdue(a) {
		b.stalls.Stalled()
		b.context.Cut()
	}
}

// overdue reports whether a Read has stalled, the first time that one has.
// Otherwise it sets the alarm again, unless nobody reads.
func (b *Watched) overdue(a *alarm.Alarm) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.alarm != a {
		return false
	}
	state := b.state.Load()
	switch {
	case state != b.seen:
		b.seen, b.stuck = state, 0
	case state&1 == 0:
		// Nobody reads. The next Read sets the alarm again. If a Read has just
		// begun and saw that the alarm was set, it is set here.
		b.set.Store(false)
		if b.state.Load() == state {
			return false
		}
		b.set.Store(true)
	default:
		b.stuck += b.period()
	}
	if b.stuck >= b.limit && b.state.CompareAndSwap(state, state|stalledBit) {
		b.alarm = nil // and stays set
		return true
	}
	b.alarm.Again(b.period())
	return false
}
