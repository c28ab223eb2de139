// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package tell

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/redact"
)

// Shown is what hooks, the log and errors show of an attempt that has ended.
type Shown struct {
	Kept
	Err error
}

// Kept is what a request keeps of an attempt to show it, beside its error.
type Kept struct {
	Response
	Sends int32      // how often it was sent, if that is known
	Blame fault.Kind // KindBody or KindCaller if the caller's own code caused the failure
}

// Response is what is shown of a response.
type Response struct {
	Status int
	Header http.Header
}

// ShownOf returns what to keep of resp, which the driver discards. The response itself would keep
// its attempt in memory during a wait.
func ShownOf(resp *http.Response) Response {
	return Response{resp.StatusCode, bounded(resp.Header)}
}

// headerMost is how many bytes of a header a request keeps that has dropped the response.
const headerMost = 64 << 10

// sizeOf returns about how many bytes a field takes in memory.
func sizeOf(name string, values []string) int {
	n := len(name) + 32
	for _, v := range values {
		n += len(v) + 32
	}
	return n
}

// bounded returns h or, if it is larger than headerMost, a copy of its smallest fields: those
// that people ask for, such as the server's name of the request, are short.
func bounded(h http.Header) http.Header {
	total := 0
	for name, values := range h {
		total += sizeOf(name, values)
	}
	if total <= headerMost {
		return h
	}
	return smallest(h)
}

// smallest returns a copy of the smallest fields of h.
//
//go:noinline
func smallest(h http.Header) http.Header {
	type field struct {
		size int
		name string
	}
	fields := make([]field, 0, len(h))
	for name, values := range h {
		fields = append(fields, field{sizeOf(name, values), name})
	}
	slices.SortFunc(fields, func(a, b field) int { return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.name, b.name)) })
	kept, left := http.Header{}, headerMost
	for _, f := range fields {
		if left -= f.size; left < 0 {
			break
		}
		// The values of all fields may be in one array.
		kept[f.name] = slices.Clone(h[f.name])
	}
	return kept
}

// Error is why a request failed; see retrip.Error.
type Error struct {
	Attempts   int
	Reason     decide.Reason
	StatusCode int
	Header     http.Header
	RetryAfter time.Duration
	Errs       []error // of attempts, in order
	Last       error
}

// keptErrors is how many of the first and how many of the last errors a request keeps.
const keptErrors = 8

// mostKept is how long the text may be of an error that a request keeps beyond its attempt. Much
// of it may be what a server has sent.
const mostKept = 64 << 10

// Short returns err, or the beginning of its text if that is too long to be kept.
func Short(err error) error {
	if isLong(err) {
		return errors.New(redact.Error(err))
	}
	return err
}

// bare returns err, the error of the only attempt, as the caller gets it.
func bare(err error) error {
	if e, ok := err.(fault.NilPointer); ok {
		return e.Err
	}
	if isLong(err) {
		return longError{err}
	}
	return err
}

// isLong reports whether the text of err is longer than mostKept. A method of err that panics
// doesn't matter.
func isLong(err error) (long bool) {
	defer func() { _ = recover() }()
	return len(err.Error()) > mostKept
}

// longError is an error whose text is cut.
type longError struct{ error }

func (e longError) Error() string { return redact.Error(e.error) }
func (e longError) Unwrap() error { return e.error }

// omitted is the number of errors between them. It stands in their place.
type omitted int

func (n *omitted) Error() string { return strconv.Itoa(int(*n)) + " more" }

// keep keeps r for the caller's error, if it is a response.
func (t *Teller) keep(r *Response) {
	if r.Status != 0 || r.Header != nil {
		t.response = *r
	}
}

// Add records an error of an attempt, or of the wait after it, for the caller's error.
func (t *Teller) Add(err error) {
	if len(t.errs) >= 2*keptErrors {
		n, ok := t.errs[keptErrors].(*omitted)
		if ok {
			t.errs = slices.Delete(t.errs, keptErrors+1, keptErrors+2)
		} else {
			n = new(omitted)
			t.errs[keptErrors] = n
		}
		*n++
	}
	t.errs = append(t.errs, err)
}
