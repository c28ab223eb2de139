// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/span"
)

// Journal is what the log already says about the hosts of a Transport, so that it
// doesn't say the same with every request. It keeps no state of its hosts and is
// bounded. The zero Journal is empty. It is safe for concurrent use.
type Journal struct {
	due    atomic.Int64 // instant from which on Rest has something to say; 0: never
	mu     sync.Mutex
	topics map[Topic]*topicState
}

// Topic is what records are about that say the same.
type Topic struct {
	Host, Policy string
	Record       string // text of the records; empty for pauses
	Reason       string
}

// topicState is what the log says about a topic.
type topicState struct {
	at      time.Duration // instant of the last record; for pauses, their end
	omitted int           // records left out since then
	others  bool          // these are records of any host without a topic of its own
}

const (
	// sayEvery is how often the log says the same, at most.
	sayEvery = time.Minute

	// calmAfter is how long a host must not have been paused for its next pause to
	// be news. The gate of a host at its rate limit pauses more often: after 13
	// minutes without a pause, its pace would be ten times the limit.
	calmAfter = time.Hour

	// More topics count as those of one host.
	mostTopics = 256
)

// OtherHosts stands for the hosts for which there is no place. It has no port, unlike
// every host.
const OtherHosts = "others"

// Record records that something happened which t describes. It reports whether the log
// should say so, and then how many records it has left out since it last did, and
// whether these may be about other hosts.
func (j *Journal) Record(t Topic, now time.Duration) (say bool, omitted int, others bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	w, known := j.find(t, now)
	if known && now-w.at < sayEvery {
		w.omitted++
		j.wake(t.due(w))
		return false, 0, false
	}
	w.at, omitted, w.omitted = now, w.omitted, 0
	return true, omitted, w.others
}

// Pause records a pause of a host until the given instant, and reports whether that is
// news.
func (j *Journal) Pause(host, policy string, until, now time.Duration) (news bool) {
	t := Topic{Host: host, Policy: policy}
	j.mu.Lock()
	defer j.mu.Unlock()
	w, known := j.find(t, now)
	w.at = max(w.at, until)
	j.wake(t.due(w))
	return !known
}

// find returns what the log says about t, and whether it says anything yet.
func (j *Journal) find(t Topic, now time.Duration) (w *topicState, known bool) {
	if w, known = j.topics[t]; known {
		return w, true
	}
	if len(j.topics) >= mostTopics {
		for t, w := range j.topics {
			if t.over(w, now) {
				delete(j.topics, t)
			}
		}
	}
	if len(j.topics) >= mostTopics {
		t.Host, t.Policy = OtherHosts, ""
		if w, known = j.topics[t]; known {
			return w, true
		}
	}
	if j.topics == nil {
		j.topics = map[Topic]*topicState{}
	}
	w = &topicState{others: t.Host == OtherHosts}
	j.topics[t] = w
	return w, false
}

// over reports whether w may be forgotten without a word.
func (t Topic) over(w *topicState, now time.Duration) bool {
	return t.Record != "" && w.omitted == 0 && now-w.at >= sayEvery
}

// due returns the instant from which on Rest speaks of t, or 0 if it need not. A
// record of something that happens again is better than one of Rest, so Rest leaves
// it some time.
func (t Topic) due(w *topicState) time.Duration {
	switch {
	case t.Record == "":
		return span.Add(w.at, calmAfter)
	case w.omitted > 0:
		return span.Add(w.at, 2*sayEvery)
	}
	return 0
}

// wake makes sure that Rest speaks at the given instant.
func (j *Journal) wake(at time.Duration) {
	if due := j.due.Load(); due == 0 || int64(at) < due {
		j.due.Store(int64(at))
	}
}

// Pending reports whether Rest may have something to say before long. Most requests
// need no clock to learn that it doesn't.
func (j *Journal) Pending() bool { return j.due.Load() != 0 }

// Rest calls say with what the log should say without any request: the number of
// records that were left out of a topic about which nothing more has come since, and
// the hosts that have not been paused for an hour.
func (j *Journal) Rest(now time.Duration, say func(t Topic, omitted int)) {
	if due := j.due.Load(); due == 0 || int64(now) < due {
		return
	}
	for t, omitted := range j.rest(now) {
		say(t, omitted)
	}
}

func (j *Journal) rest(now time.Duration) map[Topic]int {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.due.Store(0)
	said := map[Topic]int{}
	for t, w := range j.topics {
		switch at := t.due(w); {
		case at != 0 && at <= now:
			said[t] = w.omitted
			delete(j.topics, t)
		case at != 0:
			j.wake(at)
		case t.over(w, now):
			delete(j.topics, t)
		}
	}
	return said
}
