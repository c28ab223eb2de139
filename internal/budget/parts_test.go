// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// after answers like reply, but d later, if the attempt lasts that long.
func after(d time.Duration, reply play.Step) play.Step {
	return func(r *http.Request) (*http.Response, error) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return reply(r)
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

// keyspace is a host of which one keyspace has a single worker with a queue; everything else
// is answered at once. During its brownout, the worker takes three times as long.
type keyspace struct {
	mu       sync.Mutex
	took     time.Duration // per request
	queue    time.Duration // that a full queue takes
	gateway  time.Duration // after which a gateway answers 504; 0: there is none
	from, to time.Time     // the brownout
	free     time.Time     // instant at which the worker has done everything
	sends    int
}

func (k *keyspace) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/well") {
		return play.Reply(200)(r)
	}
	now := time.Now()
	k.mu.Lock()
	k.sends++
	took := k.took
	if now.After(k.from) && now.Before(k.to) {
		took *= 3
	}
	if k.free.Before(now) {
		k.free = now
	}
	wait := k.free.Sub(now)
	if wait > k.queue {
		k.mu.Unlock()
		return play.Reply(503)(r)
	}
	k.free = k.free.Add(took)
	k.mu.Unlock()
	reply := play.Reply(200)
	if wait += took; k.gateway > 0 && wait > k.gateway {
		wait, reply = k.gateway, play.Reply(504)
	}
	return after(wait, reply)(r)
}

// recovery returns the seconds from the end of a brownout of 10 s until 95 % of the requests
// to the keyspace succeed, and the sends for each. 40 clients send it 35 requests a second,
// of the 50 that it can serve, and so many times as many to the rest of the host.
func (k *keyspace) recovery(t *testing.T, p retrip.Policy, well float64) (seconds int, sends float64) {
	synctest.Test(t, func(t *testing.T) {
		const rate, clients, watched = 35, 40, 100
		k.took, k.from, k.to = 20*time.Millisecond, time.Now().Add(5*time.Second), time.Now().Add(15*time.Second)
		random := rand.New(rand.NewPCG(1, 2))
		var fleet [clients]*retrip.Transport
		for i := range fleet {
			fleet[i] = &retrip.Transport{Base: k, Policy: p}
		}
		var requests sync.WaitGroup
		var mu sync.Mutex
		var good, all [watched]int
		total := 0
		begun := time.Now()
		for time.Since(begun) < watched*time.Second {
			time.Sleep(time.Duration(random.ExpFloat64() * float64(time.Second) / (rate * (1 + well))))
			path, second := "key", min(watched-1, int(time.Since(begun)/time.Second))
			if random.Float64() < well/(1+well) {
				path = "well"
			} else {
				total++
				all[second]++
			}
			tr := fleet[random.IntN(clients)]
			requests.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				req := play.Request(t, http.MethodGet, nil).WithContext(ctx)
				req.URL.Path = "/items/" + path
				resp, err := tr.RoundTrip(req)
				if err != nil {
					return
				}
				play.Finish(t, resp)
				if resp.StatusCode == 200 && path == "key" {
					mu.Lock()
					good[second]++
					mu.Unlock()
				}
			})
		}
		requests.Wait()
		sends = float64(k.sends) / float64(total)
		for seconds = range watched - 20 {
			at := 15 + seconds
			if sum(good[at:at+5]) >= 95*sum(all[at:at+5])/100 {
				return
			}
		}
	})
	return seconds, sends
}

func sum(list []int) (n int) {
	for _, x := range list {
		n += x
	}
	return n
}

// A fleet recovers from the overload of a part of a host as if nobody retried, however well
// the rest of the host is.
//
//retrip:promise P14
func TestParts_Recover(t *testing.T) {
	for _, tt := range []struct {
		well    float64 // requests to the rest of the host for each to the part
		gateway time.Duration
		timeout time.Duration
		queue   time.Duration
	}{
		{4, time.Second, 0, 2 * time.Second},
		{1, 0, time.Second, 2 * time.Second},
		{1, time.Second, 0, 2 * time.Second},
		{0.25, time.Second, 0, 2 * time.Second},
		{4, time.Second, 0, time.Second},
	}[:testenv.Size(2, 5)] {
		t.Run(fmt.Sprintf("%+v", tt), func(t *testing.T) {
			run := func(p retrip.Policy) (int, float64) {
				p.AttemptTimeout = tt.timeout
				return (&keyspace{queue: tt.queue, gateway: tt.gateway}).recovery(t, p, tt.well)
			}
			without, _ := run(retrip.Policy{MaxAttempts: 1})
			seconds, sends := run(retrip.Policy{})
			t.Logf("%d s with %.3f sends per request, and %d s without retries", seconds, sends, without)
			assert.LessOrEqual(t, seconds, without+2)
			assert.LessOrEqual(t, sends, 1.15)
			hasty, _ := run(retrip.Policy{MaxAttempts: 500, Backoff: retrip.Backoff{Base: retrip.Off}})
			t.Logf("%d s with 500 attempts without backoff", hasty)
			assert.LessOrEqual(t, hasty, without+4)
		})
	}
}

// If connections break or freeze, all requests on them are repeated, however many: the budget waits
// until it knows whether the host is well. If it isn't, hardly any is.
//
//retrip:promise P14
func TestBursts_LostConnections(t *testing.T) {
	lost := play.Err(syscall.ECONNRESET)
	breaks, hangs, well := after(time.Second, lost), after(time.Hour, lost), after(20*time.Millisecond, play.Reply(200))
	for _, tt := range []struct {
		name            string
		requests        int
		first, then     play.Step // of the first attempts, and of those after the loss
		saved, mostMore int
	}{
		{"few, well", 20, breaks, well, 20, 20},
		{"many, well", testenv.Size(400, 2000), breaks, well, 2000, 2000},
		{"dead", 200, breaks, lost, 0, 20},
		{"hangs", 200, breaks, hangs, 0, 200},
		{"few frozen, well", 20, hangs, well, 20, 20},
		{"many frozen, well", testenv.Size(400, 2000), hangs, well, 2000, 2000},
		{"frozen, dead", 200, hangs, lost, 0, 20},
		{"frozen, hangs", 200, hangs, hangs, 0, 20},
	} {
		play.Bubble(t, tt.name, func(t *testing.T) {
			var sends, saved atomic.Int64
			tr := &retrip.Transport{Policy: retrip.Policy{Budget: 5, AttemptTimeout: 10 * time.Second}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				if int(sends.Add(1)) <= tt.requests {
					return tt.first(r)
				}
				return tt.then(r)
			})}
			var requests sync.WaitGroup
			for range tt.requests {
				requests.Go(func() {
					if resp, err := tr.RoundTrip(play.Request(t, http.MethodGet, nil)); err == nil {
						play.Finish(t, resp)
						saved.Add(1)
					}
				})
			}
			requests.Wait()
			t.Logf("%d of %d saved with %d sends", saved.Load(), tt.requests, sends.Load())
			assert.EqualValues(t, min(tt.requests, tt.saved), saved.Load())
			assert.LessOrEqual(t, int(sends.Load()), tt.requests+tt.mostMore)
			if tt.saved > 0 {
				assert.Empty(t, play.Held(tr), "retries that succeed cost nothing")
			}
		})
	}
}
