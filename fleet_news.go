// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"errors"
	"strings"
	"time"
)

// fleetNews is what the log says about the store.
type fleetNews struct {
	err    error // why the store is not used; nil if it is
	unsaid bool
	said   bool // the log says that the store is not used
	at     time.Duration
}

const fleetNewsEvery = time.Minute

func (n *fleetNews) away(err error) { n.err, n.unsaid = err, true }

func (n *fleetNews) up() {
	if n.err != nil {
		n.err, n.unsaid = nil, n.said
	}
}

// tell returns what the log should say, at most once a minute: the error that
// made the store unusable, or nil if the store is back.
func (f *Fleet) tell() (away error, news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, now := &f.news, f.now()
	if !n.unsaid || n.at != 0 && now-n.at < fleetNewsEvery {
		return nil, false
	}
	n.unsaid, n.said, n.at = false, n.err != nil, max(1, now)
	return n.err, true
}

const fleetErrorBytes = 500

// fleetError returns the text of an error of the store for the log. It runs in
// a worker, because the error's own code may panic.
func fleetError(err error) (bounded error) {
	defer func() {
		if recover() != nil {
			bounded = errFleetPanic
		}
	}()
	text := errorText(err)
	if len(text) > fleetErrorBytes {
		text = strings.ToValidUTF8(text[:fleetErrorBytes], "") + "…"
	}
	return errors.New(text)
}
