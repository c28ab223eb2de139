// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
)

// Each waiter draws its own time after the end of a pause, whoever began the
// pause.
//
//retrip:promise P9
func TestPause_SpreadsWaiters(t *testing.T) {
	var h host.Record
	r := play.Rules(t, retrip.Policy{Budget: retrip.Off})
	play.Pause(t, &h, 10*time.Second, 0)
	random := rand.New(rand.NewPCG(1, 2))
	waits := map[time.Duration]bool{}
	for range 1000 {
		d := r.Next(&h, &decide.Call{Attempts: 1}, play.Repeatable(502), 0, random.Uint64())
		require.True(t, d.Retry)
		require.GreaterOrEqual(t, d.Wait, 10*time.Second)
		waits[d.Wait] = true
	}
	assert.Len(t, waits, 1000)
}
