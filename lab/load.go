// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip"
)

// Load is a crowd of callers for a single run. Seed determines all its
// requests; their outcomes depend on the network and the scheduler.
type Load struct {
	Client  *http.Client
	URL     string
	Seed    uint64
	Callers int
	Files   string // a directory for bodies in files

	bodies  atomic.Int64 // request bodies passed to the client
	closed  atomic.Int64 // those it has closed
	holders atomic.Int64 // requests whose context is still referenced

	mu     sync.Mutex
	notes  []note // by number
	report Report
}

// kind is a kind of request.
type kind int

const (
	get kind = iota
	del
	putBytes  // with GetBody
	putStream // small enough to be kept
	putLarge  // a stream too large to be kept
	putFile
	postKeyed
	postBytes
	postStream
	kinds
)

// repeatable reports whether a request of this kind may be sent again after any
// outcome.
func (k kind) repeatable() bool { return k < postBytes && k != putLarge }

// Report is the result of a [Load].
type Report struct {
	Requests, Succeeded [kinds]int // by kind; a success is a 200 with the complete, correct body
	Mixed               int        // answers of another request, or with another body
	Unclosed            int        // request bodies left open
}

func (r *Report) total() (n int) {
	for _, requests := range r.Requests {
		n += requests
	}
	return n
}

// Rate returns the share of requests that succeeded: of the repeatable kinds if
// repeatable is true, of all kinds otherwise.
func (r *Report) Rate(repeatable bool) float64 {
	requests, succeeded := 0, 0
	for k := range kinds {
		if !repeatable || k.repeatable() {
			requests += r.Requests[k]
			succeeded += r.Succeeded[k]
		}
	}
	return float64(succeeded) / float64(requests)
}

// Run makes requests until ctx ends or the given number has been started, and
// waits for their outcomes.
func (l *Load) Run(ctx context.Context, most int) (*Report, error) {
	var wg sync.WaitGroup
	errs := make(chan error, l.Callers)
	for range l.Callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				id, ok := l.begin(most)
				if !ok {
					return
				}
				if err := l.one(id); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return nil, err
	default:
	}
	r := l.report
	// A request whose answer was given up may still be in progress, and its
	// body is closed only when the last attempt's write loop notices.
	within(30*time.Second, func() bool { return l.closed.Load() >= l.bodies.Load() })
	r.Unclosed = int(l.bodies.Load() - l.closed.Load())
	return &r, nil
}

// begin returns the number of the next request, or false once most have been
// started.
func (l *Load) begin(most int) (id int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.notes) >= most {
		return 0, false
	}
	l.notes = append(l.notes, 0)
	return len(l.notes) - 1, true
}

// Held waits up to the given time and returns how many requests still have a
// referenced context, held by a timer, a goroutine or a table.
func (l *Load) Held(wait time.Duration) int {
	within(wait, func() bool {
		runtime.GC()
		if l.holders.Load() == 0 {
			return true
		}
		dropStoppedTimers()
		return false
	})
	return int(l.holders.Load())
}

// dropStoppedTimers makes the runtime release stopped timers. On its own it
// does so only on a processor on which more than a quarter of the timers are
// stopped.
func dropStoppedTimers() {
	var wg sync.WaitGroup
	for range 4 * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			timers := make([]*time.Timer, 1000)
			for i := range timers {
				timers[i] = time.AfterFunc(time.Hour, func() {})
			}
			for _, t := range timers {
				t.Stop()
			}
		})
	}
	wg.Wait()
}

// within polls until done returns true or d has passed.
func within(d time.Duration, done func() bool) bool {
	for end := time.Now().Add(d); !done(); {
		if time.Now().After(end) {
			return false
		}
		pause(context.Background(), 10*time.Millisecond)
	}
	return true
}

// contextKey is the key of a value that only marks a context, so that its
// garbage collection can be observed.
type contextKey struct{}

// marked returns a context that [Load.Held] counts as long as it is referenced.
func (l *Load) marked() context.Context {
	mark := new([16]byte)
	l.holders.Add(1)
	runtime.AddCleanup(mark, func(n *atomic.Int64) { n.Add(-1) }, &l.holders)
	return context.WithValue(context.Background(), contextKey{}, mark)
}

// one makes request number id. An error means a fault of the lab itself.
func (l *Load) one(id int) error {
	draws := rand.New(rand.NewPCG(l.Seed, uint64(id)<<8))
	k := kind(draws.IntN(int(kinds)))
	ctx := l.marked()
	if draws.IntN(2) == 0 {
		// This deadline outlasts the run.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Minute)
		defer cancel()
	} else {
		// The other requests have a limit from the policy, whose timer must be
		// released with the request.
		ctx = retrip.WithPolicy(ctx, retrip.Policy{AttemptTimeout: 250 * time.Millisecond})
	}
	want := draws.IntN(2 << 10)
	if draws.IntN(10) == 0 {
		want = draws.IntN(64 << 10)
	}
	body, err := l.body(k, draws)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, methodOf(k), l.URL, body.reader)
	if err != nil {
		return err
	}
	if body.reader != nil {
		if body.again != nil {
			req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(body.again()), nil }
			req.ContentLength = int64(len(body.content))
		}
		l.bodies.Add(1)
	}
	sum := sha256.Sum256(body.content)
	req.Header.Set(idField, strconv.Itoa(id))
	req.Header.Set(lengthField, strconv.Itoa(len(body.content)))
	req.Header.Set(sumField, hex.EncodeToString(sum[:]))
	req.Header.Set(wantField, strconv.Itoa(want))
	if k == postKeyed {
		req.Header.Set("Idempotency-Key", strconv.Itoa(id))
	}
	resp, err := l.Client.Do(req)
	l.tell(k, id, want, resp, err)
	return nil
}

// tell records what the caller of request id was told.
func (l *Load) tell(k kind, id, want int, resp *http.Response, err error) {
	n := answered
	if !k.repeatable() || k == postKeyed {
		n |= onlyOnce
	}
	mixed, succeeded := 0, 0
	if err == nil {
		if resp.StatusCode/100 == 2 {
			n |= promised
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		whole := resp.StatusCode == http.StatusOK && err == nil
		switch {
		case resp.Header.Get(idField) != strconv.Itoa(id), whole && !bytes.Equal(got, noise()[:want]):
			mixed = 1
		case whole:
			succeeded = 1
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report.Requests[k]++
	l.report.Succeeded[k] += succeeded
	l.report.Mixed += mixed
	l.notes[id] = n
}

func methodOf(k kind) string {
	switch k {
	case get:
		return http.MethodGet
	case del:
		return http.MethodDelete
	case postKeyed, postBytes, postStream:
		return http.MethodPost
	default:
		return http.MethodPut
	}
}

// body is the body of a request.
type body struct {
	content []byte
	reader  io.ReadCloser
	again   func() io.Reader // for GetBody
}

func (l *Load) body(k kind, draws *rand.Rand) (body, error) {
	size := draws.IntN(8 << 10)
	switch k {
	case get, del:
		return body{}, nil
	case putLarge:
		size = 128<<10 + draws.IntN(512<<10)
	case putBytes, putFile:
		if draws.IntN(8) == 0 {
			size = draws.IntN(512 << 10)
		}
	}
	start := draws.IntN(len(noise()) - size)
	b := body{content: noise()[start : start+size]}
	switch k {
	case putBytes, postKeyed, postBytes:
		b.again = func() io.Reader { return bytes.NewReader(b.content) }
		b.reader = &closing{Reader: b.again(), closed: &l.closed}
	case putFile:
		file, err := os.CreateTemp(l.Files, "body")
		if err != nil {
			return b, err
		}
		if err := os.Remove(file.Name()); err != nil { // removed already, and gone once closed
			return b, err
		}
		if _, err := file.Write(b.content); err != nil {
			return b, err
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return b, err
		}
		// retrip must get the file itself; descriptors still open at the end
		// show whether it was closed.
		l.closed.Add(1)
		b.reader = file
	default:
		b.reader = &closing{Reader: bytes.NewReader(b.content), closed: &l.closed}
	}
	return b, nil
}

// closing counts the first call of Close.
type closing struct {
	io.Reader
	once   sync.Once
	closed *atomic.Int64
}

func (c *closing) Close() error {
	c.once.Do(func() { c.closed.Add(1) })
	return nil
}
