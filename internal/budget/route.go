// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"math"
	"strings"
)

// Routes is how many rows of routes a host has. With a single one, a dead fifth of a host
// costs the others most of the retries that would save them.
const Routes = 8

// Route is what is known of the requests of one route, or of several that share the row. A
// success elsewhere doesn't show that the route is well, nor does that of another request
// to it, which may concern another shard or tenant: only a retry that succeeds does.
type Route struct {
	Row  uint8 // failures since a retry succeeded
	Good uint8 // successes since the last retry
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

func (t *Route) fail() { t.Row = min(t.Row, math.MaxUint8-1) + 1 }

// succeed records a success of a first attempt, or of a retry that the budget allowed.
func (t *Route) succeed(first, retry bool) {
	switch {
	case *t == Route{}:
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

// RouteOf returns the number of the row in which requests with this method and path count.
// A route is a method and the first segment of the path that says what the request is
// about. That is none that all routes of an API have in common, such as a version, and none
// with a digit, which is likely an id. Two routes may share a row.
func RouteOf(method, path string) uint8 {
	const offset, prime = 2166136261, 16777619 // FNV-1a
	h := uint32(offset)
	add := func(s string) {
		for i := range len(s) {
			h = (h ^ uint32(s[i])) * prime
		}
	}
	add(method)
	add(subject(path))
	return uint8((h ^ h>>16) % Routes)
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
