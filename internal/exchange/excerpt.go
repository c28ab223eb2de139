// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"cmp"
	"net/http"
	"slices"
)

// excerpt is what an error or hook may have to show of a discarded response. The
// response itself would keep its attempt in memory during a wait.
type excerpt struct {
	status int
	header http.Header
}

// forget drops resp, but for the excerpt that is kept of it, and returns it: the caller must
// discard what is in hand.
func (x *journey) forget(resp *http.Response) *http.Response {
	x.excerpt = excerpt{resp.StatusCode, bounded(resp.Header)}
	x.last.resp, x.last.inHand, x.last.discarded = nil, false, true
	return resp
}

// excerptMost is how many bytes of a header a request keeps that has dropped the response.
const excerptMost = 64 << 10

// sizeOf returns about how many bytes a field takes in memory.
func sizeOf(name string, values []string) int {
	n := len(name) + 32
	for _, v := range values {
		n += len(v) + 32
	}
	return n
}

// bounded returns h or, if it is larger than excerptMost, a copy of its smallest fields: those
// that people ask for, such as the server's name of the request, are short.
func bounded(h http.Header) http.Header {
	total := 0
	for name, values := range h {
		total += sizeOf(name, values)
	}
	if total <= excerptMost {
		return h
	}
	type field struct {
		size int
		name string
	}
	fields := make([]field, 0, len(h))
	for name, values := range h {
		fields = append(fields, field{sizeOf(name, values), name})
	}
	slices.SortFunc(fields, func(a, b field) int { return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.name, b.name)) })
	kept, left := http.Header{}, excerptMost
	for _, f := range fields {
		if left -= f.size; left < 0 {
			break
		}
		// The values of all fields may be in one array.
		kept[f.name] = slices.Clone(h[f.name])
	}
	return kept
}
