// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// plausible checks the state of a host.
func (w *world) plausible(c *client, s retrip.HostState) {
	if s.Tokens < -1e-6 || s.Size > 0 && s.Tokens > s.Size+1e-6 || s.PausedFor < 0 || s.Waiting < 0 || s.FailedRetries < 0 {
		w.breaks("P15", "t%d: the state of %s is impossible: %+v", c.number, s.Host, s)
	}
	if s.Recovered && (s.Failed == 0 || s.Answered == 0 || s.AnsweredAgo > s.FailingAgo) {
		w.breaks("P15", "t%d: %s can't have recovered: %+v", c.number, s.Host, s)
	}
}

// solvent checks that the budget of a host misses no more than its retries have cost:
// a retry that was not made gives its tokens back.
func (w *world) solvent(c *client, s retrip.HostState) {
	if len(c.swaps) > 1 || s.Host == "others" || c.plan.Bare {
		return
	}
	here := 0.0
	for _, r := range w.order {
		if r.client != c || !strings.HasPrefix(s.Host, r.host) {
			continue
		}
		cost := 0.0
		if r.effective().AttemptTimeout > 0 {
			cost = 2 // of a slow success
		}
		for _, e := range r.events {
			if e.hook == "Hedge" || e.hook == "Attempt" && (e.Attempt > 1 || e.at > r.end) {
				cost += 0.7
			}
		}
		here += cost
	}
	const tiny = 1e-4
	if missing := s.Size - s.Tokens; strings.HasPrefix(s.Host, "s") && missing > here+tiny {
		w.breaks("P10", "t%d: %s misses %.2f tokens, its retries have cost %.2f at most", c.number, s.Host, missing, here)
	}
}

// checkQuiet checks what must hold once no request is in flight.
func (w *world) checkQuiet(t *testing.T) {
	swapped := false
	for _, c := range w.clients {
		swapped = swapped || len(c.swaps) > 1
		for _, s := range c.retrip.HostStates() {
			w.plausible(c, s)
			w.solvent(c, s)
			if s.Waiting != 0 {
				w.breaks("P23", "t%d: %d requests wait at the gate of %s, and none is in flight", c.number, s.Waiting, s.Host)
			}
		}
	}
	for i, m := range w.metrics {
		w.counted(t, i, m, swapped)
	}
}

// tally is what the hooks have told of the requests that one Metrics counts.
type tally struct {
	counts  map[string]float64 // by metric and label
	strange bool               // there is more than the hooks tell
	beside  bool               // there are attempts whose result no hook tells
}

// told returns what the hooks have told of the requests that Metrics number i counts.
func (w *world) told(i int) tally {
	all := tally{counts: map[string]float64{}}
	for _, c := range w.clients {
		if c.plan.Metrics == i {
			all.counts["requests_total"] += float64(c.strangers)
			all.strange = all.strange || c.strangers > 0
			for reason, n := range c.strange {
				all.counts["give_ups_total "+reason] += n
			}
		}
	}
	for _, r := range w.order {
		if r.client.plan.Metrics != i {
			continue
		}
		all.counts["requests_total"]++
		all.strange = all.strange || r.panicked || r.call.Panics != NoPanic
		done, retry, out := false, "", false
		for _, e := range r.events {
			if out && e.hook != "Hedge" {
				all.counts["attempts_total "+resultOf(e)]++
				all.counts["hidden_sends_total"] += float64(max(0, e.Sends-1))
				all.beside = all.beside || e.StatusCode != 0 && errors.Is(e.Err, errOwn) // of the next attempt's body
			}
			out = e.hook == "Attempt"
			switch e.hook {
			case "Attempt", "Hedge":
				all.counts["attempts_total"]++
				all.beside = all.beside || e.hook == "Hedge" || done
				if e.hook == "Attempt" && retry != "" {
					all.counts["retries_total "+retry]++
				}
			case "GiveUp":
				if !done {
					all.counts["give_ups_total "+string(e.Reason)]++
				}
			case "Done":
				done = true
				if e.Reason == "" && (e.Err != nil || e.StatusCode >= 500 || e.StatusCode == http.StatusTooManyRequests) {
					all.counts["requests_total failed"]++
				}
			case "Resume":
				all.counts["body_resumes_total "+string(e.Reason)]++
			}
			if retry = ""; e.hook == "Retry" {
				retry = string(e.Reason)
			}
		}
	}
	return all
}

// resultOf returns the result of the attempt that e tells of, if it got a response.
func resultOf(e event) string {
	switch {
	case e.StatusCode == 0 || e.Err != nil:
		return "none"
	case e.StatusCode == http.StatusTooManyRequests:
		return "429"
	case e.StatusCode < 100 || e.StatusCode >= 600:
		return "other"
	}
	return fmt.Sprintf("%dxx", e.StatusCode/100)
}

// counted checks that m, Metrics number i, has counted what the hooks have told, and that
// its figures add up.
func (w *world) counted(t *testing.T, i int, m *retrip.Metrics, swapped bool) {
	counted := map[string]float64{}
	for policy, s := range play.Gather(t, m) {
		w.identities(policy, s)
		for name, n := range s {
			counted[name] += n
		}
	}
	if swapped {
		return // series may have gone with their policies
	}
	bare := slices.ContainsFunc(w.clients, func(c *client) bool { return c.plan.Metrics == i && c.plan.Bare })
	told := w.told(i)
	for name := range told.counts {
		counted[name] += 0
	}
	for _, name := range slices.Sorted(maps.Keys(counted)) {
		want := told.counts[name]
		if bare && name != "requests_total" {
			continue // no hook has told of it
		}
		switch metric, word, labelled := strings.Cut(name, " "); metric {
		case "requests_total":
			if labelled && (word != "failed" || told.strange) {
				continue
			}
		case "attempts_total":
			if told.strange || labelled && (told.beside || word == "none" || slices.Contains([]string{"", "error", "timeout", "canceled"}, word)) {
				continue
			}
		case "hidden_sends_total":
			if labelled || told.strange || told.beside {
				continue
			}
		case "retries_total", "body_resumes_total", "give_ups_total":
			if word == "" || metric != "give_ups_total" && told.strange {
				continue
			}
		default:
			continue
		}
		if counted[name] != want {
			w.breaks("P19", "%v %s were to be counted, the metrics tell of %v", want, name, counted[name])
		}
	}
}

// identities checks the identities of docs/metrics.md.
func (w *world) identities(policy string, s play.Sums) {
	for _, x := range []struct {
		text string
		a, b float64
	}{
		{"attempts = requests - unattempted + retries + hedges", s["attempts_total"], s["requests_total"] - s["unattempted_requests_total"] + s["retries_total"] + s["hedges_total"]},
		{"give-ups = requests that gave up or were canceled", s["give_ups_total"], s["requests_total gave_up"] + s["requests_total canceled"]},
		{"canceled give-ups = canceled requests", s["give_ups_total canceled"], s["requests_total canceled"]},
		{"retries = waits", s["retries_total"], s["wait_seconds"]},
	} {
		if x.a != x.b {
			w.breaks("P19", "the metrics of %s don't add up: %s: %v, %v", policy, x.text, x.a, x.b)
		}
	}
}

// last makes a request that should get a response at once.
func (w *world) last(c *client, s *site, id int) (*http.Response, error) {
	of := &callOf{id: id + c.number*10 + s.number, call: &Call{Method: http.MethodGet, Site: s.number}}
	ctx := context.WithValue(context.Background(), callKey{}, of)
	ctx = retrip.WithPolicy(ctx, retrip.Policy{MaxAttempts: 1, Deadline: time.Hour, AttemptTimeout: time.Hour})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.scheme()+"://"+s.host()+"/last", nil)
	must(err)
	return c.http.Transport.RoundTrip(req)
}

// checkRest checks that three quarters of an hour after the last refusal, no gate holds
// back anything.
func (w *world) checkRest() {
	for _, c := range w.clients {
		for _, s := range c.retrip.HostStates() {
			if s.Held && s.Tokens == s.Size && s.PausedFor == 0 && s.Breaker == retrip.BreakerClosed && w.rests(c, s) {
				w.breaks("P15", "t%d: %s is held, and nothing but its gate may hold it: %v", c.number, s.Host, s)
			}
		}
	}
}

// rests reports whether the gate of a host must be idle by now.
func (w *world) rests(c *client, s retrip.HostState) bool {
	if len(c.swaps) > 1 || c.plan.Fleet || c.plan.Bare || s.Host == "others" {
		return false
	}
	known := false
	for _, r := range w.order {
		if p := r.effective(); r.client == c && strings.HasPrefix(s.Host, r.host) {
			known = true
			retried := func(e event) bool { return e.hook == "Attempt" && e.Attempt > 1 }
			if p.breaks() || len(p.Dialects) > 0 || len(r.arrivals) > 1 || slices.ContainsFunc(r.events, retried) {
				return false // a breaker, or the row of a route
			}
			for _, a := range r.arrivals {
				if a.word > 5*time.Second {
					return false
				}
			}
		}
	}
	return known
}

// checkCalm checks that a day after the last trouble, nothing of it is left.
func (w *world) checkCalm() {
	for _, c := range w.clients {
		for _, s := range c.retrip.HostStates() {
			w.breaks("P15", "t%d: %s still has a state after 26 hours: %v", c.number, s.Host, s)
		}
		for _, s := range w.sites {
			began := w.now()
			resp, err := w.last(c, s, 90_000)
			if err != nil {
				w.breaks("P14", "t%d: the last request to s%d fails: %v", c.number, s.number, err)
				continue
			}
			fine := drop(resp)
			if took := w.now() - began; !fine || took > 20*s.plan.Latency+time.Second {
				w.breaks("P14", "t%d: the last request to s%d gets %d after %v", c.number, s.number, resp.StatusCode, took)
			}
		}
	}
	synctest.Wait()
}
