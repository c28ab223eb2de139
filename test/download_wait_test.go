// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
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

// A body keeps the bound of its own policy, also while it waits. Its error says what happened
// before the wait and last.
//
//retrip:promise P20
func TestResume_KeepsItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, first := newOutage(1000), errors.New("the first time")
		base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := o.RoundTrip(req)
			if o.asks == 1 {
				err = first
			}
			return resp, err
		})
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Resume: time.Minute}}
		o.leaves(time.Second, -1)
		time.AfterFunc(10*time.Second, func() { assert.NoError(t, tr.SetPolicies(retrip.Policy{Resume: retrip.Off}, nil)) })
		began := time.Now()
		_, err := fetch(t, tr)
		for _, want := range []error{syscall.ECONNRESET, first, syscall.ECONNREFUSED} {
			require.ErrorIs(t, err, want)
		}
		assert.InDelta(t, float64(time.Minute+time.Second), float64(time.Since(began)), float64(6*time.Second))
		assert.Regexp(t, `: no_progress, (5\d(\.\d+)?s|1m0\.\d+s) after the last byte$`, err.Error())
	})
}
