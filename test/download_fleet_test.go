// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// shared is a host with one queue that a fleet shares. While it is away it refuses
// connections, or keeps silent.
type shared struct {
	service time.Duration // of a request
	silent  bool

	mu   sync.Mutex
	away bool
	free time.Time // the end of the queue
}

// serve waits in the queue. The host serves a request whose client has left, too.
func (s *shared) serve(ctx context.Context) error {
	s.mu.Lock()
	away := s.away
	now := time.Now()
	if !away {
		if s.free.Before(now) {
			s.free = now
		}
		s.free = s.free.Add(s.service)
	}
	wait := s.free.Sub(now)
	s.mu.Unlock()
	if away {
		if s.silent {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return syscall.ECONNREFUSED
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(wait):
		return nil
	}
}

// fleetAway lets a fleet read bodies of a host that goes away, while other requests use
// 70 % of it. It returns when, after the host's return, the last second ends in which
// fewer than 99 % of the other requests succeed, when the last body is continued, and how
// many bodies are whole.
func fleetAway(clients, bodies int, pause time.Duration, silent bool) (recovered, done time.Duration, whole int) {
	const share, seconds = 0.7, 60
	host := &shared{service: time.Second / time.Duration(clients), silent: silent}
	gone := make(chan struct{})
	content := newStore(1000)
	var mu sync.Mutex // of the content
	base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
		body := req.URL.Path == "/body"
		if body && req.Header.Get("Range") == "" {
			mu.Lock()
			defer mu.Unlock()
			resp, err := content.RoundTrip(req)
			resp.Body = &away{ReadCloser: resp.Body, left: len(content.data) / 2, gone: gone}
			return resp, err
		}
		if err := host.serve(req.Context()); err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		content.asks = nil
		return content.RoundTrip(req)
	})
	transports := make([]*retrip.Transport, clients)
	for i := range transports {
		transports[i] = &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: time.Second, Deadline: 10 * time.Second, Resume: 20 * time.Minute}}
	}
	var all, readers sync.WaitGroup
	var ends sync.Mutex
	for _, tr := range transports {
		for range bodies {
			readers.Go(func() {
				req, _ := http.NewRequest(http.MethodGet, "http://host.example/body", nil)
				resp, err := tr.RoundTrip(req)
				if err != nil {
					return
				}
				defer resp.Body.Close()
				n, err := io.Copy(io.Discard, resp.Body)
				ends.Lock()
				defer ends.Unlock()
				if err == nil && n == int64(len(content.data)) {
					whole++
				}
			})
		}
	}
	time.Sleep(time.Second)
	host.away = true
	close(gone)
	began := time.Now()
	random := rand.New(rand.NewPCG(1, uint64(pause)))
	var asked, good [seconds]int
	all.Go(func() { // the other requests
		for time.Since(began) < pause+seconds*time.Second {
			time.Sleep(time.Duration(random.ExpFloat64() * float64(host.service) / share))
			tr := transports[random.IntN(clients)]
			second := int((time.Since(began) - pause) / time.Second)
			all.Go(func() {
				req, _ := http.NewRequest(http.MethodGet, "http://host.example/", nil)
				resp, err := tr.RoundTrip(req)
				if err == nil {
					_ = resp.Body.Close()
				}
				if second >= 0 && second < seconds && time.Since(began) > pause {
					ends.Lock()
					defer ends.Unlock()
					asked[second]++
					if err == nil {
						good[second]++
					}
				}
			})
		}
	})
	time.Sleep(pause)
	host.mu.Lock()
	host.away = false
	host.mu.Unlock()
	readers.Wait()
	done = time.Since(began) - pause
	all.Wait()
	for i := range asked {
		if float64(good[i]) < .99*float64(asked[i]) {
			recovered = time.Duration(i+1) * time.Second
		}
	}
	return recovered, done, whole
}

// Bodies of a fleet that wait leave the host to its other requests: they succeed again as
// soon as without such bodies, or within three seconds.
//
//retrip:promise P20
func TestResume_Fleet(t *testing.T) {
	testenv.Slow(t)
	const bodies = 50
	away := map[time.Duration]int{10 * time.Second: 100} // clients
	if testenv.Tables() {
		away = map[time.Duration]int{time.Second: 100, 10 * time.Second: 1000, time.Minute: 100}
	}
	for pause, clients := range away {
		for _, silent := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				without, _, _ := fleetAway(clients, 0, pause, silent)
				recovered, done, whole := fleetAway(clients, bodies, pause, silent)
				t.Logf("silent %t, away %v: the others succeed after %v, %v without bodies; %d of %d bodies whole, the last after %v",
					silent, pause, recovered, without, whole, clients*bodies, done.Round(time.Second))
				assert.LessOrEqual(t, recovered, max(without, 3*time.Second))
				assert.Equal(t, clients*bodies, whole)
			})
		}
	}
}
