// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/explore"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/testenv"
)

// Three callers retry at two hosts, while the store answers, fails, lies or hangs, in every
// order and at the instants that matter. An account only forbids, what is not known
// forbids nothing, and no token is charged or given back twice.
//
//retrip:promise P14 P22
func TestAccounts_EveryState(t *testing.T) {
	testenv.Slow(t)
	testenv.OneGoroutine(t) // at a time
	for _, tt := range []struct {
		name       string
		other      int // host of the third caller
		steps, all int // of each caller, and the same if RETRIP_EXPLORE is set
		ends       []string
	}{{"one account", 0, 2, 3, []string{answers, breaks}}, {"two accounts", 1, 1, 2, []string{answers, breaks, lies}}} {
		t.Run(tt.name, func(t *testing.T) {
			steps := testenv.Depth(tt.steps, tt.all)
			synctest.Test(t, func(t *testing.T) {
				n := explore.All(t, func() *office { return newOffice(steps, tt.other, tt.ends) })
				t.Logf("%d states of 3 callers with %d steps each", n, steps)
			})
		})
	}
}

const (
	officeSize = 4.0 // of the accounts: one token is a quarter

	// A store that is down stays so for this long: for the least time, so that it is
	// soon used again.
	officeOff = 5 * time.Second
)

// office is what a process knows of two accounts, their store, and its callers.
type office struct {
	accounts Accounts
	callers  [3]client
	charges  [2]account.Charge // by host
	lacks    [2]float64        // by host: the store's
	ends     []string          // how operations of the store may end
	open     []*operation      // that the store has not ended
	down     [3]account.Link   // as last seen: of the store, and of each account
	back     [3]time.Duration  // when these are used again
	heard    [2]time.Duration  // by host: when the store last answered

	wanted, done [2]float64 // tokens to add, and those of operations
	unpaid       [2]int     // charges since the last success
	wrong        error
}

type client struct {
	left  int
	does  doing
	host  int
	until time.Duration // when it no longer waits for an answer
	paid  bool          // its retry was charged

	answer <-chan struct{}
}

type doing uint8

const (
	idles doing = iota
	waits
	sends
)

// operation is one of the store.
type operation struct {
	host   int
	tokens float64
	began  time.Duration
	end    chan string
}

// event is what may happen next.
type event struct {
	what string
	who  int
	wait time.Duration
}

func (e event) String() string {
	switch e.what {
	case passes:
		return fmt.Sprint(e.wait, " pass")
	case retries, pays, succeeds, fails:
		return fmt.Sprintf("%c %s", 'A'+e.who, e.what)
	}
	return fmt.Sprintf("the store %s", e.what)
}

const (
	retries  = "retries"
	pays     = "succeeds without a retry"
	succeeds = "succeeds"
	fails    = "fails"
	passes   = "time passes"

	answers = "answers"
	breaks  = "loses the connection after the operation"
	lies    = "lies"
)

func newOffice(steps, other int, ends []string) *office {
	o := &office{ends: ends, callers: [3]client{{left: steps}, {left: steps}, {left: steps, host: other}}}
	o.lacks = [2]float64{3, 3} // one token left: level 1, the lowest that forbids nothing
	o.accounts.Open(o.add)
	return o
}

// add is the store. Only one goroutine of the bubble runs at a time before Wait returns
// here, but for other operations.
func (o *office) add(ctx context.Context, host string, tokens, size float64) (float64, error) {
	op := &operation{host: int(host[0] - '0'), tokens: tokens, began: o.accounts.now(), end: make(chan string)}
	o.accounts.mu.Lock()
	o.done[op.host] += tokens
	o.open = append(o.open, op)
	slices.SortFunc(o.open, func(a, b *operation) int { return cmp.Compare(a.host, b.host) })
	o.accounts.mu.Unlock()
	how := ""
	select {
	case how = <-op.end:
	case <-ctx.Done():
	}
	o.accounts.mu.Lock()
	defer o.accounts.mu.Unlock()
	o.open = slices.DeleteFunc(o.open, func(other *operation) bool { return other == op })
	lacks := &o.lacks[op.host]
	if how == answers || how == breaks {
		*lacks = min(size, max(0, *lacks-tokens))
	}
	switch how {
	case answers:
		o.heard[op.host] = o.accounts.now()
		return size - *lacks, nil
	case breaks:
		return 0, io.ErrUnexpectedEOF
	case lies:
		return math.NaN(), nil
	default:
		return 0, ctx.Err()
	}
}

func (o *office) Moves() (all []event) {
	if o.wrong != nil {
		return nil
	}
	active := len(o.open) > 0
	for i, c := range o.callers {
		active = active || c.does == waits || c.left > 0
		switch {
		case c.left == 0 || c.does == waits:
		case c.does == idles:
			if !slices.Contains(o.callers[:i], c) { // the callers of a host are the same
				all = append(all, event{what: retries, who: i}, event{what: pays, who: i})
			}
		case !slices.Contains(o.callers[:i], c):
			all = append(all, event{what: succeeds, who: i}, event{what: fails, who: i})
		}
	}
	for i := range o.open {
		for _, what := range o.ends {
			all = append(all, event{what: what, who: i})
		}
	}
	if active {
		for _, wait := range o.next() {
			all = append(all, event{what: passes, wait: wait})
		}
	}
	return all
}

// next returns how long to wait until something has changed. So the instants differ
// little between stories, and there are fewer states.
func (o *office) next() []time.Duration {
	switch {
	case slices.ContainsFunc(o.callers[:], func(c client) bool { return c.does == waits }):
		return []time.Duration{account.OpTimeout + 1} // no answer in time
	case len(o.open) > 0:
		return []time.Duration{patience} // the operations end
	default:
		return []time.Duration{account.Age + 1} // levels are old, and stores are used again
	}
}

func (o *office) fail(format string, args ...any) {
	if o.wrong == nil {
		o.wrong = fmt.Errorf(format, args...)
	}
}

func (o *office) Do(e event) {
	switch e.what {
	case passes:
		o.pass(e.wait)
	case retries, pays, succeeds, fails:
		o.acts(&o.callers[e.who], e.what)
	default:
		host := o.open[e.who].host
		o.open[e.who].end <- e.what
		synctest.Wait()
		if _, known := o.accounts.Level(key(host), officeSize); known && e.what != answers {
			o.fail("a level is known after the store %s", e.what)
		}
	}
	o.settle()
}

// pass lets time pass, and stops where an operation ends: a link may be lost there.
func (o *office) pass(d time.Duration) {
	for end := o.accounts.now() + d; ; {
		now, at := o.accounts.now(), end
		for _, op := range o.open {
			if ends := op.began + patience; ends > now {
				at = min(at, ends)
			}
		}
		time.Sleep(at - now)
		o.settle()
		if at == end {
			return
		}
	}
}

// acts does as a Transport would.
func (o *office) acts(c *client, what string) {
	host, f := key(c.host), &o.accounts
	c.left--
	switch what {
	case retries:
		if c.answer = f.Ask(host, officeSize); c.answer == nil {
			o.decide(c)
			return
		}
		c.does, c.until = waits, f.now()+account.OpTimeout
	case pays:
		o.succeeds(c)
		o.adds(c, account.Cost)
	case succeeds:
		o.succeeds(c)
		if c.paid {
			o.adds(c, account.Cost)
		}
		fallthrough
	case fails:
		c.does, c.paid = idles, false
	}
}

func (o *office) succeeds(c *client) {
	o.charges[c.host].Succeeded()
	o.unpaid[c.host] = 0
}

func (o *office) adds(c *client, tokens float64) {
	f := &o.accounts
	f.mu.Lock()
	if now := f.now(); f.up(now) && (f.views[key(c.host)] == nil || f.views[key(c.host)].link.Up(now)) {
		o.wanted[c.host] += tokens
	}
	f.mu.Unlock()
	f.Add(key(c.host), officeSize, tokens)
}

// decide asks for the account's permission, as fleet.go does, and makes the retry.
func (o *office) decide(c *client) {
	host, f := key(c.host), &o.accounts
	never, known := f.Forbids(host, officeSize, 0)
	often, also := f.Forbids(host, officeSize, math.MaxUint64)
	level, knows := f.Level(host, officeSize)
	switch {
	case known != also || known != knows:
		o.fail("known: %v, %v, %v", known, also, knows)
	case !known && (never || often):
		o.fail("forbids what it doesn't know")
	case known && (level < 0 || level > officeSize):
		o.fail("a level of %v", level)
	case known && level >= officeSize/4 && often:
		o.fail("forbids at a level of %v", level)
	case known && level == 0 && !never:
		o.fail("allows at a level of 0")
	case known && f.now()-o.heard[c.host] > account.Age:
		o.fail("knows a level of %v ago", f.now()-o.heard[c.host])
	case known && !f.up(f.now()):
		o.fail("a level from a store that is away")
	}
	c.does, c.answer = idles, nil
	if often {
		return
	}
	if c.does = sends; o.charges[c.host].Sent() {
		c.paid = true
		if o.unpaid[c.host]++; o.unpaid[c.host] > 1 {
			o.fail("charged twice, and nothing has succeeded")
		}
		o.adds(c, -account.Cost)
	}
}

// settle lets those go on who have an answer or no time left to wait for one.
func (o *office) settle() {
	for {
		synctest.Wait()
		o.even()
		i := slices.IndexFunc(o.callers[:], func(c client) bool {
			if c.does != waits {
				return false
			}
			select {
			case <-c.answer:
				return true
			default:
				return o.accounts.now() >= c.until
			}
		})
		if i < 0 {
			return
		}
		c := &o.callers[i]
		if o.accounts.now() >= c.until {
			o.accounts.Overdue(key(c.host), c.answer)
			o.even()
		}
		o.decide(c)
	}
}

// even makes what was lost just now come back at a known time, and forgets the tokens
// that a store which is away doesn't get.
func (o *office) even() {
	f := &o.accounts
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	links := []*account.Link{&f.link.Link, new(account.Link), new(account.Link)}
	for host := range 2 {
		if v := f.views[key(host)]; v != nil {
			links[1+host] = &v.link
		}
	}
	for i, l := range links {
		if *l != o.down[i] && !l.Up(now) {
			if l.Up(now+5*time.Second-1) || !l.Up(now+15*time.Second) {
				o.fail("away for less than 5 s, or more than 15")
			}
			*l = account.Link{}
			l.Lose(now, 0)
			o.back[i] = now + officeOff
		}
		o.down[i] = *l
	}
	for host := range 2 {
		if f.up(now) && links[1+host].Up(now) {
			continue
		}
		o.wanted[host] = o.done[host]
		if v := f.views[key(host)]; v != nil {
			o.wanted[host] += v.owed
		}
	}
}

func (o *office) Check() error {
	f := &o.accounts
	if o.wrong != nil {
		return o.wrong
	}
	now := f.now()
	for host := range 2 {
		owed, busy := 0.0, false
		if v := f.views[key(host)]; v != nil {
			owed, busy = v.owed, v.busy
		}
		n := 0
		for _, op := range o.open {
			if op.host == host {
				n++
			}
		}
		switch {
		case n > 1 || busy != (n == 1):
			return fmt.Errorf("%d operations for one account, busy: %v", n, busy)
		case !busy && owed != 0:
			return fmt.Errorf("%v tokens that nobody will add", owed)
		case f.up(now) && o.wanted[host] != o.done[host]+owed:
			return fmt.Errorf("%v tokens to add, %v in operations, %v due", o.wanted[host], o.done[host], owed)
		case o.lacks[host] < 0 || o.lacks[host] > officeSize:
			return fmt.Errorf("the store lacks %v", o.lacks[host])
		}
	}
	return o.recovers()
}

// recovers checks that the accounts decide again once the store is well.
func (o *office) recovers() error {
	for len(o.open) > 0 {
		o.Do(event{what: passes, wait: o.next()[0]})
	}
	for range 2 {
		o.Do(event{what: passes, wait: officeOff})
	}
	for host := range 2 {
		if o.accounts.Ask(key(host), officeSize) == nil {
			return errors.New("nobody asks a store that is well")
		}
		synctest.Wait()
		for len(o.open) > 0 {
			o.Do(event{what: answers})
		}
		level, known := o.accounts.Level(key(host), officeSize)
		if !known || level != officeSize-o.lacks[host] {
			return fmt.Errorf("the level is %v, known: %v; the store lacks %v", level, known, o.lacks[host])
		}
	}
	return o.wrong
}

func (o *office) Close() {
	if err := o.accounts.Close(); err != nil {
		panic(err)
	}
	synctest.Wait()
}

// State tells times from now, and leaves out which of the callers of a host is which.
func (o *office) State() []any {
	f, now := &o.accounts, o.accounts.now()
	since := func(at, least time.Duration) time.Duration { return max(at-now, least) }
	failed := slices.SortedFunc(slices.Values(f.link.failed), func(a, b hostkey.Key) int { return cmp.Compare(a.Host, b.Host) })
	all := []any{failed, o.lacks, o.unpaid, o.charges[0].Made(), o.charges[1].Made(), o.wanted[0] - o.done[0], o.wanted[1] - o.done[1]}
	if f.link.works(now) {
		all = append(all, f.link.by, since(f.link.answered, -witness))
	}
	if f.link.slow != 0 {
		all = append(all, since(f.link.slow, -2*patience))
	}
	for _, at := range o.back {
		all = append(all, since(at, 0))
	}
	for host := range 2 {
		v := f.views[key(host)]
		if v == nil {
			all = append(all, false)
			continue
		}
		level, known := v.Level(officeSize, now)
		if known {
			all = append(all, level, since(o.heard[host], -account.Age))
		}
		all = append(all, known, v.Stale(officeSize, now), v.owed, v.busy, since(v.asked, -account.Age-1))
		if v.busy {
			all = append(all, since(v.since, -patience), since(v.sent, -patience))
		}
	}
	for _, op := range o.open {
		all = append(all, op.host, op.tokens, since(op.began, -patience))
	}
	callers := o.callers
	for i := range callers {
		c := &callers[i]
		if c.until = since(c.until, 0); c.does != waits {
			c.until = 0
		}
	}
	slices.SortFunc(callers[:], func(a, b client) int {
		paid := map[bool]int{true: 1}
		return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.left, b.left), cmp.Compare(a.does, b.does), cmp.Compare(a.until, b.until), paid[a.paid]-paid[b.paid])
	})
	return append(all, callers)
}
