// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"
)

func TestY(t *testing.T) {
	for _, n := range []int{10, 50, 100, 200} {
		for _, p := range Contenders() {
			m := Row()
			m.Policy, m.Clients, m.Trials = p, n, 1000
			b := time.Now()
			r, err := m.Run(t.Context(), nil)
			t.Log(n, p.Name, r.Calls, r.CallsError, r.Time, r.TimeError, err, time.Since(b), r.Events)
		}
	}
}
