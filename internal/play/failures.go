// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package play

import (
	"math"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
)

// Took returns the outcome of a request that may be repeated, after an attempt as
// long as d.
func Took(status int, d time.Duration) decide.Outcome {
	o := Repeatable(status)
	o.Took = d
	return o
}

// IndependentFailures lets 100 clients make requests to hosts that fail an
// attempt with probability p. It returns the percentage of requests that
// succeed and the attempts per request. Each client makes the given number of
// requests per second, for 100 seconds.
func IndependentFailures(r Judge, p, perSecond float64) (success, attempts float64) {
	const clients, horizon = 100, 100 * time.Second
	w := NewWorld(1)
	var requests, good, sent int
	for range clients {
		h := new(host.Record)
		var arrive func()
		arrive = func() {
			requests++
			w.Request(h, r, func() decide.Outcome {
				sent++
				if w.Random.Float64() < p {
					return Took(http.StatusServiceUnavailable, 5*time.Millisecond)
				}
				return Took(http.StatusOK, 5*time.Millisecond)
			}, func(o decide.Outcome, _ decide.Reason) {
				if o.Status == http.StatusOK {
					good++
				}
			})
			if next := w.Now + time.Duration(w.Random.ExpFloat64()/perSecond*float64(time.Second)); next < horizon {
				w.At(next, arrive)
			}
		}
		w.At(time.Duration(w.Random.ExpFloat64()/perSecond*float64(time.Second)), arrive)
	}
	w.Run(math.MaxInt64)
	return 100 * float64(good) / float64(requests), float64(sent) / float64(requests)
}
