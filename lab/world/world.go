// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/chance"
	"github.com/retrip/retrip/internal/memhttp"
)

// world is a Plan that runs.
type world struct {
	plan    *Plan
	began   time.Time
	sites   []*site
	clients []*client
	metrics []*retrip.Metrics
	fleet   *retrip.Fleet
	logs    *logs
	relays  sync.WaitGroup
	ended   chan struct{} // closed when the servers end
	over    bool
	calm    atomic.Bool // no more faults

	mu         sync.Mutex
	calls      []weak.Pointer[callOf]
	trips      map[int]*roundTrip
	order      []*roundTrip
	uploads    []*upload
	downloads  []*download
	violations []Violation
	lines      []line

	draws struct {
		sync.Mutex
		at time.Time
		n  int
	}
	asked   atomic.Int32       // operations of the fleet's store
	charged map[string]float64 // by host: the tokens of these
	levels  map[string][]told  // by host
}

func (w *world) now() time.Duration { return time.Since(w.began) }

func (w *world) log(format string, args ...any) {
	l := line{w.now(), fmt.Sprintf(format, args...)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, l)
}

// breaks notes that a promise is broken.
func (w *world) breaks(promise, format string, args ...any) {
	v := Violation{w.now(), promise, fmt.Sprintf(format, args...)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, v)
}

func (w *world) trip(id int) *roundTrip {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.trips[id]
}

func (w *world) keep(r *roundTrip) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trips[r.id] = r
	w.order = append(w.order, r)
}

// opened notes a request body that somebody must close.
func (w *world) opened(u *upload) *upload {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.uploads = append(w.uploads, u)
	return u
}

// logs collects what the Loggers write.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// A stream yields random numbers for one thing, which don't depend on what happens to
// other things.
type stream struct{ state uint64 }

func hashOf(what ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, what...)
	return h.Sum64()
}

func (w *world) chance(key uint64) *stream { return &stream{key ^ uint64(w.plan.Salt)<<32} }

func (s *stream) next() uint64 {
	s.state += 0x9e3779b97f4a7c15
	z := s.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// tiny returns a short time, which keeps instants apart.
func (s *stream) tiny() time.Duration { return time.Duration(1 + s.next()%100_003) }

// draw is the source of the library's random numbers: they follow from the instant.
func (w *world) draw() uint64 {
	now := time.Now()
	w.draws.Lock()
	defer w.draws.Unlock()
	if !now.Equal(w.draws.at) {
		w.draws.at, w.draws.n = now, 0
	}
	w.draws.n++
	s := stream{uint64(now.Sub(w.began)) ^ uint64(w.plan.Salt)<<32 ^ uint64(w.draws.n)<<56}
	return s.next()
}

// Run runs the world of plan.
//
// Run must have the process for itself: it uses one processor and doesn't collect
// garbage, so that goroutines that can run at one instant run in the same order each
// time.
func Run(t *testing.T, plan *Plan) (o Outcome) {
	var w *world
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer func() {
		chance.Source = nil
		if p := recover(); p != nil {
			if !strings.Contains(fmt.Sprint(p), "deadlock") {
				panic(p)
			}
			// Something waits for ever, or has outlived the world.
			w.violations = append(w.violations, Violation{0, "P13", fmt.Sprint(p)})
			o = w.outcome()
		}
	}()
	// Virtual time stands still while a goroutine waits for a mutex, or runs for ever.
	stuck := time.AfterFunc(time.Minute, func() {
		buf := make([]byte, 1<<20)
		fmt.Fprintf(os.Stderr, "a world doesn't end: %+v\n%s\n", *plan, buf[:runtime.Stack(buf, true)])
		os.Exit(3)
	})
	defer stuck.Stop()
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(plan)
		chance.Source = w.draw
		w.run(t)
	})
	return w.outcome()
}

func newWorld(plan *Plan) *world {
	w := &world{plan: plan, began: time.Now(), logs: &logs{}, ended: make(chan struct{}), trips: map[int]*roundTrip{}, charged: map[string]float64{}, levels: map[string][]told{}}
	for range 3 {
		w.metrics = append(w.metrics, &retrip.Metrics{})
	}
	if len(plan.Store) > 0 {
		w.fleet = retrip.NewFleet(w.store())
	} else {
		w.fleet = retrip.NewFleet(nil)
	}
	for i, s := range plan.Sites {
		w.sites = append(w.sites, &site{w: w, number: i, plan: s, front: memhttp.Listen()})
	}
	for i := range plan.Transports {
		w.clients = append(w.clients, w.newClient(i, &plan.Transports[i]))
	}
	return w
}

// run runs the world to its end, and checks what can be seen only then.
func (w *world) run(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var events, callers sync.WaitGroup
	for _, s := range w.sites {
		s.start()
		for _, o := range s.plan.Outages {
			events.Go(func() {
				if pause(ctx, o.From) == nil {
					s.begin(o)
				}
			})
		}
	}
	for _, o := range w.plan.Operations {
		events.Go(func() {
			if pause(ctx, o.At) == nil {
				w.operate(t, o)
			}
		})
	}
	for i := range w.plan.Callers {
		callers.Go(func() { w.caller(i, &w.plan.Callers[i]) })
	}
	callers.Wait()
	cancel()
	events.Wait()
	// What the callers have left behind comes to its end.
	time.Sleep(time.Minute)
	synctest.Wait()
	w.check()
	w.checkQuiet(t)
	w.calm.Store(true)
	for _, s := range w.sites {
		for _, r := range s.relays {
			if r.frozen.Load() {
				r.reset()
			}
		}
	}
	w.checkProbes()
	w.log("26 hours pass")
	time.Sleep(45 * time.Minute)
	w.checkRest()
	time.Sleep(25*time.Hour + 15*time.Minute)
	w.checkCalm()
	w.checkConnections()
	w.end()
}

// end ends everything.
func (w *world) end() {
	for _, c := range w.clients {
		c.retrip.CloseIdleConnections()
	}
	_ = w.fleet.Close()
	w.setOver()
	close(w.ended)
	for _, s := range w.sites {
		s.stop()
	}
	w.relays.Wait()
	for _, s := range w.sites {
		_ = s.front.Close()
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	for _, s := range w.sites {
		if n := s.front.Open(); n > 0 {
			w.breaks("P13", "%d connections to s%d are open after the end", n, s.number)
		}
	}
	w.checkBodies()
	w.checkHeld()
}

func (w *world) setOver() {
	for _, s := range w.sites {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	w.over = true
}

// Violation says which promise broke, and when.
type Violation struct {
	At      time.Duration
	Promise string
	Text    string
}

func (v Violation) String() string { return fmt.Sprintf("%v: %s: %s", v.At, v.Promise, v.Text) }

// line is a line of the story.
type line struct {
	at   time.Duration
	text string
}

// Outcome is what is known after the end of a world.
type Outcome struct {
	Violations []Violation
	lines      []line
}

func (w *world) outcome() Outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Outcome{Violations: w.violations, lines: w.lines}
}

// Story returns all that happened, in its order.
func (o Outcome) Story() []string {
	story := make([]string, len(o.lines))
	for i, l := range o.lines {
		story[i] = fmt.Sprintf("%v %s", l.at, l.text)
	}
	return story
}

// Log returns the story in an order that doesn't depend on the scheduler: what happens
// at one instant is sorted.
func (o Outcome) Log() string {
	lines := slices.Clone(o.lines)
	slices.SortFunc(lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(a.at, b.at), strings.Compare(a.text, b.text))
	})
	return strings.Join(Outcome{lines: lines}.Story(), "\n")
}
