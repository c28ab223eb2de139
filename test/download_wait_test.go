// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// outage is a Base whose host breaks all bodies when it goes away, and until it is back
// refuses connections, or keeps silent.
type outage struct {
	*store
	latency time.Duration // of an answer
	silent  bool
	mu      sync.Mutex
	down    bool
	gone    chan struct{} // closed when the host goes away
	asks    int           // while it was down, and after
}

func newOutage(size int) *outage {
	return &outage{store: newStore(size), latency: 10 * time.Millisecond, gone: make(chan struct{})}
}

func (o *outage) RoundTrip(req *http.Request) (*http.Response, error) {
	continues := req.Header.Get("Range") != ""
	o.mu.Lock()
	down := o.down
	if continues {
		o.asks++
	}
	o.mu.Unlock()
	if down && o.silent {
		return play.Hang(req)
	}
	time.Sleep(o.latency)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down {
		return nil, syscall.ECONNREFUSED
	}
	resp, err := o.store.RoundTrip(req)
	if !continues {
		resp.Body = &away{ReadCloser: resp.Body, left: len(o.data) / 2, gone: o.gone}
	}
	return resp, err
}

// away is a body that stops in its middle until the host goes away.
type away struct {
	io.ReadCloser
	left int
	gone chan struct{}
}

func (a *away) Read(p []byte) (int, error) {
	if a.left == 0 {
		<-a.gone
		return 0, syscall.ECONNRESET
	}
	n, err := a.ReadCloser.Read(p[:min(len(p), a.left)])
	a.left -= n
	return n, err
}

// leaves lets the host go away after a while, and come back later: at once if away is 0,
// and never if it is negative.
func (o *outage) leaves(after, away time.Duration) {
	time.AfterFunc(after, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.down = away != 0
		close(o.gone)
	})
	if away > 0 {
		time.AfterFunc(after+away, func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.down = false
		})
	}
}

// read reads n bodies at once through tr, and returns how many were whole.
func (o *outage) read(t *testing.T, tr *retrip.Transport, n int) (whole int) {
	want := sha256.Sum256(o.data)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range n {
		wg.Go(func() {
			got, err := fetch(t, tr)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && sha256.Sum256(got) == want {
				whole++
			}
		})
	}
	wg.Wait()
	return whole
}

// All bodies that break at once are continued, however long their host is away, and the
// host is asked seldom meanwhile. It may keep silent then, and its answers may take a large
// part of AttemptTimeout.
//
//retrip:promise P20
func TestResume_HostAway(t *testing.T) {
	type row struct {
		bodies               int
		resume, down, answer time.Duration
		timeout              time.Duration // AttemptTimeout
		silent               bool
		after                time.Duration // at most, from the return of the host
		asks                 int           // at most
	}
	const ms, s = time.Millisecond, time.Second
	rows := []row{
		{bodies: 50, down: s, resume: 120 * s, answer: 10 * ms, after: 12 * s, asks: 80},
		{bodies: 50, down: 10 * s, resume: 120 * s, answer: 10 * ms, after: 22 * s, asks: 80},
		{bodies: 50, down: 60 * s, resume: 120 * s, answer: 10 * ms, after: 22 * s, asks: 90},
		{bodies: 200, down: 0, resume: 120 * s, answer: 10 * ms, after: 8 * s, asks: 210},
	}
	for down, resume := range map[time.Duration]time.Duration{s: 60 * s, 10 * s: 60 * s, 30 * s: 300 * s, 60 * s: 600 * s} {
		for _, answer := range []time.Duration{10 * ms, 200 * ms, 400 * ms} {
			for _, silent := range []bool{false, true} {
				rows = append(rows, row{bodies: 50, resume: resume, down: down, answer: answer, timeout: s, silent: silent, after: time.Hour, asks: 1e6})
			}
		}
	}
	for _, c := range rows {
		bubble(t, fmt.Sprintf("%+v", c), func(t *testing.T) {
			o := newOutage(10_000)
			o.latency, o.silent = c.answer, c.silent
			tr := &retrip.Transport{Base: o, Policy: retrip.Policy{Resume: c.resume, AttemptTimeout: c.timeout}}
			tr.Trace = &retrip.Trace{GiveUp: func(e retrip.Event) { t.Error("a body that waits hasn't been given up: ", e.Reason) }}
			began := time.Now()
			o.leaves(s, c.down)
			assert.Equal(t, c.bodies, o.read(t, tr, c.bodies))
			assert.LessOrEqual(t, time.Since(began)-s-c.down, c.after)
			assert.LessOrEqual(t, o.asks, c.asks)
		})
	}
}

// A host that never answers some of the bodies doesn't hold up the others, although no
// policy bounds an attempt.
//
//retrip:promise P20
func TestResume_SilentTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bodies, silent = 20, 3
		o := newOutage(10_000)
		var turns atomic.Int32
		base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
			o.mu.Lock()
			waited := o.asks > bodies && !o.down
			o.mu.Unlock()
			if waited && turns.Add(1) <= silent {
				return play.Hang(req)
			}
			return o.RoundTrip(req)
		})
		o.leaves(time.Second, 10*time.Second)
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Resume: 2 * time.Minute}}
		assert.Equal(t, bodies-silent, o.read(t, tr, bodies))
	})
}

// Whoever waits for a turn leaves at once, with a context that ends, a Close or the
// timeout of an http.Client. Nothing of the wait stays: a body that breaks later gets its
// turn, and as soon as at a host that nobody has asked yet.
//
//retrip:promise P20
func TestResume_LeavesTurns(t *testing.T) {
	for _, how := range []string{"context", "close", "client", "hook"} {
		bubble(t, how, func(t *testing.T) {
			const longest, leave = 15 * time.Minute, 10 * time.Minute // Resume/4; the first turn comes after a quarter of it
			o := newOutage(1000)
			tr := &retrip.Transport{Base: o, Policy: retrip.Policy{Resume: time.Hour, Budget: 1, Backoff: retrip.Backoff{Cap: 24 * time.Hour}}}
			o.leaves(time.Second, -1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			client := &http.Client{Transport: tr}
			switch how {
			case "context":
				time.AfterFunc(leave, cancel)
			case "client":
				client.Timeout = leave
			case "hook":
				ctx = retrip.WithTrace(ctx, &retrip.Trace{Retry: func(e retrip.Event) {
					if e.Attempt >= 3 {
						panic("a hook")
					}
				}})
			}
			began := time.Now()
			var wg sync.WaitGroup
			for range 5 {
				resp, err := client.Do(play.Request(t, http.MethodGet, nil).WithContext(ctx))
				require.NoError(t, err)
				if how == "close" {
					time.AfterFunc(leave, func() { assert.NoError(t, resp.Body.Close()) })
				}
				wg.Go(func() {
					defer func() {
						assert.Equal(t, how == "hook", recover() != nil)
						if how != "hook" {
							assert.InDelta(t, float64(leave), float64(time.Since(began)), float64(100*time.Millisecond), "at once")
						}
					}()
					_, err := io.ReadAll(resp.Body)
					assert.Error(t, err)
					assert.NoError(t, resp.Body.Close())
				})
			}
			wg.Wait()
			o.down = false
			began = time.Now()
			got, err := fetch(t, tr)
			require.NoError(t, err)
			assert.Equal(t, o.data, got)
			assert.LessOrEqual(t, time.Since(began), longest/4+time.Second)
		})
	}
}

// While other requests to the host time out, a turn is put off, but not for ever.
func TestResume_OthersComeFirst(t *testing.T) {
	took := func(timeouts bool) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			s := newStore(1000, breaks(500, reset))
			base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				if req.URL.Path != "/other" {
					return s.RoundTrip(req)
				}
				if timeouts {
					return play.Hang(req)
				}
				return testenv.Status(503).RoundTrip(req)
			})
			tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Budget: 1, Resume: time.Minute, Backoff: retrip.Backoff{Jitter: retrip.NoJitter}}}
			began := time.Now()
			others := func() {
				ctx := retrip.WithPolicy(t.Context(), retrip.Policy{AttemptTimeout: 10 * time.Millisecond, Backoff: retrip.Backoff{Base: retrip.Off}})
				for range 20 {
					go try(tr, play.Must(http.NewRequestWithContext(ctx, http.MethodGet, "http://example.com/other", nil)))
				}
				time.Sleep(100 * time.Millisecond)
			}
			others()
			go func() {
				for time.Since(began) < 8*time.Second {
					others()
				}
			}()
			_, err := fetch(t, tr)
			require.NoError(t, err)
			took = time.Since(began)
			time.Sleep(10 * time.Second)
		})
		return took
	}
	assert.Less(t, took(false), 3*time.Second)
	assert.Greater(t, took(true), 8*time.Second)
}

// A body keeps the bound of its own policy, also while it waits.
//
//retrip:promise P20
func TestResume_KeepsItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutage(1000)
		tr := &retrip.Transport{Base: o, Policy: retrip.Policy{Resume: time.Minute}}
		o.leaves(time.Second, -1)
		time.AfterFunc(10*time.Second, func() { assert.NoError(t, tr.SetPolicies(retrip.Policy{Resume: retrip.Off}, nil)) })
		began := time.Now()
		_, err := fetch(t, tr)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		assert.InDelta(t, float64(time.Minute+time.Second), float64(time.Since(began)), float64(6*time.Second))
		assert.Regexp(t, `: no_progress, (5\d(\.\d+)?s|1m0\.\d+s) after the last byte$`, err.Error())
	})
}

// Bodies that wait get on with whatever else holds requests back: a gate that their host
// closes, a breaker, a small budget, and requests of other hosts that take the places of
// their host's state.
//
//retrip:promise P20
func TestResume_WaitsBesideOthers(t *testing.T) {
	for seed := range uint64(testenv.Size(20, 60)) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 4))
			coin := func() bool { return random.IntN(2) == 0 }
			bodies, down := 1+random.IntN(30), time.Duration(random.Int64N(int64(90*time.Second)))
			o := newOutage(10_000)
			limited, latency := coin(), time.Duration(random.IntN(500))*time.Millisecond
			refused := 0
			base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				if req.Method == http.MethodPost { // another host
					return testenv.Status(503).RoundTrip(req)
				}
				time.Sleep(latency)
				o.mu.Lock()
				refuse := limited && !o.down && req.Header.Get("Range") != "" && refused < 20 && coin()
				if refuse {
					refused++
				}
				o.mu.Unlock()
				switch {
				case refuse && coin():
					return play.Reply(429, "Retry-After: 2")(req)
				case refuse:
					return play.Reply(429)(req)
				}
				return o.RoundTrip(req)
			})
			policy := retrip.Policy{Resume: 20 * time.Minute, MaxAttempts: 2 + random.IntN(9)}
			if coin() {
				policy.Gate.Enabled = retrip.On
			}
			if coin() {
				policy.Breaker = retrip.Breaker{Ratio: .5}
			}
			if coin() {
				policy.Budget = 1
			}
			if coin() {
				policy.AttemptTimeout = time.Second
			}
			tr := &retrip.Transport{Base: base, Policy: policy}
			crowd := time.AfterFunc(time.Second+down/2, func() {
				for i := range 5000 { // more hosts than have places
					try(tr, play.Must(http.NewRequest(http.MethodPost, fmt.Sprintf("http://h%d.example/", i), nil)))
				}
			})
			if coin() {
				crowd.Stop()
			}
			o.leaves(time.Second+latency, down)
			began := time.Now()
			assert.Equal(t, bodies, o.read(t, tr, bodies), "seed %d, %+v", seed, policy)
			assert.LessOrEqual(t, time.Since(began)-down, 10*time.Minute, "seed %d: %d bodies, latency %v, limited %t, down %v, %+v", seed, bodies, latency, limited, down, policy)
		})
	}
}

// If the deadline of a message has passed because the clock was set, the body waits no longer.
//
//retrip:promise P10 P20
func TestResume_ClockIsSet(t *testing.T) {
	for _, after := range []time.Duration{0, 10 * time.Second} {
		bubble(t, after.String(), func(t *testing.T) {
			var by atomic.Int64
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
			defer cancel()
			base := play.Base(sized(11, sends(200, "hello", io.ErrUnexpectedEOF, "ETag: \"a\"", "Accept-Ranges: bytes")), play.Reply(503))
			base.Keep = true
			resp := do(t, &retrip.Transport{Base: base, Policy: retrip.Policy{Resume: time.Minute, Backoff: retrip.Backoff{Cap: 5 * time.Second}}}, play.Request(t, http.MethodGet, nil).WithContext(setClock{ctx, &by}))
			time.Sleep(time.Second)
			began := time.Now()
			time.AfterFunc(after, func() { by.Store(int64(time.Hour)) })
			synctest.Wait()
			got, err := readAll(t, resp)
			assert.Equal(t, "hello", string(got))
			assert.ErrorContains(t, err, "at byte 5: deadline")
			assert.LessOrEqual(t, time.Since(began), after+5*time.Second, "the longest wait for a retry")
		})
	}
}
