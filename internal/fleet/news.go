// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import "time"

// news is what the log says about the store.
type news struct {
	err    error // why the store is not used; nil if it is
	unsaid bool
	said   bool          // the log says that the store is not used
	at     time.Duration // instant of the last news told; 0 if there was none

	host string // whose account is not used, if that is news
	why  error
}

const newsEvery = time.Minute

func (n *news) away(err error) { n.err, n.unsaid, n.host, n.why = err, true, "", nil }

func (n *news) refused(host string, err error) { n.host, n.why = host, err }

func (n *news) up() {
	if n.err != nil {
		n.err, n.unsaid = nil, n.said
	}
}

// News returns what the log should say, at most once a minute: the error that
// made the store unusable, or its account of a host, or no error if the store is
// back.
func (f *Accounts) News() (host string, news bool, away error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, now := &f.news, f.now()
	if !n.unsaid && n.host == "" || n.at != 0 && now-n.at < newsEvery {
		return "", false, nil
	}
	n.at = max(1, now)
	if n.unsaid {
		n.unsaid, n.said = false, n.err != nil
		return "", true, n.err
	}
	away, host = n.why, n.host
	n.host, n.why = "", nil
	return host, true, away
}
