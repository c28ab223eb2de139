// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/chance"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// Near a deadline, a caller seldom loses the response in hand to an attempt that doesn't
// end, attempts don't pile up, and few requests fail that one more attempt would save.
//
//retrip:promise P10
func TestLastWait(t *testing.T) {
	const ms = time.Millisecond
	usual := lastWaits{deadline: time.Second, fastest: 50 * ms, slowest: 350 * ms}
	quick := lastWaits{deadline: 2 * time.Second, fastest: ms, slowest: 20 * ms, attempts: 20}
	short := lastWaits{deadline: 100 * ms, fastest: 5 * ms, slowest: 35 * ms}
	for _, tt := range []struct {
		name    string
		jitter  retrip.Jitter
		errors  float64 // most percent of usual requests, all answered by 503s, that end in an error
		success float64 // least percent that succeed if every second answer is a 503
		late    float64 // most attempts of a request in the last tenth of a deadline for many
		short   float64 // least percent that succeed if the deadline is shorter than the waits
	}{
		{"full", retrip.FullJitter, 8, 89, 0.3, 84},
		{"equal", retrip.EqualJitter, 10, 85, 0.5, 61},
		{"decorrelated", retrip.DecorrelatedJitter, 16, 81.5, 0.5, 48},
		{"none", retrip.NoJitter, 8, 82, 0.3, 48},
	} {
		for _, kind := range []string{"Deadline", "Client.Timeout", "context"} {
			if tt.jitter != retrip.FullJitter && !testenv.Tables() {
				continue
			}
			t.Run(tt.name+" "+kind, func(t *testing.T) {
				run := func(w lastWaits, failing float64) lastFigures {
					w.kind, w.jitter, w.failing = kind, tt.jitter, failing
					return w.run(t)
				}
				all, half, many, few := run(usual, 1), run(usual, 0.5), run(quick, 1), run(short, 0.5)
				t.Logf("%.1f %% errors, %.1f %% success, %.2f of %.2f attempts late, %.1f %% success with a short deadline", all.errors, half.success, many.late, many.attempts, few.success)
				assert.LessOrEqual(t, all.errors, tt.errors)
				assert.GreaterOrEqual(t, half.success, tt.success)
				assert.LessOrEqual(t, many.late, tt.late)
				assert.GreaterOrEqual(t, few.success, tt.short)
			})
		}
	}
}

// lastWaits are requests with a deadline of a kind, to a server whose answers take between
// fastest and slowest, of which a share fails.
type lastWaits struct {
	kind                       string
	jitter                     retrip.Jitter
	attempts                   int
	deadline, fastest, slowest time.Duration
	failing                    float64
}

// lastFigures are what came of them.
type lastFigures struct {
	errors, success float64 // percent of requests; errors: in place of a response
	attempts, late  float64 // per request; late: begun in the last tenth of the deadline
}

func (l lastWaits) run(t *testing.T) (w lastFigures) {
	requests := testenv.Size(2000, 20_000)
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		chance.Source = random.Uint64
		defer func() { chance.Source = nil }()
		var began time.Time
		var answered bool
		base := play.Keep(func(req *http.Request) (*http.Response, error) {
			w.attempts++
			if time.Since(began) > l.deadline*9/10 {
				w.late++
			}
			status := http.StatusOK
			if random.Float64() < l.failing {
				status = http.StatusServiceUnavailable
			}
			select {
			case <-time.After(l.fastest + time.Duration(random.Int64N(int64(l.slowest-l.fastest)))):
				answered = true
				return play.Reply(status)(req)
			case <-req.Context().Done():
				return nil, context.Cause(req.Context())
			}
		})
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{MaxAttempts: l.attempts, Budget: retrip.Off, Backoff: retrip.Backoff{Jitter: l.jitter}}}
		client := &http.Client{Transport: tr}
		ctx := t.Context()
		switch l.kind {
		case "Deadline":
			tr.Policy.Deadline = l.deadline
		case "Client.Timeout":
			client.Timeout = l.deadline
		}
		for range requests {
			began, answered = time.Now(), false
			cancel := func() {}
			if l.kind == "context" {
				ctx, cancel = context.WithTimeout(t.Context(), l.deadline)
			}
			resp, err := client.Do(play.Request(t, http.MethodGet, nil).WithContext(ctx))
			switch {
			case err != nil && answered:
				w.errors++
			case err == nil && resp.StatusCode == http.StatusOK:
				w.success++
			}
			if err == nil {
				play.Finish(t, resp)
			}
			cancel()
		}
	})
	n := float64(requests)
	return lastFigures{100 * w.errors / n, 100 * w.success / n, w.attempts / n, w.late / n}
}
