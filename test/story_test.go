// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/account"
	"github.com/retrip/retrip/internal/chance"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/play"
)

// A Transport does what the stories tell: its base and the fleet's store do what happens
// there, and what it sends, waits for and returns is what follows. What its hooks don't
// show, such as a wait that goes on, shows in the instants.
//
//retrip:promise P10 P19
func TestTransport_Stories(t *testing.T) {
	for name, s := range play.Stories(t, "..") {
		bubble(t, name, func(t *testing.T) {
			chance.Source = s.Draw
			defer func() { chance.Source = nil }()
			st := stage{Story: s, t: t, began: time.Now(), roles: map[string]*role{}, got: map[string][]string{}, said: map[string][]string{}}
			st.play()
			assert.Equal(t, st.want(), st.got)
			st.checkTold()
		})
	}
}

var errLost = errors.New("connection lost")

// stage is where a story is played.
type stage struct {
	*play.Story
	t     *testing.T
	began time.Time
	roles map[string]*role

	mu     sync.Mutex
	got    map[string][]string // what each request did, and "store" and "host"
	probed bool                // the host's breaker was half-open when it last changed
	said   map[string][]string // what each request has told at this instant, and "" for the host
	told   []string            // what was told at the instant of each line, on several lines
}

// role is what a request meets.
type role struct {
	ends      []play.Line // of its attempts
	leaves    []play.Line // its caller goes
	last      play.Line
	post      bool
	stream    bool // its body can be read but once
	nobody    bool // GetBody fails
	classify  bool
	keyed     bool
	route     string
	key       string // of the gate
	attempted int
}

// cast reads the story.
func (s *stage) cast() (names []string) {
	for _, l := range s.Lines {
		r := s.roles[l.Who]
		if r == nil {
			r = &role{route: cmp.Or(l.Route, "all"), key: l.Key}
			s.roles[l.Who], names = r, append(names, l.Who)
		}
		o := &l.Event.Outcome
		switch l.Event.Kind {
		case decide.Ended:
			r.ends = append(r.ends, l)
		case decide.Gone:
			r.leaves = append(r.leaves, l)
		case decide.NoBody:
			r.nobody = true
		}
		if o.Canceled {
			r.leaves = append(r.leaves, l)
		}
		r.post, r.stream = r.post || !o.Repeatable, r.stream || !o.Replay
		r.keyed = r.keyed || l.Has("keyed")
		r.classify = r.classify || o.Verdict != decide.ByRule
		r.last = l
	}
	return names
}

// want returns what each request should do.
func (s *stage) want() map[string][]string {
	want, away, asks := map[string][]string{}, false, map[string]play.Line{}
	for _, l := range s.Lines {
		tell := func(who, format string, args ...any) {
			want[who] = append(want[who], tellAt(l.At, format, args...))
		}
		if asked, ok := asks[l.Who]; ok && l.Event.Kind == decide.Gone {
			_, reason := asked.Deed()
			tell(l.Who, "wait %v %s", asked.Wait(), reason)
		}
		delete(asks, l.Who)
		switch do, reason := l.Deed(); do {
		case "send":
			tell(l.Who, "send")
		case "ask":
			asks[l.Who] = l
		case "sleep", "queue":
			// Of a retry that would get no body, no hook learns.
			if reason != "" && !s.roles[l.Who].nobody {
				tell(l.Who, "wait %v %s", l.Wait(), reason)
			}
		case "answer", "refuse":
			tell(l.Who, "end %s", reason)
		}
		for _, change := range play.Changes {
			if l.Tells(change) {
				tell("host", "%s", change)
			}
		}
		// Once the store has failed, nobody uses it for a while.
		away = away || l.Event.Kind == decide.Heard && !l.Event.Known
		tokens := l.Tokens()
		if l.Tells("pays") {
			tokens += account.Deposit(s.Account, s.Draw())
		}
		if tokens != 0 && !away {
			tell("store", "%g", tokens)
		}
	}
	return want
}

// returns returns the status of the response that a request gets, or 0 for an error.
func (s *stage) returns(who string) int {
	r := s.roles[who]
	if do, _ := r.last.Deed(); do == "refuse" || len(r.ends) == 0 {
		return 0
	}
	return r.ends[len(r.ends)-1].Event.Outcome.Status
}

func tellAt(at time.Duration, format string, args ...any) string {
	return strings.TrimSpace(at.String() + " " + fmt.Sprintf(format, args...))
}

func (s *stage) tell(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got[who] = append(s.got[who], tellAt(s.now(), format, args...))
}

func (s *stage) now() time.Duration { return time.Since(s.began) }

func (s *stage) play() {
	hook := func(stage string, tell func(retrip.Event)) func(retrip.Event) {
		return func(e retrip.Event) {
			s.say(name(e.Request), "hook "+stage)
			tell(e)
		}
	}
	tr := &retrip.Transport{Policy: s.Policy, Base: s, Metrics: &retrip.Metrics{}, Logger: slog.New(s), Trace: &retrip.Trace{
		Attempt: hook("Attempt", func(retrip.Event) {}),
		Retry:   hook("Retry", func(e retrip.Event) { s.tell(name(e.Request), "wait %v %s", e.Wait, e.Reason) }),
		GiveUp:  hook("GiveUp", func(retrip.Event) {}),
		Done:    hook("Done", func(e retrip.Event) { s.tell(name(e.Request), "end %s", e.Reason) }),
		Host:    s.changed,
	}}
	var requests sync.WaitGroup
	for _, who := range s.cast() {
		if s.roles[who].classify {
			tr.Policy.Classify = classify
		}
		if s.roles[who].key != "" {
			tr.Policy.Gate.Key = func(req *http.Request) string { return s.roles[name(req)].key }
		}
	}
	if s.Account > 0 {
		tr.Fleet = retrip.NewFleet(s.add)
		defer func() { assert.NoError(s.t, tr.Fleet.Close()) }()
	}
	for _, l := range s.Lines {
		if l.Event.Kind == decide.Began {
			requests.Go(func() {
				time.Sleep(l.At)
				s.request(tr, l.Who)
			})
		}
	}
	s.listen(tr)
	requests.Wait()
	synctest.Wait() // for the last operations of the store
	m := gather(s.t, tr.Metrics)["default"]
	failed := m["requests_total gave_up"] + m["requests_total failed"]
	for _, r := range s.roles {
		o := r.last.Event.Outcome
		if _, reason := r.last.Deed(); reason != "" && o.Status < 400 && o.Verdict == decide.Retryable {
			failed-- // what isn't done yet is no failure
		}
	}
	for _, state := range tr.HostStates() {
		assert.EqualValues(s.t, failed, state.Failed)
		assert.EqualValues(s.t, m["requests_total canceled"], state.Canceled)
		assert.Equal(s.t, state.LastGiveUp != "", m["give_ups_total "+string(state.LastGiveUp)] > 0)
	}
}

// name returns the name of a request in the story.
func name(req *http.Request) string { return nameIn(req.URL.Path) }

func nameIn(path string) string { return path[strings.LastIndex(path, "/")+1:] }

func (s *stage) request(tr *retrip.Transport, who string) {
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	r := s.roles[who]
	for _, l := range r.leaves {
		time.AfterFunc(l.At-s.now(), cancel)
	}
	method, body := http.MethodGet, io.Reader(nil)
	switch {
	case r.post, r.keyed:
		method, body = http.MethodPost, strings.NewReader("body")
	case r.stream:
		method, body = http.MethodPut, play.OnlyReader{Reader: strings.NewReader("body")}
	case r.nobody:
		method, body = http.MethodPut, strings.NewReader("body")
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://example.com/"+r.route+"/"+who, body)
	require.NoError(s.t, err)
	if r.keyed {
		req.Header.Set("Idempotency-Key", who)
	}
	if r.nobody {
		req.GetBody = func() (io.ReadCloser, error) { return nil, play.ErrDisk }
	}
	resp, err := tr.RoundTrip(req)
	if status := s.returns(who); status == 0 {
		if assert.Error(s.t, err) {
			s.say(who, "error "+err.Error())
		}
	} else if assert.NoError(s.t, err) {
		s.say(who, fmt.Sprint("returns ", resp.StatusCode))
		assert.Equal(s.t, status, resp.StatusCode)
		assert.NoError(s.t, resp.Body.Close())
	}
}

// RoundTrip plays the base: an attempt ends as the story tells.
func (s *stage) RoundTrip(req *http.Request) (*http.Response, error) {
	s.tell(name(req), "send")
	r := s.roles[name(req)]
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
	}
	if r.attempted++; r.attempted > len(r.ends) {
		return nil, errors.New("the story has no more attempts")
	}
	l := r.ends[r.attempted-1]
	o := &l.Event.Outcome
	if o.Canceled || o.Timeout {
		return play.Hang(req)
	}
	time.Sleep(l.At - s.now())
	switch {
	case o.Hopeless:
		return nil, &net.DNSError{Err: "no such host", Name: "example.com", IsNotFound: true}
	case o.Resent:
		for i := 0; req.Context().Err() == nil && assert.Less(s.t, i, 100); i++ {
			httptrace.ContextClientTrace(req.Context()).GotConn(httptrace.GotConnInfo{})
		}
		return nil, context.Cause(req.Context())
	case o.Status == 0:
		return nil, errLost
	}
	h := http.Header{}
	switch {
	case l.Has("date"):
		h.Set("Retry-After", time.Now().Add(o.RetryAfter).UTC().Format(http.TimeFormat))
	case o.RetryAfter > 0:
		h.Set("Retry-After", strconv.FormatFloat(o.RetryAfter.Seconds(), 'f', -1, 64))
	}
	if o.Forbidden {
		h.Set("X-Should-Retry", "false")
	}
	if o.OfAll {
		h.Set("X-RateLimit-Global", "true") // the story lists Discord's dialect
	}
	if o.Verdict != decide.ByRule {
		h.Set("Verdict", strconv.Itoa(int(o.Verdict)))
	}
	return &http.Response{StatusCode: o.Status, Header: h, Body: http.NoBody, Request: req}, nil
}

func classify(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
	if resp == nil {
		return retrip.Verdict(decide.ByRule)
	}
	verdict, _ := strconv.Atoi(resp.Header.Get("Verdict"))
	return retrip.Verdict(verdict)
}

// add plays the fleet's store: it answers when and what the story tells.
func (s *stage) add(ctx context.Context, _ string, tokens, size float64) (float64, error) {
	if tokens != 0 {
		s.tell("store", "%g", tokens)
		return size, nil
	}
	for _, l := range s.Lines {
		if l.Event.Kind == decide.Heard && l.Event.Known && l.At >= s.now() {
			time.Sleep(l.At - s.now())
			return l.Event.Level, nil
		}
	}
	<-ctx.Done()
	return 0, ctx.Err()
}

// changed records a change of the host that the machine tells.
func (s *stage) changed(h retrip.HostState) {
	s.say("", "hook Host")
	defer func() { s.probed = h.Breaker == retrip.BreakerHalfOpen }()
	switch {
	case h.Breaker == retrip.BreakerOpen:
		s.tell("host", "opened")
	case h.Breaker == retrip.BreakerHalfOpen:
		s.tell("host", "probes")
	case h.PausedFor > 0:
		s.tell("host", "paused")
	case s.probed:
		s.tell("host", "closed")
	}
}
