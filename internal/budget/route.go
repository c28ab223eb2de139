// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"math"
	"net/url"
	"strings"
)

// Routes is how many rows a host has for the routes that fail. Further ones share them.
// With a single one, a dead fifth of a host costs the others most of the retries that would
// save them.
const Routes = 8

// Route is what is known of the requests of one route that fails. A success elsewhere
// doesn't show that the route is well, nor does that of another request to it, which may
// concern another shard or tenant: only a retry that succeeds does. A zero Row is free.
type Route struct {
	Name uint32 // see [RouteOf]
	Row  uint8  // failures since a retry succeeded
	Good uint8  // successes since the last retry
	Told bool   // for its owner: the log has told that retries wait
}

// route returns the row of a route, or nil if there is none. If make is true, it makes one.
func (d *Debt) route(name uint32, make bool) *Route {
	free := -1
	for i := range d.Routes {
		switch t := &d.Routes[i]; {
		case t.Row == 0:
			free = i
		case t.Name == name:
			return t
		}
	}
	switch {
	case free < 0:
		return &d.Routes[name%Routes]
	case !make:
		return nil
	}
	d.Routes[free] = Route{Name: name}
	return &d.Routes[free]
}

// RowOf returns the index in Routes of the row that a route has or shares, or -1 if there
// is none.
func (d *Debt) RowOf(name uint32) int {
	t := d.route(name, false)
	for i := range d.Routes {
		if t == &d.Routes[i] {
			return i
		}
	}
	return -1
}

// failed counts a failure of a route.
func (d *Debt) failed(name uint32) {
	t := d.route(name, true)
	t.Row = min(t.Row, math.MaxUint8-1) + 1
}

// waits returns how many successes a retry of a route waits for, after so many failures
// there since a retry succeeded.
func (r Rule) waits(row uint8) uint8 {
	over := int(row) - int(min(rowMost, max(rowLeast, r.row(routeRowTenths))))
	if r.Size == 0 || over < 0 {
		return 0
	}
	return fewest << (2 * min(over, steps))
}

// WaitsFor returns how many successes there a retry of the route still waits for.
func (t *Route) WaitsFor(r Rule) uint8 {
	if t == nil {
		return 0
	}
	return max(t.Good, r.waits(t.Row)) - t.Good
}

// succeed records a success of a first attempt, or of a retry that the budget allowed.
func (t *Route) succeed(first, retry bool) {
	switch {
	case t == nil:
	case retry:
		*t = Route{}
	case first:
		if t.Good++; t.Good == enough {
			*t = Route{}
		}
	}
}

// segments is how many segments of a path may be the one that names the route.
const segments = 4

// RouteOf returns the number that names the route of requests with this method and path. A
// route is a method and the first segment of the path that says what the request is
// about. That is none that all routes of an API have in common, such as a version, and none
// with a digit, which is likely an id.
func RouteOf(method, path string) uint32 {
	const offset, prime = 2166136261, 16777619 // FNV-1a
	h := uint32(offset)
	add := func(s string) {
		for i := range len(s) {
			h = (h ^ uint32(s[i])) * prime
		}
	}
	add(method)
	add(subject(path))
	return h
}

// RouteText describes the route of requests with this method and path for people. The path is
// escaped as in a URL, since strangers may choose it, and the text is part of a list.
func RouteText(method, path string) string {
	const most = 60 // bytes
	text := strings.ToValidUTF8(method, "") + " /" + url.PathEscape(subject(path))
	return strings.Clone(text[:min(len(text), most)])
}

// subject returns the segment of path that names the route, or "" if there is none.
func subject(path string) string {
	for range segments {
		segment, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		switch {
		case segment == "api" || segment == "apis" || segment == "rest" || segment == "":
		case !strings.ContainsAny(segment, "0123456789"):
			return segment
		}
		path = rest
	}
	return ""
}
