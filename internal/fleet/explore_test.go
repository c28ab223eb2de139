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
// With four steps, two accounts have too many states. But with two, each is seen to
// change the other only through the link, and the link only as effects says. So
// with four, one account is explored while others have any of these effects, as often as they like.
//
//retrip:promise P14 P22
func TestAccounts_EveryState(t *testing.T) {
	testenv.Slow(t)
	testenv.OneGoroutine(t) // at a time
	for _, tt := range []struct {
		name       string
		hosts      []int // of the callers
		others     int   // accounts that have any effect on the link
		steps, all int   // of each caller, and the same if RETRIP_EXPLORE is set
		ends       []string
	}{
		{"one account", []int{0, 0, 0}, 0, 2, 4, []string{answers, breaks}},
		{"two accounts", []int{0, 0, 1}, 0, 1, 2, []string{answers, breaks, lies}},
		{"one account and another", []int{0, 0}, 1, 1, 4, []string{answers, breaks, lies}},
		{"one account among many", []int{0, 0}, several + 1, 1, 3, []string{answers, breaks, lies}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			steps := testenv.Depth(tt.steps, tt.all)
			synctest.Test(t, func(t *testing.T) {
				n := explore.All(t, func() *office { return newOffice(steps, tt.hosts, tt.others, tt.ends) })
				t.Logf("%d states of %d callers with %d steps each", n, len(tt.hosts), steps)
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
	accounts Accounts // their operations are the test's: no goroutine runs
	callers  [3]client
	charges  [2]account.Charge // by host
	lacks    [2]float64        // by host: the store's
	ends     []string          // how operations of the store may end
	others   []hostkey.Key     // hosts of the accounts of which only the effects on the link are known
	open     []operation       // that the store has not ended
	down     [3]account.Link   // as last seen: of the store, and of each account
	back     [3]time.Duration  // when these are used again
	heard    [2]time.Duration  // by host: when the store last answered, not too late

	wanted, done [2]float64 // tokens to add, and those of operations
	unpaid       [2]int     // charges since the last success
	wrong        error
}

var hosts = [2]hostkey.Key{key(0), key(1)}

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
	view         *view
	host         int
	tokens, size float64
	began        time.Duration
}

// event is what may happen next.
type event struct {
	what string
	who  int
	wait time.Duration
	how  string // of foreign
}

func (e event) String() string {
	switch e.what {
	case foreign:
		return fmt.Sprintf("for other account %d, the store %s", e.who, e.how)
	case passes:
		return fmt.Sprint(e.wait, " pass")
	case retries, pays, succeeds, fails, goesOn:
		return fmt.Sprintf("%c %s", 'A'+e.who, e.what)
	}
	return fmt.Sprintf("the store %s", e.what)
}

const (
	retries  = "retries"
	pays     = "succeeds without a retry"
	succeeds = "succeeds"
	fails    = "fails"
	goesOn   = "goes on"
	passes   = "time passes"

	answers = "answers"
	breaks  = "loses the connection after the operation"
	lies    = "lies"
	hangs   = "hangs"
)

func newOffice(steps int, callers []int, others int, ends []string) *office {
	o := &office{ends: ends}
	for i, host := range callers {
		o.callers[i] = client{left: steps, host: host}
	}
	for i := range others {
		o.others = append(o.others, key(len(hosts)+i))
	}
	o.lacks = [2]float64{3, 3} // one token left: level 1, the lowest that forbids nothing
	f := &o.accounts
	f.add = func(context.Context, string, float64, float64) (float64, error) { panic("the test is the store") }
	f.epoch, f.views, f.ready, f.running = time.Now().Add(-time.Hour), map[hostkey.Key]*view{}, make(chan *view, 2), map[*view]struct{}{}
	return o
}

// begin hands the operations that are due to the store.
func (o *office) begin() {
	f := &o.accounts
	for len(f.ready) > 0 {
		v := <-f.ready
		host, tokens, size, begun := f.start(v)
		if !begun {
			continue
		}
		op := operation{v, int(host[0] - '0'), tokens, size, f.now()}
		if !v.link.Up(op.began) {
			o.fail("an operation for an account that is away")
		}
		o.done[op.host] += tokens
		o.open = append(o.open, op)
	}
	slices.SortFunc(o.open, func(a, b operation) int { return cmp.Compare(a.host, b.host) })
}

// end ends an operation.
func (o *office) end(i int, how string) {
	op := o.open[i]
	o.open = slices.Delete(o.open, i, i+1)
	lacks, level, err := &o.lacks[op.host], 0.0, error(nil)
	if how == answers || how == breaks {
		*lacks = min(op.size, max(0, *lacks-op.tokens))
	}
	switch how {
	case answers:
		level = op.size - *lacks
		if now := o.accounts.now(); now-op.began <= account.OpTimeout || o.accounts.link.works(now) {
			o.heard[op.host] = now
		}
	case breaks:
		err = io.ErrUnexpectedEOF
	case lies:
		level = math.NaN()
	case hangs:
		err = context.DeadlineExceeded
	}
	f := &o.accounts
	well := f.link.Up(f.now()) && f.link.works(f.now()) && f.link.by != hosts[op.host]
	f.finish(op.view, level, op.size, err, kindOf(err))
	if well && !f.link.Up(f.now()) {
		o.fail("the store is away, although it has just answered for another account")
	}
}

func (o *office) Moves() (all []event) {
	if o.wrong != nil {
		return nil
	}
	for i := range o.callers {
		if o.due(&o.callers[i]) {
			all = append(all, event{what: goesOn, who: i}) // at once, but in any order
		}
	}
	if len(all) > 0 {
		return all
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
	late := false
	for i, op := range o.open {
		for _, what := range o.ends {
			all = append(all, event{what: what, who: i})
		}
		if o.accounts.now() >= op.began+patience {
			late = true
			all = append(all, event{what: hangs, who: i})
		}
	}
	if active {
		all = append(all, o.foreign()...)
	}
	if active && !late {
		all = append(all, event{what: passes, wait: o.next()})
	}
	return all
}

// next returns how long to wait until something has changed. So that there are few
// instants, all are whole seconds or just too late for an answer after them. Among others,
// something may change every second, and at both instants while an operation is under way.
func (o *office) next() time.Duration {
	wait, second, among := account.Age, o.accounts.now()%time.Second, len(o.others) > 0
	waited := slices.ContainsFunc(o.callers[:], func(c client) bool { return c.does == waits })
	switch {
	case second == 0 && (waited || among && len(o.open) > 0):
		wait = account.OpTimeout + 1
	case waited || among:
		wait = time.Second - second
	}
	for _, op := range o.open {
		wait = min(wait, op.began+patience-o.accounts.now()) // the operation ends
	}
	return wait
}

func (o *office) fail(format string, args ...any) {
	if o.wrong == nil {
		o.wrong = fmt.Errorf(format, args...)
	}
}

func (o *office) Do(e event) {
	if len(o.others) == 0 && o.accounted() > 1 {
		defer o.apart(e)()
	}
	switch e.what {
	case passes:
		o.accounts.epoch = o.accounts.epoch.Add(-e.wait)
	case goesOn:
		o.goesOn(&o.callers[e.who])
	case retries, pays, succeeds, fails:
		o.acts(&o.callers[e.who], e.what)
	case foreign:
		o.accounts.effect(o.others[e.who], e.how)
	default:
		op := o.open[e.who]
		late := o.accounts.now()-op.began > account.OpTimeout
		o.end(e.who, e.what)
		if _, known := o.accounts.Level(hosts[op.host], officeSize); known && e.what != answers && !(late && e.what == lies) {
			o.fail("a level is known after the store %s", e.what)
		}
	}
	o.begin()
	o.even()
}

// acts does as a Transport would.
func (o *office) acts(c *client, what string) {
	host, f := hosts[c.host], &o.accounts
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
	if now := f.now(); f.up(now) && (f.views[hosts[c.host]] == nil || f.views[hosts[c.host]].link.Up(now)) {
		o.wanted[c.host] += tokens
	}
	f.mu.Unlock()
	f.Add(hosts[c.host], officeSize, tokens)
}

// decide asks for the account's permission, as fleet.go does, and makes the retry.
func (o *office) decide(c *client) {
	host, f := hosts[c.host], &o.accounts
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
	if c.does = sends; o.charges[c.host].Sent() != (o.unpaid[c.host] == 0) {
		o.fail("charged twice, or not after a success")
	} else if o.unpaid[c.host] == 0 {
		c.paid, o.unpaid[c.host] = true, 1
		o.adds(c, -account.Cost)
	}
}

// due reports whether c has an answer, or no time left to wait for one.
func (o *office) due(c *client) bool {
	if c.does != waits {
		return false
	}
	select {
	case <-c.answer:
		return true
	default:
		return o.accounts.now() >= c.until
	}
}

// goesOn ends the wait of c.
func (o *office) goesOn(c *client) {
	if o.accounts.now() >= c.until {
		o.accounts.Overdue(hosts[c.host], c.answer)
		o.even()
	}
	o.decide(c)
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
		if v := f.views[hosts[host]]; v != nil {
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
		if v := f.views[hosts[host]]; v != nil {
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
		if v := f.views[hosts[host]]; v != nil {
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
	for o.wrong == nil {
		all := o.Moves()
		i := slices.IndexFunc(all, func(e event) bool { return e.what == passes || e.what == hangs || e.what == goesOn })
		if len(o.open) == 0 && (i < 0 || all[i].what == passes) {
			break
		}
		o.Do(all[i])
	}
	if o.wrong != nil {
		return o.wrong
	}
	for range 2 {
		o.Do(event{what: passes, wait: officeOff})
	}
	for host := range 2 {
		if o.accounts.Ask(hosts[host], officeSize) == nil {
			return errors.New("nobody asks a store that is well")
		}
		o.begin()
		for len(o.open) > 0 {
			o.Do(event{what: answers})
		}
		level, known := o.accounts.Level(hosts[host], officeSize)
		if !known || level != officeSize-o.lacks[host] {
			return fmt.Errorf("the level is %v, known: %v; the store lacks %v", level, known, o.lacks[host])
		}
	}
	return o.wrong
}
