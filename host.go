// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/exchange"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/span"
)

// HostState describes what a Transport knows of a host: how requests to it fail,
// and why the Transport doesn't retry them, or holds them back.
type HostState struct {
	Host           string        // host:port; "others" for hosts without a state of their own, see [Transport.HostStates]
	Policy         string        // the pattern in Transport.Hosts that the host follows, or "default"
	Tokens         float64       // tokens left in the host's budget
	Size           float64       // size of the host's budget; 0 means unlimited
	FailedRetries  int           // retries that failed in a row, as Budget counts them; if too many, there are no retries until a request succeeds
	StoppedRoutes  string        // routes whose retries wait for successes there, such as "GET /orders, PUT /orders"; empty if none
	FleetTokens    float64       // tokens left in the fleet's account, as last heard
	FleetSize      float64       // size of that account; 0 if there is none or its level is unknown
	PausedFor      time.Duration // how much longer the host holds back retries and, at its gate, new requests of at least one key; without a gate, 0 after a good answer, though requests told to wait still do
	Breaker        BreakerState
	OpenFor        time.Duration // time until the breaker allows the next probe
	Waiting        int           // requests waiting at the host's gates, for all keys together
	LastFailure    Reason        // reason of the last failed attempt; empty if unknown
	LastStatus     int           // status of its response; 0 if it had none
	LastError      string        // kind of its error, such as "connection_refused"; empty if it had none
	LastWait       time.Duration // the wait that its response asked for; 0 if it asked for none
	FailedAgo      time.Duration // time since LastFailure
	LastGiveUp     Reason        // reason of the last give-up; empty if there was none
	Failed         int           // requests that failed in the last five minutes, for any reason
	Canceled       int           // requests that their callers canceled in the last five minutes
	Answered       int           // requests that were answered in the last five minutes, from the first of those on
	MinuteFailed   int           // of these requests, those that failed in the last minute
	MinuteAll      int           // and all that ended in the last minute: failed, canceled or answered
	AnsweredAgo    time.Duration // time since the last of these
	FailingFor     time.Duration // time from the first failed request of the last outage to its last, with never five minutes or a recovery between two
	EarlierOutages int           // outages before that, each with a recovery after it; five minutes without a failed request forget them
	FailingAgo     time.Duration // time since the last failed request
	Recovered      bool          // requests don't fail any more: enough have been answered since
	Held           bool          // the host is in trouble: its budget, pause, breaker or gate may hold back requests
}

// hostStateJSON is the JSON form of a HostState.
type hostStateJSON struct {
	Host           string       `json:"host"`
	Policy         string       `json:"policy"`
	Tokens         *float64     `json:"tokens,omitempty"` // nil: unlimited
	Size           any          `json:"size"`
	FailedRetries  int          `json:"failed_retries,omitempty"`
	StoppedRoutes  string       `json:"stopped_routes,omitempty"`
	PausedFor      string       `json:"paused_for"`
	Breaker        BreakerState `json:"breaker"`
	OpenFor        string       `json:"open_for"`
	Waiting        int          `json:"waiting"`
	Held           bool         `json:"held"`
	Failed         int          `json:"failed,omitempty"`   // within 5 minutes
	Canceled       int          `json:"canceled,omitempty"` // within 5 minutes
	Answered       int          `json:"answered,omitempty"` // within 5 minutes
	MinuteFailed   int          `json:"minute_failed,omitempty"`
	MinuteAll      int          `json:"minute_all,omitempty"`
	AnsweredAgo    string       `json:"answered_ago,omitempty"`
	FailingFor     string       `json:"failing_for,omitempty"`
	FailingAgo     string       `json:"failing_ago,omitempty"`
	EarlierOutages int          `json:"earlier_outages,omitempty"`
	Recovered      bool         `json:"recovered,omitempty"`
	LastFailure    Reason       `json:"last_failure,omitempty"`
	LastStatus     int          `json:"last_status,omitempty"`
	LastError      string       `json:"last_error,omitempty"`
	LastWait       string       `json:"last_wait,omitempty"`
	FailedAgo      string       `json:"failed_ago,omitempty"`
	LastGiveUp     Reason       `json:"last_give_up,omitempty"`
	FleetTokens    *float64     `json:"fleet_tokens,omitempty"` // nil: not known
	FleetSize      float64      `json:"fleet_size,omitempty"`
}

// MarshalJSON writes durations like "1.5s" and an unlimited Size as "off".
func (s HostState) MarshalJSON() ([]byte, error) {
	wire := hostStateJSON{Host: s.Host, Policy: s.Policy, Tokens: &s.Tokens, Size: s.Size, FailedRetries: s.FailedRetries, StoppedRoutes: s.StoppedRoutes, PausedFor: s.PausedFor.String(), Breaker: s.Breaker,
		OpenFor: s.OpenFor.String(), Waiting: s.Waiting, Held: s.Held, Failed: s.Failed, Canceled: s.Canceled, Answered: s.Answered, MinuteFailed: s.MinuteFailed, MinuteAll: s.MinuteAll,
		Recovered: s.Recovered, EarlierOutages: s.EarlierOutages,
		LastFailure: s.LastFailure, LastStatus: s.LastStatus, LastError: s.LastError, LastGiveUp: s.LastGiveUp}
	if s.Size == 0 {
		wire.Tokens, wire.Size = nil, "off"
	}
	if s.FleetSize > 0 {
		wire.FleetTokens, wire.FleetSize = &s.FleetTokens, s.FleetSize
	}
	if s.LastFailure != "" {
		wire.FailedAgo = s.FailedAgo.String()
	}
	if s.LastWait > 0 {
		wire.LastWait = s.LastWait.String()
	}
	if s.Failed > 0 {
		wire.FailingFor, wire.FailingAgo = s.FailingFor.String(), s.FailingAgo.String()
	}
	if s.Answered > 0 {
		wire.AnsweredAgo = s.AnsweredAgo.String()
	}
	return json.Marshal(wire)
}

// HostState returns what t knows about a host, such as "example.com:443", in any
// spelling. The error says what is wrong with host or with t's policies.
func (t *Transport) HostState(host string) (HostState, error) {
	key, err := hostkey.Parse(host)
	if err != nil {
		return HostState{}, err
	}
	s := t.start()
	if s.err != nil {
		return HostState{}, s.err
	}
	now := s.Now()
	return t.state(s, t.tables.Hosts.Find(key, now), key, now), nil
}

// HostStates returns, by name, the hosts in trouble and those at which requests failed
// or were canceled in the last five minutes; nil if t's policies are invalid. Beyond about
// 4096 in trouble, the last entry is "others": their sum of tokens and largest FailedRetries.
func (t *Transport) HostStates() []HostState {
	return t.hostStates(t.start())
}

func (t *Transport) hostStates(s *settings) []HostState {
	if s.err != nil {
		return nil
	}
	now := s.Now()
	entries, others := t.tables.Hosts.All(now)
	known := make(map[hostkey.Key]*host.Entry, len(entries))
	for _, e := range entries {
		known[e.Key] = e
	}
	for _, f := range t.failures.All(now) {
		if known[f.Key] == nil {
			known[f.Key] = nil // listed, without an entry
		}
	}
	states := make([]HostState, 0, len(known)+1)
	for _, key := range slices.SortedFunc(maps.Keys(known), hostkey.Key.Compare) {
		states = append(states, t.state(s, known[key], key, now))
	}
	if len(others) > 0 {
		all := HostState{Host: host.OtherHosts, Policy: s.fallback.Name, Held: true, Breaker: BreakerClosed}
		for _, e := range others {
			state := s.fallback.State(&e.Record, now)
			all.Tokens += state.Tokens
			all.Size += state.Size
			all.FailedRetries = max(all.FailedRetries, state.FailedRetries)
		}
		states = append(states, all)
	}
	return states
}

// state describes the host of key. e is its entry in the table, or nil if the host is in
// no trouble.
func (t *Transport) state(s *settings, e *host.Entry, key hostkey.Key, now time.Duration) HostState {
	known := e != nil
	if !known {
		e = &host.Entry{}
	}
	r := s.of(key)
	d := r.State(&e.Record, now)
	state := HostState{Host: key.String(), Policy: r.Name, Tokens: d.Tokens, Size: d.Size, FailedRetries: d.FailedRetries, StoppedRoutes: d.StoppedRoutes,
		PausedFor: d.PausedFor, Breaker: BreakerState(breaker.Names[d.Breaker]), OpenFor: d.OpenFor, Waiting: d.Waiting}
	if e.Missing(now) == 0 {
		state.Tokens, state.FailedRetries = state.Size, 0
	}
	if t.Fleet != nil && r.Fleet > 0 {
		if level, known := t.Fleet.accounts.Level(key, r.Fleet); known {
			state.FleetTokens, state.FleetSize = level, r.Fleet
		}
	}
	e.Lock()
	how, at, gaveUp := e.Failed, e.Used, e.GaveUp.Load()
	state.Held = known && (d.PausedFor > 0 || !e.Whole(now))
	e.Unlock()
	if e.Others {
		how, gaveUp = host.Failure{}, 0
	}
	if f, ok := t.failures.Find(key, now); ok {
		state.Failed, state.Canceled, state.Answered = f.Failed, f.Canceled, f.Answered
		state.MinuteFailed, state.MinuteAll = f.MinuteFailed, f.MinuteAll
		if f.Answered > 0 {
			state.AnsweredAgo = max(0, now-f.Answer)
		}
		if f.Failed > 0 {
			state.FailingFor, state.FailingAgo, state.Recovered, state.EarlierOutages = max(0, f.Last-f.Since), max(0, now-f.Last), f.Recovered, f.Earlier
		}
		if none := (host.Failure{}); how == none || f.How != none && at < f.At {
			how, at = f.How, f.At
		}
		gaveUp = cmp.Or(gaveUp, f.GaveUp)
	}
	if how != (host.Failure{}) {
		state.LastFailure, state.FailedAgo = wordOf(decide.Reason(how.Reason)), max(0, now-at)
		state.LastStatus, state.LastError, state.LastWait = int(how.Status), fault.Kind(how.Kind).String(), how.Wait
	}
	state.LastGiveUp = wordOf(decide.Reason(gaveUp))
	return state
}

// PolicyFor returns the policy in force for a host, with every inherited field and
// every default filled in. Host and error are as for HostState.
func (t *Transport) PolicyFor(host string) (Policy, error) {
	key, err := hostkey.Parse(host)
	if err != nil {
		return Policy{}, err
	}
	s := t.start()
	if s.err != nil {
		return Policy{}, s.err
	}
	return s.of(key).policy.clone(), nil
}

// Policies returns the policies in force as they were set, for the caller to change.
// The error says what is wrong with them.
func (t *Transport) Policies() (Policy, map[string]Policy, error) {
	s := t.start()
	if s.err != nil {
		return Policy{}, nil, s.err
	}
	hosts := make(map[string]Policy, len(s.hosts))
	for pattern, p := range s.hosts {
		hosts[pattern] = p.clone()
	}
	return s.policy.clone(), hosts, nil
}

// Changed implements [tell.Owner].
func (o owner) Changed(req *http.Request, e *host.Entry, change host.Change, now time.Duration) {
	if o.t.Logger != nil || o.t.Trace != nil && o.t.Trace.Host != nil {
		o.reportChange(req, e, change, now)
	}
}

// reportChange must not be inlined: requests that wait would have its large stack frame.
//
//go:noinline
func (o owner) reportChange(req *http.Request, e *host.Entry, change host.Change, now time.Duration) {
	state := o.t.state(o.t.settings.Load(), e, hostkey.Of(req.URL), now)
	if e.Others {
		state.Host = host.OtherHosts
	}
	for i, name := range host.ChangeNames {
		bit := host.Change(1) << i
		if o.t.Logger == nil || change&bit == 0 {
			continue
		}
		level := e.News.Level(bit)
		if bit == host.Paused {
			o.logRest(req.Context(), now)
			level = slog.LevelDebug
			if o.t.journal.Pause(state.Host, state.Policy, span.Add(now, state.PausedFor), now) {
				level = slog.LevelWarn
			}
		}
		o.logHost(req.Context(), level, name, &state)
	}
	if o.t.Trace != nil && o.t.Trace.Host != nil {
		o.t.Trace.Host(state)
	}
}

// logHost logs a change of a host.
func (o owner) logHost(ctx context.Context, level slog.Level, change string, s *HostState) {
	attrs := []slog.Attr{
		slog.String("host", s.Host),
		slog.String("change", change),
		slog.String("policy", s.Policy),
		slog.String("breaker", string(s.Breaker)),
		slog.Duration("open_for", s.OpenFor),
		slog.Duration("paused_for", s.PausedFor),
		slog.Float64("tokens", s.Tokens),
		slog.Int("failed_retries", s.FailedRetries),
		slog.String("last_give_up", string(s.LastGiveUp)),
	}
	for _, text := range [][2]string{{"last_failure", string(s.LastFailure)}, {"last_error", s.LastError}, {"stopped_routes", s.StoppedRoutes}} {
		if text[1] != "" {
			attrs = append(attrs, slog.String(text[0], text[1]))
		}
	}
	if s.LastStatus != 0 {
		attrs = append(attrs, slog.Int("last_status", s.LastStatus))
	}
	o.t.Logger.LogAttrs(ctx, level, "retrip: host", attrs...)
}

// Fit is [exchange.Env.Fit].
func (o owner) Fit(e *host.Entry, env *exchange.Env) {
	if s := o.t.settings.Load(); &s.Env != env && s.err == nil {
		e.Fit(s.sizeOf(e))
	}
}
