// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/redact"
)

// news is what the log says about the store.
type news struct {
	err    error // why the store is not used; nil if it is
	unsaid bool
	said   bool // the log says that the store is not used
	at     time.Duration
}

const newsEvery = time.Minute

func (n *news) away(err error) { n.err, n.unsaid = err, true }

func (n *news) up() {
	if n.err != nil {
		n.err, n.unsaid = nil, n.said
	}
}

// Tell returns what the log should say, at most once a minute: the error that
// made the store unusable, or nil if the store is back.
func (f *Accounts) Tell() (away error, news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, now := &f.news, f.now()
	if !n.unsaid || n.at != 0 && now-n.at < newsEvery {
		return nil, false
	}
	n.unsaid, n.said, n.at = false, n.err != nil, max(1, now)
	return n.err, true
}

const errorBytes = 500

// storeError returns the text of an error of the store for the log. It runs in
// a worker, because the error's own code may panic.
func storeError(err error) (bounded error) {
	defer func() {
		if recover() != nil {
			bounded = errPanic
		}
	}()
	text := redact.Error(err)
	if len(text) > errorBytes {
		text = strings.ToValidUTF8(text[:errorBytes], "") + "…"
	}
	return errors.New(text)
}
