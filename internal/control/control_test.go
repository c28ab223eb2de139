// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/hostkey"
)

// Orders forbid what a plain list of them forbids, whatever is given, undone and looked at
// in whichever order. Orders that a request still reads don't change.
func TestOrders_Model(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	hosts := []hostkey.Key{{}, {Host: "a", Port: "80"}, {Host: "a", Port: "81"}, {Host: "b", Port: "80"}}
	policies := []string{"", "default", "a"}
	var orders *Orders
	model := map[Subject]Order{}
	now := time.Duration(0)
	allows := func(s Subject) bool { o, ok := model[s]; return !ok || now >= o.Until }
	for range 20_000 {
		s := Subject{}
		if random.IntN(2) == 0 {
			s.Host = hosts[1+random.IntN(3)]
		} else {
			s.Policy = policies[random.IntN(3)]
		}
		before, was := orders, orders.List(now)
		switch random.IntN(4) {
		case 0:
			order, err := Give(s, fmt.Sprint("w", now), time.Duration(1+random.IntN(20)), now)
			require.NoError(t, err)
			orders, err = orders.With(order)
			require.NoError(t, err)
			model[s] = order
		case 1:
			var err error
			known := orders != nil && orders.by[s] != (Order{})
			orders, err = orders.Without(s)
			assert.Equal(t, known, err == nil)
			delete(model, s)
		case 2:
			lapsed := orders.Lapsed(now)
			next, ended := orders.Current(now)
			assert.Equal(t, lapsed, len(ended) > 0)
			orders = next
		}
		assert.Equal(t, was, before.List(now))
		now += time.Duration(random.IntN(4))
		host, policy, retry := hosts[random.IntN(4)], policies[1+random.IntN(2)], random.IntN(2) == 0
		forbidden := host != (hostkey.Key{}) && !allows(Subject{Host: host}) || retry && !(allows(Subject{}) && allows(Subject{Policy: policy}))
		require.Equal(t, forbidden, orders != nil && orders.Forbid(host, policy, retry, now))
		holding := 0
		for s := range model {
			if !allows(s) {
				holding++
			}
		}
		require.Len(t, orders.List(now), holding)
	}
}

func TestGive(t *testing.T) {
	for _, d := range []time.Duration{-1, 0, MostFor + 1, 1<<63 - 1, -1 << 63} {
		_, err := Give(Subject{}, "ann", d, 0)
		assert.ErrorContains(t, err, "for is "+d.String()+": it must be more than 0s and at most 24h0m0s")
	}
	o, err := Give(Subject{Policy: "p"}, "ann", time.Minute, 5)
	assert.NoError(t, err)
	assert.Equal(t, Order{Subject{Policy: "p"}, "ann", 5, time.Minute + 5}, o)
	for _, who := range []string{"", " ", "a\nb", "\xff", "\u202eann", string(make([]byte, 101))} {
		_, err := Give(Subject{}, who, time.Minute, 0)
		assert.ErrorContains(t, err, "who ")
	}
}
