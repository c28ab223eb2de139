// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleet keeps what a process knows about the accounts of a fleet, and makes the
// operations of their store. Package account has the rule.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/hostkey"
)

// Add is what a store does. retrip.NewFleet describes it.
type Add func(ctx context.Context, host string, tokens, size float64) (level float64, err error)

// Accounts are the accounts of a fleet as one process knows them. The zero
// Accounts have no store and decide nothing. They are safe for concurrent use.
type Accounts struct {
	add   Add // of the store; nil if it is the memory of this program, which answers at once
	epoch time.Time

	slots  chan struct{}   // has room for the operations that may be under way at once
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	// mu guards the fields below. The callers of unexported methods hold it, but for
	// ask, operate and call.
	mu      sync.Mutex
	link    link
	views   map[hostkey.Key]*view // nil if f has no store
	running map[*view]struct{}    // views whose operation has begun
	swept   time.Duration         // instant at which sweep last looked
	closed  bool
	news    news
}

// view is what a Fleet knows about one account. Accounts.mu guards it.
type view struct {
	account.View
	link   account.Link // of this account alone
	host   hostkey.Key
	size   float64
	owed   float64       // tokens that the next operation adds
	busy   bool          // an operation is running or due
	since  time.Duration // instant at which that operation became due
	sent   time.Duration // instant at which it began
	answer chan struct{} // closed when it has ended
	asked  time.Duration // instant at which a retry last asked

	// If the store is the memory of this program: what the account lacks, because
	// Transports with different sizes may share it, and when it was last used.
	lacks float64
	used  time.Duration
}

const (
	mostViews = 4096 // maximum number of known hosts; for others, the budget decides alone
	hostBytes = 255 + len(":65535")

	// memoryLife is how long the memory of this program keeps an account that nobody
	// uses. After that it is full.
	memoryLife = time.Minute

	// atOnce is the maximum number of operations under way. If 1000 hosts begin to
	// fail at once, and the store answers in 40 ms, each of them has an answer
	// within a second.
	atOnce = 64

	// patience bounds an operation of the store. It is longer than the
	// time for which a request waits, because the first operation may have to
	// connect.
	patience = time.Second
)

var (
	errSlow  = errors.New("retrip: the fleet's store took longer than 50ms")
	errPanic = errors.New("retrip: the fleet's store panicked")
	errGone  = errors.New("retrip: the fleet's store ended its goroutine")
)

// Open gives f its store: the memory of this program if add is nil.
func (f *Accounts) Open(add Add) {
	f.add, f.epoch, f.views, f.running = add, time.Now(), map[hostkey.Key]*view{}, map[*view]struct{}{}
	f.slots = make(chan struct{}, atOnce)
	f.ctx, f.cancel = context.WithCancel(context.Background())
}

// Close implements Fleet.Close.
func (f *Accounts) Close() error {
	f.mu.Lock()
	f.closed = true
	if f.cancel != nil {
		f.cancel()
	}
	f.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		f.work.Wait()
		close(ended)
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C:
		return errors.New("retrip: the fleet's store hasn't returned from Add within a second after Close")
	}
}

func (f *Accounts) now() time.Duration { return time.Since(f.epoch) }

// up reports whether f may use the store. One that was not opened has none.
func (f *Accounts) up(now time.Duration) bool {
	return f.views != nil && !f.closed && f.link.Up(now)
}

// known returns the view of a host, or nil if f has none that it may use.
func (f *Accounts) known(host hostkey.Key, now time.Duration) *view {
	if v := f.views[host]; v != nil && f.up(now) && v.link.Up(now) {
		return v
	}
	return nil
}

// Ask makes sure that the level of a host's account is known. It returns a
// channel that is closed when the answer has arrived, or nil if there is
// nothing to wait for.
func (f *Accounts) Ask(host hostkey.Key, size float64) <-chan struct{} {
	return f.ask(host, size, (*account.View).Stale)
}

// AskAgain is Ask for a retry after a wait of more than [account.LongWait].
func (f *Accounts) AskAgain(host hostkey.Key, size float64) <-chan struct{} {
	return f.ask(host, size, (*account.View).StaleAgain)
}

func (f *Accounts) ask(host hostkey.Key, size float64, stale func(*account.View, float64, time.Duration) bool) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	v := f.view(host, now)
	if v == nil {
		return nil
	}
	v.asked = now
	if !stale(&v.View, size, now) || v.busy && now-v.since >= account.OpTimeout {
		// Another request has already waited as long as one may.
		return nil
	}
	return f.begin(v, size, 0, now)
}

// Add adds tokens to a host's account without waiting for the answer.
func (f *Accounts) Add(host hostkey.Key, size, tokens float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if v := f.view(host, now); v != nil {
		f.begin(v, size, tokens, now)
	}
}

// Forbids reports whether a host's account forbids a retry, and whether its
// level is known.
func (f *Accounts) Forbids(host hostkey.Key, size float64, draw uint64) (forbids, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	v := f.known(host, now)
	if v == nil {
		return false, false
	}
	level, known := v.Level(size, now)
	return known && account.Forbids(level, size, draw), known
}

// Level returns the level of a host's account of the given size, if it is known.
func (f *Accounts) Level(host hostkey.Key, size float64) (level float64, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if v := f.known(host, now); v != nil {
		return v.Level(size, now)
	}
	return 0, false
}

// view returns the view of a host. It makes a view for a new host, or returns
// nil if f must not use it.
func (f *Accounts) view(host hostkey.Key, now time.Duration) *view {
	v := f.known(host, now)
	if v != nil || !f.up(now) || f.views[host] != nil || len(host.Host)+1+len(host.Port) > hostBytes {
		return v
	}
	if len(f.views) >= mostViews && !f.sweep(now) {
		return nil
	}
	host = host.Clone()
	v = &view{host: host, asked: now - account.Age - 1}
	f.views[host] = v
	return v
}

// sweep makes room, and reports whether it could. It looks at all views only
// once a second: a program with more hosts than f has room for would do little
// else.
func (f *Accounts) sweep(now time.Duration) bool {
	if now-f.swept < time.Second {
		return false
	}
	f.swept = now
	for host, v := range f.views {
		if v.idle(now) {
			delete(f.views, host)
		}
	}
	return len(f.views) < mostViews
}

// idle reports whether v may be forgotten without loss.
func (v *view) idle(now time.Duration) bool {
	return !v.busy && v.link.Up(now) && now-v.asked > account.Age && (v.lacks == 0 || now-v.used > memoryLife)
}

// begin starts an operation that adds tokens, and returns a channel that is
// closed when its answer has arrived. If an operation for v is in progress,
// begin returns the channel of that operation. The tokens go with that
// operation or, if it is already running, with the next one.
func (f *Accounts) begin(v *view, size, tokens float64, now time.Duration) <-chan struct{} {
	if !v.busy || size > v.size {
		// An operation charges at most its size, so a smaller size would lose
		// tokens that are owed for a larger one.
		v.size = size
	}
	v.owed += tokens
	if v.busy {
		return v.answer
	}
	v.busy, v.since, v.sent, v.answer = true, now, now, make(chan struct{})
	answer := v.answer
	if f.add == nil {
		f.recordResult(v, v.apply(now), size, nil)
	} else {
		f.work.Go(func() { f.operate(v) })
	}
	return answer
}

// apply makes the operation of v in the memory of this program.
func (v *view) apply(now time.Duration) (level float64) {
	if now-v.used > memoryLife {
		v.lacks = 0
	}
	if v.owed < 0 {
		v.lacks = max(v.lacks, min(v.size, v.lacks-v.owed))
	} else {
		v.lacks = max(0, v.lacks-v.owed)
	}
	v.owed, v.used = 0, now
	return max(0, v.size-v.lacks)
}

// operate makes the operation of v when there is room for it. The store may end its
// goroutine.
func (f *Accounts) operate(v *view) {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	case <-f.ctx.Done():
	}
	f.mu.Lock()
	host, tokens, size := v.host.String(), v.owed, v.size
	v.owed, v.sent = 0, f.now()
	if !f.up(v.sent) {
		f.recordResult(v, 0, size, errSlow)
		f.mu.Unlock()
		return
	}
	f.running[v] = struct{}{}
	f.mu.Unlock()
	level, err := 0.0, errGone
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.running, v)
		f.recordResult(v, level, size, err)
	}()
	level, err = f.call(host, tokens, size)
}

// call calls the store, which may panic. The errors of the store, and the value
// with which it panics, may also run code of its own, so the caller must not
// hold f.mu.
func (f *Accounts) call(host string, tokens, size float64) (level float64, err error) {
	ctx, cancel := context.WithTimeout(f.ctx, patience)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			level, err = 0, storeError(fmt.Errorf("%w: %v", errPanic, p))
		}
	}()
	level, err = f.add(ctx, host, tokens, size)
	if err != nil {
		err = storeError(err)
	}
	return level, err
}

// recordResult records the result of an operation of v, which was for an account of the
// given size.
func (f *Accounts) recordResult(v *view, level, size float64, err error) {
	now := f.now()
	close(v.answer)
	v.busy, v.answer = false, nil
	if f.closed {
		v.owed = 0
		return
	}
	inTime := now-v.sent <= account.OpTimeout
	switch {
	case err != nil:
		f.fail(v, err, now)
	case !inTime && !f.link.works(now):
		if f.link.late(v.sent, now) {
			f.lose(errSlow, now)
		}
	case !v.Record(level, size, now):
		f.fail(v, fmt.Errorf("retrip: the fleet's store returned an impossible level: %v", level), now)
	case inTime:
		f.link.answers(v.host, now)
		f.news.up()
	}
	if !f.link.Up(now) || !v.link.Up(now) {
		v.owed = 0
	}
	switch {
	case v.owed != 0:
		f.begin(v, v.size, 0, now)
	case v.idle(now):
		delete(f.views, v.host)
	}
}

// news is what the log says about the store.
type news struct {
	err    error // why the store is not used; nil if it is
	unsaid bool
	said   bool          // the log says that the store is not used
	at     time.Duration // instant of the last news told; 0 if there was none

	host string // whose account is not used, if that is news
	why  error
}

const newsEvery = time.Minute

func (n *news) away(err error) { n.err, n.unsaid, n.host, n.why = err, true, "", nil }

func (n *news) refused(host string, err error) { n.host, n.why = host, err }

func (n *news) up() {
	if n.err != nil {
		n.err, n.unsaid = nil, n.said
	}
}

// News returns what the log should say, at most once a minute: the error that
// made the store unusable, or its account of a host, or no error if the store is
// back.
func (f *Accounts) News() (host string, news bool, away error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, now := &f.news, f.now()
	if !n.unsaid && n.host == "" || n.at != 0 && now-n.at < newsEvery {
		return "", false, nil
	}
	n.at = max(1, now)
	if n.unsaid {
		n.unsaid, n.said = false, n.err != nil
		return "", true, n.err
	}
	away, host = n.why, n.host
	n.host, n.why = "", nil
	return host, true, away
}
