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

// outage is a Base whose host breaks all bodies when it goes away, and refuses
// connections until it is back.
type outage struct {
	*store
	mu     sync.Mutex
	down   bool
	gone   chan struct{} // closed when the host goes away
	asks   int           // while it was down, and after
	during int           // at once, now
	most   int           // at once
}

func newOutage(size int) *outage {
	return &outage{store: &store{etag: `"a"`, data: randomBytes(size, 1)}, gone: make(chan struct{})}
}

func (o *outage) RoundTrip(req *http.Request) (*http.Response, error) {
	continues := req.Header.Get("Range") != ""
	o.mu.Lock()
	if continues {
		o.asks++
		o.during++
		o.most = max(o.most, o.during)
	}
	o.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
	o.mu.Lock()
	defer o.mu.Unlock()
	if continues {
		o.during--
	}
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

// All bodies that break at once are continued, however long their host is away, and
// the host is asked seldom meanwhile.
//
//retrip:promise P20
func TestResume_HostAway(t *testing.T) {
	for _, c := range []struct {
		name   string
		bodies int
		down   time.Duration
		after  time.Duration // at most, from the return of the host
		asks   int           // at most
	}{
		{"1 s", 50, time.Second, 12 * time.Second, 80},
		{"10 s", 50, 10 * time.Second, 22 * time.Second, 80},
		{"60 s", 50, time.Minute, 22 * time.Second, 90},
		{"200 at once", 200, 0, 8 * time.Second, 210},
	} {
		bubble(t, c.name, func(t *testing.T) {
			o := newOutage(10_000)
			// A body that waits hasn't been given up.
			tr := &retrip.Transport{Base: o, Policy: retrip.Policy{Resume: 2 * time.Minute}, Trace: &retrip.Trace{GiveUp: func(e retrip.Event) { t.Error(e.Reason) }}}
			began := time.Now()
			o.leaves(time.Second, c.down)
			assert.Equal(t, c.bodies, o.read(t, tr, c.bodies))
			took := time.Since(began) - time.Second - c.down
			t.Logf("%d bodies, away %v: whole %v after the return, %d requests, %d at once", c.bodies, c.down, took, o.asks, o.most)
			assert.LessOrEqual(t, took, c.after)
			assert.LessOrEqual(t, o.asks, c.asks)
		})
	}
}

// All bodies are continued, too, when the host keeps silent while it is away, and when
// its answers usually take a large part of AttemptTimeout.
//
//retrip:promise P20
func TestResume_SilentOutage(t *testing.T) {
	const bodies = 50
	for _, c := range []struct{ resume, down time.Duration }{
		{time.Minute, time.Second}, {time.Minute, 10 * time.Second}, {5 * time.Minute, 30 * time.Second}, {10 * time.Minute, time.Minute},
	} {
		for _, silent := range []bool{false, true} {
			for _, latency := range []time.Duration{10 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond} {
				synctest.Test(t, func(t *testing.T) {
					o := newOutage(10_000)
					base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
						o.mu.Lock()
						down := o.down
						o.mu.Unlock()
						if down && silent {
							<-req.Context().Done()
							return nil, req.Context().Err()
						}
						time.Sleep(latency - 10*time.Millisecond)
						return o.RoundTrip(req)
					})
					o.leaves(time.Second, c.down)
					tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Resume: c.resume, AttemptTimeout: time.Second}}
					assert.Equal(t, bodies, o.read(t, tr, bodies), "Resume %v, away %v, silent %t, an answer takes %v", c.resume, c.down, silent, latency)
				})
			}
		}
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
				<-req.Context().Done()
				return nil, req.Context().Err()
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
			const longest = 15 * time.Minute // Resume/4; the first turn comes after a quarter of it
			o := newOutage(1000)
			tr := &retrip.Transport{Base: o, Policy: retrip.Policy{Resume: time.Hour, Budget: 1, Backoff: retrip.Backoff{Cap: 24 * time.Hour}}}
			o.leaves(time.Second, -1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			client := &http.Client{Transport: tr}
			if how == "client" {
				client.Timeout = 10 * time.Minute
			}
			if how == "hook" {
				ctx = retrip.WithTrace(ctx, &retrip.Trace{Retry: func(e retrip.Event) {
					if e.Attempt >= 3 {
						panic("a hook")
					}
				}})
			}
			var wg sync.WaitGroup
			var left atomic.Int32
			for range 5 {
				resp, err := client.Do(play.Request(t, http.MethodGet, nil).WithContext(ctx))
				require.NoError(t, err)
				if how == "close" {
					time.AfterFunc(10*time.Minute, func() { assert.NoError(t, resp.Body.Close()) })
				}
				wg.Go(func() {
					defer left.Add(1)
					defer func() { assert.Equal(t, how == "hook", recover() != nil) }()
					_, err := io.ReadAll(resp.Body)
					assert.Error(t, err)
					assert.NoError(t, resp.Body.Close())
				})
			}
			time.Sleep(10*time.Minute - 100*time.Millisecond)
			if how != "hook" {
				assert.Zero(t, left.Load(), "they wait")
				time.Sleep(99 * time.Millisecond)
				if how == "context" {
					cancel()
				}
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
				assert.EqualValues(t, 5, left.Load(), "they leave at once")
			}
			wg.Wait()
			o.down = false
			began := time.Now()
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
			s := &store{etag: `"a"`, data: randomBytes(1000, 1), at: once(500, syscall.ECONNRESET)}
			base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				if req.URL.Path != "/other" {
					return s.RoundTrip(req)
				}
				if timeouts {
					<-req.Context().Done()
					return nil, req.Context().Err()
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

// Ten minutes of a line that breaks, is away and crawls at random: the file arrives
// whole.
//
//retrip:promise P20
func TestResume_Flaky(t *testing.T) {
	testenv.Slow(t)
	for seed := range uint64(testenv.Size(1, 3)) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 3))
			s := &store{etag: `"a"`, data: randomBytes(2<<20, 1)}
			var until time.Time // the line is away
			line := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				if wait := time.Until(until); wait > 0 {
					time.Sleep(min(wait, 20*time.Millisecond))
					return nil, syscall.ENETUNREACH
				}
				time.Sleep(600 * time.Millisecond)
				resp, err := s.RoundTrip(req)
				left, body := 1+random.IntN(30<<10), resp.Body
				resp.Body = io.NopCloser(testenv.Reader(func(p []byte) (int, error) {
					if left == 0 {
						if random.IntN(4) == 0 {
							until = time.Now().Add(time.Duration(random.Int64N(int64(50 * time.Second))))
						}
						return 0, []error{syscall.ECONNRESET, io.ErrUnexpectedEOF}[random.IntN(2)]
					}
					time.Sleep(100 * time.Millisecond)
					n, err := body.Read(p[:min(len(p), left, 1<<10)])
					left -= n
					return n, err
				}))
				return resp, err
			})
			began := time.Now()
			got, err := fetch(t, &retrip.Transport{Base: line, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: 10 * time.Second}})
			require.NoError(t, err)
			assert.Equal(t, sha256.Sum256(s.data), sha256.Sum256(got))
			assert.Greater(t, time.Since(began), 10*time.Minute)
			t.Logf("%d responses in %v", len(s.asks), time.Since(began))
		})
	}
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
					return &http.Response{StatusCode: 503, Body: http.NoBody, Request: req}, nil
				}
				time.Sleep(latency)
				o.mu.Lock()
				refuse := limited && !o.down && req.Header.Get("Range") != "" && refused < 20 && coin()
				if refuse {
					refused++
				}
				o.mu.Unlock()
				if refuse {
					header := http.Header{}
					if coin() {
						header.Set("Retry-After", "2")
					}
					return &http.Response{StatusCode: 429, Header: header, Body: http.NoBody, Request: req}, nil
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
