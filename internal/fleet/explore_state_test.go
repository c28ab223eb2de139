// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"slices"
	"time"

	"github.com/retrip/retrip/internal/account"
)

// State tells times from now, and leaves out which of the callers of a host is which, and
// what has no effect any more.
func (o *office) State() []any {
	f, now := &o.accounts, o.accounts.now()
	since := func(at, least time.Duration) time.Duration { return max(at-now, least) }
	all := []any{o.wrong != nil, now % time.Second, o.wanted[0] - o.done[0], o.wanted[1] - o.done[1], since(o.back[0], 0)}
	works := f.link.works(now)
	if all = append(all, works, f.link.slow != 0); works {
		all = append(all, o.kin(f.link.by), since(f.link.answered, -witness))
	}
	if o.accounted() >= several { // fewer failures say nothing about the store
		all = append(all, o.failed(), works && slices.Contains(f.link.failed, f.link.by))
	}
	if f.link.slow != 0 {
		all = append(all, since(f.link.slow, -2*patience))
	}
	for host := range hosts {
		all = append(all, o.relate(host, now))
	}
	for _, op := range o.open {
		all = append(all, op.host, op.tokens, since(op.began, -patience))
	}
	callers := o.callers
	for i := range callers {
		c := &callers[i]
		switch {
		case c.does != waits && c.left == 0:
			*c = client{host: c.host}
		case c.does != waits:
			c.until = 0
		case o.due(c) && now < c.until:
			c.until = -1
		default:
			c.until = since(c.until, 0)
		}
		c.answer = nil
	}
	slices.SortFunc(callers[:], func(a, b client) int {
		paid := map[bool]int{true: 1}
		return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.left, b.left), cmp.Compare(a.does, b.does), cmp.Compare(a.until, b.until), paid[a.paid]-paid[b.paid])
	})
	return append(all, callers)
}

// shown is what State tells of an account.
type shown struct {
	busy, forbids, fresh bool
	lacks, owed          float64
	unpaid               int
	charged              bool
	back, since, sent    time.Duration
	heard, asked         time.Duration
}

// relate returns what State tells of the account of a host.
func (o *office) relate(host int, now time.Duration) (s shown) {
	since := func(at, least time.Duration) time.Duration { return max(at-now, least) }
	v := o.accounts.views[hosts[host]]
	if v != nil && v.busy {
		s.owed, s.busy, s.since, s.sent = v.owed, true, since(v.since, -patience), since(v.sent, -patience)
	}
	active, retries := o.future(host)
	if !active {
		return s
	}
	s.unpaid, s.charged, s.back = o.unpaid[host], o.charges[host].Made(), since(o.back[1+host], 0)
	away := max(s.back, since(o.back[0], 0))
	if v != nil && retries > 0 {
		// A level that allows all matters only as long as nobody asks for another.
		level, heard := v.Level(officeSize, now+away)
		s.forbids = heard && level < officeSize/4
		s.fresh = !v.Stale(officeSize, now+away)
	}
	known := s.forbids || s.fresh
	if !known && s.back <= since(o.back[0], 0) {
		s.back = 0 // nothing is kept for when the store is back
	}
	if retries == 0 {
		return s // its level is never looked at
	}
	s.asked = -account.Age - 1
	if v != nil {
		s.asked = since(v.asked, s.asked)
	}
	if known {
		s.heard = since(o.heard[host], -account.Age)
	}
	if s.lacks = o.lacks[host]; s.lacks+o.charging(host)+float64(retries)*account.Cost <= officeSize*3/4 {
		s.lacks = 0 // its level will allow all
	}
	return s
}

// future reports whether the callers of a host can do anything more, and how many retries they
// can still make.
func (o *office) future(host int) (active bool, retries int) {
	for _, c := range o.callers {
		if c.host != host {
			continue
		}
		active = active || c.left > 0 || c.does == waits
		switch c.does {
		case idles:
			retries += (c.left + 1) / 2
		case waits:
			retries += 1 + c.left/2
		case sends:
			retries += c.left / 2
		}
	}
	return active, retries
}

// charging returns how many tokens the account of a host may be charged for the retries so far.
func (o *office) charging(host int) (tokens float64) {
	if v := o.accounts.views[hosts[host]]; v != nil {
		tokens = max(0, -v.owed)
	}
	for _, op := range o.open {
		if op.host == host {
			tokens += max(0, -op.tokens)
		}
	}
	return tokens
}
