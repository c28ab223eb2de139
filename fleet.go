// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/retrip/retrip/internal/account"
)

// FleetStore keeps the accounts of a [Fleet] for all its processes: one number
// for each host. The module github.com/retrip/retrip/fleetredis keeps them in
// Redis or Valkey.
type FleetStore interface {
	// Add adds tokens to the account of a host, given as "example.com:443",
	// and returns what it then holds. Tokens may be negative, or 0 to read. An
	// account holds 0 to size; one that nobody has added to for a minute, or
	// ever, holds size. Whatever Add does, requests don't wait for it for more
	// than 50 ms, and an error, a panic or an answer that can't be one leaves
	// them to the local budget. Add is called from up to four goroutines of the
	// Fleet's own, and should return when ctx ends.
	Add(ctx context.Context, host string, tokens, size float64) (level float64, err error)
}

// Fleet is what all processes together may spend on retries to each host: an
// account that may forbid a retry which the budget of this process allows, and
// never the reverse. Make one for a program with [NewFleet], and set it in
// Transport.Fleet of all its Transports. Policy.FleetBudget is the size of an
// account.
//
// A retry that fails costs the account one token, unless nothing has succeeded
// in this process since its last one did: a process whose own network is dead
// must not spend what everyone has. A success without retry pays 0.2. While it holds less than half of its size, retries go out with a
// probability of level/(size/2). A process asks for the level when a request is
// to be retried and it hasn't heard one for a second; the request waits for the
// answer for at most 50 ms of a wait that it has anyway. A first attempt never
// asks. While the store is away the budget decides alone, for 5 to 15 s after
// each operation that failed. Rule and figures are in docs/fleet.md of the
// repository.
//
// It is safe for concurrent use.
type Fleet struct {
	store FleetStore
	own   bool // the store is the memory of this program, which answers at once
	epoch time.Time

	ready   chan *fleetView // those with an operation to make
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	workers sync.WaitGroup

	mu     sync.Mutex
	link   account.Link
	views  map[hostKey]*fleetView
	closed bool
	news   fleetNews
}

// fleetView is what a Fleet knows of an account. Fleet.mu guards it.
type fleetView struct {
	account.View
	host   hostKey
	size   float64
	owed   float64       // tokens that the next operation adds
	busy   bool          // an operation is under way, or waits for a worker
	since  time.Duration // since when
	answer chan struct{} // closed when it has ended
	asked  time.Duration // last time that a retry asked
}

const (
	fleetViews     = 4096 // hosts that are known at a time; others are left to the budget
	fleetWorkers   = 4
	fleetHostBytes = 255 + len(":65535")

	// What the store may take for itself: a first operation has a connection to
	// make. Requests have gone on long before.
	fleetPatience = time.Second
)

var (
	errFleetSlow  = errors.New("retrip: the fleet's store took longer than 50ms")
	errFleetPanic = errors.New("retrip: the fleet's store panicked")
)

// NewFleet returns a Fleet whose accounts are in store. It has four goroutines,
// which end with Close. If store is nil, the accounts are in the memory of this
// program, for all Transports that have the Fleet; then there is no goroutine
// and nothing to close.
func NewFleet(store FleetStore) *Fleet {
	f := &Fleet{store: store, epoch: time.Now(), views: map[hostKey]*fleetView{}}
	if store == nil {
		f.store, f.own = &fleetMemory{accounts: map[string]fleetAccount{}}, true
		return f
	}
	f.ready = make(chan *fleetView, fleetViews)
	f.ctx, f.cancel = context.WithCancel(context.Background())
	for range fleetWorkers {
		f.workers.Go(f.work)
	}
	return f
}

// Close ends f: from then on the budget of each process decides alone. It ends
// the operations under way and waits for them up to a second; the error says
// that the store holds on to one. It doesn't close the store. It may be called
// more than once, and while requests are under way.
func (f *Fleet) Close() error {
	f.mu.Lock()
	if !f.closed {
		f.closed = true
		if f.cancel != nil {
			f.cancel()
		}
	}
	f.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		f.workers.Wait()
		close(ended)
	}()
	timer := time.NewTimer(fleetPatience)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C:
		return errors.New("retrip: the fleet's store hasn't returned from Add a second after its context has ended")
	}
}

func (f *Fleet) now() time.Duration { return time.Since(f.epoch) }

// up reports whether the store is to be asked at all. f is locked.
func (f *Fleet) up(now time.Duration) bool { return !f.closed && f.link.Up(now) }

// ask sees to it that the level of a host's account is known, and returns what
// is closed when it is; nil: there is nothing to wait for.
func (f *Fleet) ask(host hostKey, size float64) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	v := f.view(host, now)
	if v == nil {
		return nil
	}
	v.asked = now
	if !v.Stale(now) {
		return nil
	}
	return f.begin(v, size, 0, now)
}

// add adds tokens to a host's account, and doesn't wait for it.
func (f *Fleet) add(host hostKey, size, tokens float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if v := f.view(host, now); v != nil {
		f.begin(v, size, tokens, now)
	}
}

// forbids reports whether a host's account forbids a retry, and whether its
// level is known at all.
func (f *Fleet) forbids(host hostKey, size float64, draw uint64) (forbids, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	v := f.views[host]
	if v == nil || !f.up(now) {
		return false, false
	}
	level, known := v.Level(now)
	return known && account.Forbids(level, size, draw), known
}

// level returns the level of a host's account, if it is known.
func (f *Fleet) level(host hostKey) (level float64, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if v := f.views[host]; v != nil && f.up(now) {
		return v.Level(now)
	}
	return 0, false
}

// view returns the view of a host, made if it is new, or nil where there is to
// be none. f is locked.
func (f *Fleet) view(host hostKey, now time.Duration) *fleetView {
	if !f.up(now) {
		return nil
	}
	v := f.views[host]
	if v != nil || len(host.host)+1+len(host.port) > fleetHostBytes {
		return v
	}
	if len(f.views) >= fleetViews && !f.sweep(now) {
		return nil
	}
	v = &fleetView{host: host, asked: now - account.Age - 1}
	f.views[host] = v
	return v
}

// sweep makes room, and reports whether it could. f is locked.
func (f *Fleet) sweep(now time.Duration) bool {
	for host, v := range f.views {
		if v.idle(now) {
			delete(f.views, host)
		}
	}
	return len(f.views) < fleetViews
}

// idle reports whether nothing is lost by forgetting v.
func (v *fleetView) idle(now time.Duration) bool { return !v.busy && now-v.asked > account.Age }

// begin has an operation made that adds tokens, together with one that waits
// for a worker, and returns what is closed when its answer is there. While one
// is under way its answer serves. f is locked.
func (f *Fleet) begin(v *fleetView, size, tokens float64, now time.Duration) <-chan struct{} {
	v.size = size
	v.owed += tokens
	if v.busy {
		return v.answer
	}
	v.busy, v.since, v.answer = true, now, make(chan struct{})
	answer := v.answer
	if f.own {
		level, err := f.store.Add(context.Background(), v.host.String(), v.owed, size)
		v.owed = 0
		f.end(v, level, err)
		return answer
	}
	// There is room: no more views than that exist, and each is there once.
	f.ready <- v
	return answer
}

// work makes operations, one after the other, until f is closed.
func (f *Fleet) work() {
	for {
		select {
		case <-f.ctx.Done():
			return
		case v := <-f.ready:
			f.mu.Lock()
			host, size, tokens := v.host.String(), v.size, v.owed
			v.owed = 0
			up := f.up(f.now())
			f.mu.Unlock()
			var level float64
			err := errFleetSlow
			if up {
				level, err = f.operate(host, tokens, size)
			}
			f.mu.Lock()
			f.end(v, level, err)
			f.mu.Unlock()
		}
	}
}

// operate is an operation of the store, whatever that does.
func (f *Fleet) operate(host string, tokens, size float64) (level float64, err error) {
	ctx, cancel := context.WithTimeout(f.ctx, fleetPatience)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errFleetPanic, p)
		}
	}()
	return f.store.Add(ctx, host, tokens, size)
}

// end takes in what came of the operation of v. f is locked.
func (f *Fleet) end(v *fleetView, level float64, err error) {
	now := f.now()
	close(v.answer)
	v.busy, v.answer = false, nil
	switch {
	case f.closed:
		v.owed = 0
		return
	case err != nil:
	case !v.Hear(level, v.size, now):
		err = fmt.Errorf("retrip: the fleet's store tells a level of %v, which can't be one", level)
	case now-v.since > account.OpTimeout:
		err = errFleetSlow
	}
	if err != nil {
		f.lose(err, now)
	} else {
		f.news.up()
	}
	if !f.link.Up(now) {
		v.owed = 0
	}
	switch {
	case v.owed != 0:
		f.begin(v, v.size, 0, now)
	case v.idle(now):
		delete(f.views, v.host)
	}
}

// overdue is what a request has to say that has waited for an answer for as
// long as it may: a store that holds on to its workers would not be found out
// otherwise.
func (f *Fleet) overdue(host hostKey, answer <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v := f.views[host]; v != nil && v.answer == answer {
		f.lose(errFleetSlow, f.now())
	}
}

// lose takes the store for away, unless it is taken for that already. f is
// locked.
func (f *Fleet) lose(err error, now time.Duration) {
	if f.link.Up(now) {
		f.link.Lose(now, rand.Uint64())
		f.news.away(err)
	}
}

// fleetNews is what the log has been told of the store.
type fleetNews struct {
	err    error // why the store is away; nil: it isn't
	unsaid bool
	said   bool // that it is away
	at     time.Duration
}

const fleetNewsEvery = time.Minute

func (n *fleetNews) away(err error) { n.err, n.unsaid = err, true }

func (n *fleetNews) up() {
	if n.err != nil {
		n.err, n.unsaid = nil, n.said
	}
}

// tell returns what the log is to be told, at most once a minute: why the store
// is away, or nil where it is back.
func (f *Fleet) tell() (away error, news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, now := &f.news, f.now()
	if !n.unsaid || n.at != 0 && now-n.at < fleetNewsEvery {
		return nil, false
	}
	n.unsaid, n.said, n.at = false, n.err != nil, max(1, now)
	return n.err, true
}
