// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package control is what people forbid a Transport by hand, at run time and for a
// time: the requests to a host, or retries. It has no clock. Instants are durations since
// an epoch of the caller's choice.
package control

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/retrip/retrip/internal/hostkey"
)

// Subject is what an order forbids. The zero Subject is all retries of the Transport.
type Subject struct {
	Host   hostkey.Key // if set: all requests to this host
	Policy string      // if set: the retries of requests that follow this policy
}

// String names s with its field, as errors and the log do.
func (s Subject) String() string {
	switch {
	case s.Host != (hostkey.Key{}):
		return "requests to " + s.Host.String()
	case s.Policy != "":
		return "retries of policy " + s.Policy
	}
	return "all retries"
}

// Order forbids a subject, up to an instant.
type Order struct {
	Subject
	Who   string        // the person who gave the order
	Given time.Duration // instant
	Until time.Duration // instant from which on it no longer holds
}

const (
	// MostFor is how long an order may hold. A longer one is a change of policy.
	MostFor = 24 * time.Hour

	mostOrders = 100 // at a time
	mostWho    = 100 // bytes
)

// Give returns an order for the time d, or an error that names the field and the value
// that is wrong.
func Give(s Subject, who string, d, now time.Duration) (Order, error) {
	if d <= 0 || d > MostFor {
		return Order{}, fmt.Errorf("for is %v: it must be more than 0s and at most %v", d, MostFor)
	}
	return Order{s, who, now, now + d}, CheckWho(who)
}

// CheckWho returns an error if who can't be a name for the log.
func CheckWho(who string) error {
	switch {
	case strings.TrimSpace(who) == "":
		return errors.New("who is empty: it must be the name of the person who decides this, for the log")
	case len(who) > mostWho:
		return fmt.Errorf("who has %d bytes: it must have at most %d", len(who), mostWho)
	case !utf8.ValidString(who) || strings.ContainsFunc(who, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("who is %q: it must have only printable characters", who)
	}
	return nil
}

// Orders are the orders that hold. They are immutable, so a request needs no lock to
// read them. Nil means none.
type Orders struct {
	by   map[Subject]Order
	ends time.Duration // instant at which the first of them ends
}

// Forbid reports whether an order forbids an attempt of a request to host that follows
// policy, at the instant now. retry says that it isn't the first attempt.
func (o *Orders) Forbid(host hostkey.Key, policy string, retry bool, now time.Duration) bool {
	return host != (hostkey.Key{}) && o.holds(Subject{Host: host}, now) || retry && (o.holds(Subject{}, now) || o.holds(Subject{Policy: policy}, now))
}

func (o *Orders) holds(s Subject, now time.Duration) bool {
	order, ok := o.by[s]
	return ok && now < order.Until
}

// Lapsed reports whether an order has ended, so that Current returns fewer.
func (o *Orders) Lapsed(now time.Duration) bool { return o != nil && now >= o.ends }

// Current returns the orders that hold at the instant now, and those that have ended,
// sorted.
func (o *Orders) Current(now time.Duration) (current *Orders, ended []Order) {
	if !o.Lapsed(now) {
		return o, nil
	}
	by := map[Subject]Order{}
	for s, order := range o.by {
		if now < order.Until {
			by[s] = order
		} else {
			ended = append(ended, order)
		}
	}
	return of(by), sorted(ended)
}

// With returns o and order, which replaces an order about the same subject. The error
// says that there are too many.
func (o *Orders) With(order Order) (*Orders, error) {
	by := map[Subject]Order{}
	if o != nil {
		maps.Copy(by, o.by)
	}
	by[order.Subject] = order
	if len(by) > mostOrders {
		return o, fmt.Errorf("%d orders hold, and there can't be more: undo one first", mostOrders)
	}
	return of(by), nil
}

// Without returns o without the order about s. The error says that there is none.
func (o *Orders) Without(s Subject) (*Orders, error) {
	by := map[Subject]Order{}
	if o != nil {
		maps.Copy(by, o.by)
	}
	if _, ok := by[s]; !ok {
		return o, fmt.Errorf("nobody forbids %s", s)
	}
	delete(by, s)
	return of(by), nil
}

// List returns the orders that hold at the instant now, sorted.
func (o *Orders) List(now time.Duration) []Order {
	o, _ = o.Current(now)
	if o == nil {
		return nil
	}
	return sorted(slices.Collect(maps.Values(o.by)))
}

func of(by map[Subject]Order) *Orders {
	if len(by) == 0 {
		return nil
	}
	ends := slices.MinFunc(slices.Collect(maps.Values(by)), func(a, b Order) int { return cmp.Compare(a.Until, b.Until) })
	return &Orders{by, ends.Until}
}

// sorted sorts orders: the widest come first.
func sorted(orders []Order) []Order {
	slices.SortFunc(orders, func(a, b Order) int {
		return cmp.Or(a.Host.Compare(b.Host), cmp.Compare(a.Policy, b.Policy))
	})
	return orders
}
