// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"io"
	"slices"
	"time"

	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/hostkey"
)

const (
	foreign = "ends an operation for another account"

	rejects = "refuses"
	isLate  = "answers late"
)

// effects are all ways in which an operation of an account affects the link.
var effects = []string{answers, isLate, breaks, rejects}

// foreign returns what may happen at the accounts of which only the effects are known.
// Those that nothing distinguishes are the same.
func (o *office) foreign() (all []event) {
	l, now := &o.accounts.link, o.accounts.now()
	same := func(a, b hostkey.Key) bool {
		return (!l.works(now) || (a == l.by) == (b == l.by)) && slices.Contains(l.failed, a) == slices.Contains(l.failed, b)
	}
	for i, host := range o.others {
		if slices.ContainsFunc(o.others[:i], func(earlier hostkey.Key) bool { return same(earlier, host) }) {
			continue
		}
		for _, how := range effects {
			if o.mayEnd(how, now) {
				all = append(all, event{what: foreign, who: i, how: how})
			}
		}
	}
	return all
}

// mayEnd reports whether an operation may end so now: it begins only while the link is up.
func (o *office) mayEnd(how string, now time.Duration) bool {
	lost := now - (o.back[0] - officeOff) // ago
	return o.accounts.link.Up(now) || lost <= account.OpTimeout || how != answers && lost <= patience
}

// effect does to the link what the end of an operation of host's account does.
func (f *Accounts) effect(host hostkey.Key, how string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err, why := f.now(), error(nil), refused
	v := &view{host: host, busy: true, sent: now, answer: make(chan struct{})}
	switch how {
	case isLate:
		v.sent = now - account.OpTimeout - 1
	case breaks:
		err, why = io.ErrUnexpectedEOF, disconnected
	case rejects:
		err = errPanic
	}
	f.end(v, officeSize, officeSize, err, why)
}

// apart returns a check for after e: what happens at one account changes another only
// through the link, and the link only as one of the effects does. So others are to an
// account what their effects are.
func (o *office) apart(e event) (check func()) {
	f := &o.accounts
	if e.what == passes || e.what == foreign {
		return func() {}
	}
	host := 0
	if i := e.who; slices.Contains(o.ends, e.what) || e.what == hangs {
		host = o.open[i].host
	} else {
		host = o.callers[i].host
	}
	other, was := f.views[hosts[1-host]], f.link
	was.failed = slices.Clone(was.failed)
	var before view
	if other != nil {
		before = *other
	}
	_, ran := f.running[other]
	possible := []link{was}
	for _, how := range effects {
		if now := f.now(); o.mayEnd(how, now) {
			scratch := Accounts{add: f.add, epoch: f.epoch, link: was}
			scratch.link.failed = slices.Clone(was.failed)
			scratch.effect(hosts[host], how)
			possible = append(possible, scratch.link)
		}
	}
	return func() {
		if _, runs := f.running[other]; other != f.views[hosts[1-host]] || runs != ran || other != nil && *other != before {
			o.fail("what happens at one account changes another")
		}
		if now := f.now(); !slices.ContainsFunc(possible, func(l link) bool {
			return l.Up(now) == f.link.Up(now) && l.answered == f.link.answered && l.slow == f.link.slow && l.by == f.link.by && slices.Equal(l.failed, f.link.failed)
		}) {
			o.fail("an account affects the link in an unknown way")
		}
	}
}

// accounted returns how many accounts there are.
func (o *office) accounted() int {
	if slices.ContainsFunc(o.callers[:], func(c client) bool { return c.host > 0 }) {
		return len(hosts)
	}
	return 1 + len(o.others)
}

// kin returns a number for a host: accounts of which only the effects are known have the
// same.
func (o *office) kin(host hostkey.Key) int {
	if slices.Contains(o.others, host) {
		return len(hosts)
	}
	return slices.Index(hosts[:], host)
}

// failed returns how many accounts of each kind have failed.
func (o *office) failed() (n [len(hosts) + 1]int) {
	for _, host := range o.accounts.link.failed {
		n[o.kin(host)]++
	}
	return n
}
