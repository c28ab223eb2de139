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
	Header http.Header // of its response, unless that has been discarded
	Err    error
}

// Kept is what a request keeps of an attempt to show it, beside its error. The response itself
// would keep the attempt in memory during a wait.
type Kept struct {
	Status int        // of its response; 0 if there was none
	Sends  int32      // how often it was sent, if that is known
	Blame  fault.Kind // KindBody or KindCaller if the caller's own code caused the failure
}

// Error is why a request failed; see retrip.Error.
type Error struct {
	Attempts   int
	Reason     decide.Reason
	StatusCode int
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

// keep keeps status, of a response, for the caller's error.
func (t *Teller) keep(status int) { t.status = cmp.Or(status, t.status) }

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
