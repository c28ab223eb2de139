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

// FleetStore keeps the accounts of a [Fleet], one number for each host, for all
// processes of the fleet. The module github.com/retrip/retrip/fleetredis is a
// store in Redis or Valkey.
type FleetStore interface {
	// Add adds tokens to the account of a host, given as "example.com:443", and
	// returns the new level. Tokens may be negative, or 0 to read the level.
	// The level stays between 0 and size. An account that doesn't exist, or
	// that nobody has used for a minute, holds size. Reading counts as use,
	// because no process charges an account that forbids all retries.
	//
	// Processes may pass different sizes for one account, for example while a
	// new size is rolled out. A store should therefore keep the number of
	// missing tokens, not the level.
	//
	// No request waits for Add for more than 50 ms. After an error, a panic or
	// an impossible level, the local budget decides alone. The Fleet calls Add
	// from up to four goroutines of its own. Add should return when ctx ends.
	Add(ctx context.Context, host string, tokens, size float64) (level float64, err error)
}

// Fleet limits what all processes together spend on retries, with one account
// for each host. An account may forbid a retry that the budget of this process
// allows, but it never allows a retry that the budget forbids. A program should
// make one Fleet with [NewFleet] and set it as Transport.Fleet in all its
// Transports. Policy.FleetBudget is the size of an account.
//
// A retry that fails costs one token. After that charge, further failures of
// the same Transport cost nothing until one of its requests to the host
// succeeds, so that a process whose own network is dead doesn't spend the
// tokens of all. A success without a retry pays 0.2 tokens. If the level is
// below half the size, the account lets retries through with a probability of
// level/(size/2).
//
// Before a retry, the process asks for the level if the last answer is older
// than a second. The request waits for the answer for at most 50 ms, as part of
// the wait before the retry. First attempts never ask. If an operation of the
// store fails, the process doesn't use the store for 5 to 15 s, and the budget
// decides alone. docs/fleet.md in the repository has the rule and its figures.
//
// A Fleet is safe for concurrent use.
type Fleet struct {
	store FleetStore
	own   bool // the store is the memory of this program, which answers at once
	epoch time.Time

	ready   chan *fleetView // views with an operation to make
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	workers sync.WaitGroup

	mu     sync.Mutex
	link   account.Link
	views  map[hostKey]*fleetView
	swept  time.Duration // instant at which sweep last looked
	closed bool
	news   fleetNews
}

// fleetView is what a Fleet knows about one account. Fleet.mu guards it.
type fleetView struct {
	account.View
	host   hostKey
	size   float64
	owed   float64       // tokens that the next operation adds
	busy   bool          // an operation is running or waits for a worker
	since  time.Duration // instant at which that operation began
	answer chan struct{} // closed when that operation has ended
	asked  time.Duration // instant at which a retry last asked
}

const (
	fleetViews     = 4096 // maximum number of known hosts; for others, the budget decides alone
	fleetWorkers   = 4
	fleetHostBytes = 255 + len(":65535")

	// fleetPatience bounds an operation of the store. It is longer than the
	// time for which a request waits, because the first operation may have to
	// connect.
	fleetPatience = time.Second
)

var (
	errFleetSlow  = errors.New("retrip: the fleet's store took longer than 50ms")
	errFleetPanic = errors.New("retrip: the fleet's store panicked")
	errFleetGone  = errors.New("retrip: the fleet's store ended its goroutine")
)

// NewFleet returns a Fleet with its accounts in store. The Fleet has four
// goroutines, which Close ends. If store is nil, the accounts are in the memory
// of this program and all Transports with this Fleet share them; such a Fleet
// has no goroutines and needs no Close.
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

// Close closes f: from then on, the budget of each process decides alone. Close
// cancels the operations in progress and waits for them for up to a second. It
// returns an error if an operation hasn't returned by then. It doesn't close
// the store. Calling Close twice, or while requests are in flight, is harmless.
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
		return errors.New("retrip: the fleet's store hasn't returned from Add within a second after Close")
	}
}

func (f *Fleet) now() time.Duration { return time.Since(f.epoch) }

// up reports whether f may use the store. A Fleet that NewFleet hasn't made has
// none. The caller must hold f.mu.
func (f *Fleet) up(now time.Duration) bool { return f.store != nil && !f.closed && f.link.Up(now) }

// ask makes sure that the level of a host's account is known. It returns a
// channel that is closed when the answer has arrived, or nil if there is
// nothing to wait for.
func (f *Fleet) ask(host hostKey, size float64) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	v := f.view(host, now)
	if v == nil {
		return nil
	}
	v.asked = now
	if !v.Stale(size, now) {
		return nil
	}
	return f.begin(v, size, 0, now)
}

// add adds tokens to a host's account without waiting for the answer.
func (f *Fleet) add(host hostKey, size, tokens float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if v := f.view(host, now); v != nil {
		f.begin(v, size, tokens, now)
	}
}

// forbids reports whether a host's account forbids a retry, and whether its
// level is known.
func (f *Fleet) forbids(host hostKey, size float64, draw uint64) (forbids, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	v := f.views[host]
	if v == nil || !f.up(now) {
		return false, false
	}
	level, known := v.Level(size, now)
	return known && account.Forbids(level, size, draw), known
}

// level returns the level of a host's account of the given size, if it is known.
func (f *Fleet) level(host hostKey, size float64) (level float64, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if v := f.views[host]; v != nil && f.up(now) {
		return v.Level(size, now)
	}
	return 0, false
}

// view returns the view of a host. It makes a view for a new host, or returns
// nil if there must be none. The caller must hold f.mu.
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
	host = host.clone()
	v = &fleetView{host: host, asked: now - account.Age - 1}
	f.views[host] = v
	return v
}

// sweep makes room, and reports whether it could. It looks at all views only
// once a second: a program with more hosts than f has room for would do little
// else. The caller must hold f.mu.
func (f *Fleet) sweep(now time.Duration) bool {
	if now-f.swept < time.Second {
		return false
	}
	f.swept = now
	for host, v := range f.views {
		if v.idle(now) {
			delete(f.views, host)
		}
	}
	return len(f.views) < fleetViews
}

// idle reports whether v may be forgotten without loss.
func (v *fleetView) idle(now time.Duration) bool { return !v.busy && now-v.asked > account.Age }

// begin starts an operation that adds tokens, and returns a channel that is
// closed when its answer has arrived. If an operation for v is in progress,
// begin returns the channel of that operation. The tokens go with that
// operation or, if it is already running, with the next one. The caller must
// hold f.mu.
func (f *Fleet) begin(v *fleetView, size, tokens float64, now time.Duration) <-chan struct{} {
	if !v.busy || size > v.size {
		// An operation charges at most its size, so a smaller size would lose
		// tokens that are owed for a larger one.
		v.size = size
	}
	v.owed += tokens
	if v.busy {
		return v.answer
	}
	v.busy, v.since, v.answer = true, now, make(chan struct{})
	answer := v.answer
	if f.own {
		level, err := f.store.Add(context.Background(), v.host.String(), v.owed, size)
		v.owed = 0
		f.end(v, level, size, err)
		return answer
	}
	// The channel has room for all views, and each view is in it at most once.
	f.ready <- v
	return answer
}

// work runs operations, one after the other, until f is closed.
func (f *Fleet) work() {
	for {
		select {
		case <-f.ctx.Done():
			return
		case v := <-f.ready:
			f.operate(v)
		}
	}
}

// operate runs the operation of v. It survives a store that ends its goroutine,
// which is a worker's.
func (f *Fleet) operate(v *fleetView) {
	f.mu.Lock()
	host, size, tokens := v.host.String(), v.size, v.owed
	v.owed = 0
	if !f.up(f.now()) {
		f.end(v, 0, size, errFleetSlow)
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	level, err := 0.0, errFleetGone
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if err == errFleetGone && !f.closed {
			f.workers.Go(f.work)
		}
		f.end(v, level, size, err)
	}()
	level, err = f.call(host, tokens, size)
}

// call calls the store, which may panic. The errors of the store, and the value
// with which it panics, may also run code of its own, so the caller must not
// hold f.mu.
func (f *Fleet) call(host string, tokens, size float64) (level float64, err error) {
	ctx, cancel := context.WithTimeout(f.ctx, fleetPatience)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			level, err = 0, fleetError(fmt.Errorf("%w: %v", errFleetPanic, p))
		}
	}()
	level, err = f.store.Add(ctx, host, tokens, size)
	if err != nil {
		err = fleetError(err)
	}
	return level, err
}

// end records the result of an operation of v, which was for an account of the
// given size. The caller must hold f.mu.
func (f *Fleet) end(v *fleetView, level, size float64, err error) {
	now := f.now()
	close(v.answer)
	v.busy, v.answer = false, nil
	switch {
	case f.closed:
		v.owed = 0
		return
	case err != nil:
	case !v.Hear(level, size, now):
		err = fmt.Errorf("retrip: the fleet's store returned an impossible level: %v", level)
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

// overdue records that a request has waited for answer as long as it may.
// Without it, a store that never returns would go unnoticed.
func (f *Fleet) overdue(host hostKey, answer <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v := f.views[host]; v != nil && v.answer == answer {
		f.lose(errFleetSlow, f.now())
	}
}

// lose stops the use of the store for a while, unless it has stopped already.
// The caller must hold f.mu.
func (f *Fleet) lose(err error, now time.Duration) {
	if f.link.Up(now) {
		f.link.Lose(now, rand.Uint64())
		f.news.away(err)
	}
}
