// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-cleanhttp"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/download"
	"github.com/retrip/retrip/internal/exchange"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/spare"
	"github.com/retrip/retrip/internal/tell"
)

// Transport is an [http.RoundTripper] that retries failed requests where a
// retry is safe and useful, and the server can bear it. The zero value is ready to
// use. Fields may be set until the first request, and not changed from then on;
// [Transport.SetPolicies] changes policies at run time. All methods are safe for
// concurrent use. A Transport must not be copied.
//
// In the first attempt, Base gets the caller's own request, unless the attempt
// is derived: Base then gets a shallow copy of the request with a context of
// its own. An attempt is derived if it has a timeout, a hook, a generated header
// or a body that http.NewRequest didn't make from a buffer, byte slice or string,
// if it may get a hedge, if the httptrace of its context has a Got1xxResponse, or
// if Base has a DialTLSContext or its TLSClientConfig a check of servers.
type Transport struct {
	// Base makes each attempt. If nil, Transport uses go-cleanhttp's pooled
	// transport, with HTTP/2 pings that detect dead connections. Each Transport
	// then has a pool of its own, so a program should make one and keep it.
	// Anything that each attempt needs afresh, such as a signature, belongs in
	// Base, and protocols must be registered with it before the first request.
	// If Base is nil or an [*http.Transport], a retry after a timeout over HTTP/2
	// uses another connection, from a clone of Base, that is ready within a third
	// of the attempt, and so do later requests if Base delivers nothing meanwhile.
	Base http.RoundTripper

	// Policy applies to every host.
	Policy Policy

	// Hosts holds policies for particular hosts, by pattern: "api.example.com"
	// (any port), "api.example.com:8443", "*.example.com" (all hosts below
	// example.com) or "[::1]". The most specific pattern wins. The spelling of a
	// host doesn't matter. Unset fields inherit from Policy.
	Hosts map[string]Policy

	// Fleet limits retries by what all processes of a fleet together have spent
	// on them. If nil, only the budget of this process limits them.
	Fleet *Fleet

	// Metrics receives the counts. If nil, Transport counts nothing.
	Metrics *Metrics

	// Logger receives a record of each retry at level Debug. At Info, it receives
	// requests that a retry saved, that failed or that were given up, broken bodies,
	// and headers of Policy.Dialects that aren't understood: for each host and reason
	// the first, then one a minute, which counts the others. At Warn, it receives the
	// trouble of a host, and at Info its end. URLs lack userinfo and query.
	Logger *slog.Logger

	// Trace holds hooks that run at the stages of every request.
	Trace *Trace

	settling sync.Mutex // guards changes of settings
	settings atomic.Pointer[settings]
	tables   exchange.Tables
	failures host.Failures
	journal  host.Journal
}

// settings is what the fields of a Transport amount to. It is immutable.
type settings struct {
	*matcher
	exchange.Env
	err      error  // why no request can be sent; nil if the fields are valid
	wrong    error  // why Base can't be used; a part of err
	begun    bool   // a request has begun: the fields count no more
	fields   wiring // what they were then
	replaced bool   // SetPolicies has replaced the fields Policy and Hosts
	counting *Metrics
	counted  *holder // for counting; nil if nothing is counted
}

// RoundTrip sends req, retrying until it gets a final answer or a rule forbids
// another attempt. If RoundTrip gives up with a response in hand, it returns
// that response and a nil error; for its errors, see [Error]. If a policy is
// invalid, the error names each field and value, and nothing is sent. RoundTrip
// always closes the request body, perhaps after it has returned. It leaves a file
// or [io.SectionReader] where the last attempt has read to.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	s := t.settings.Load()
	if s == nil || !s.begun {
		s = t.begin()
	}
	if s.err != nil {
		body.CloseRequest(req)
		return nil, s.err
	}
	o := overrideOf(req.Context())
	r := s.find(req.URL)
	if o != nil && o.policy != nil {
		var err error
		if r, err = r.override(req.Context(), o); err != nil {
			body.CloseRequest(req)
			return nil, err
		}
	}
	// The way from here: exchange.Do makes a plain first attempt and returns a good answer at
	// once (first.go). Else exchange.run (exchange.go) repeats
	//	step     tell the machine what has happened: decide.Call.Step (step.go) says what to do
	//	send     make an attempt (send.go), and reduce its outcome to facts: classify (outcome.go)
	//	wait     drop the outcome, and wait (wait.go); askFleet (fleet.go) comes before, with a Fleet
	//	finish   return the last outcome (result.go)
	// In the machine, judge decides after an attempt: final, plan and payBudget say why there is
	// no other. admit decides before one. tell.Teller reports (internal/tell).
	var override tell.Override // one that holds a nil pointer isn't nil
	if o != nil {
		override = o
	}
	if r.Resume > 0 {
		return download.Do(&s.Env, &r.Config, req, override)
	}
	return exchange.Do(&s.Env, &r.Config, req, override)
}

// start returns t's settings. Until a request begins, it makes them anew from the fields
// as they are now, so that it doesn't matter what else is called before the fields are set.
func (t *Transport) start() *settings {
	if s := t.settings.Load(); s != nil && s.begun {
		return s
	}
	t.settling.Lock()
	defer t.settling.Unlock()
	return t.settle()
}

// settle makes t's settings from the fields, unless a request has begun. settling must be
// held.
func (t *Transport) settle() *settings {
	last := t.settings.Load()
	if last == nil {
		desk := tell.Desk{Owner: owner{t}, Failures: &t.failures, Epoch: time.Now().Add(-1)}
		last = &settings{Env: exchange.Env{Tables: &t.tables, Desk: desk, Fit: owner{t}.Fit, Inner: innerError}}
	}
	if last.begun {
		return last
	}
	s := *last
	if s.replaced { // valid; made anew, as others may be reading the last ones
		s.matcher, s.err = compile(s.policy, s.hosts)
	} else {
		s.matcher, s.err = compile(t.Policy, t.Hosts)
	}
	s.count(t)
	t.settings.Store(&s)
	return &s
}

// count makes t.Metrics, as it was at the first request, count by the policies of s.
func (s *settings) count(t *Transport) {
	if !s.begun && s.counting != t.Metrics {
		s.counting, s.counted = t.Metrics, nil
	}
	if s.counting != nil {
		s.counted = s.counting.count(t, s.counted, s.rules)
	}
}

// begin completes t's settings at the first request, with what only requests need.
func (t *Transport) begin() *settings {
	t.settling.Lock()
	defer t.settling.Unlock()
	s := *t.settle()
	if s.begun {
		return t.settings.Load()
	}
	s.begun, s.fields = true, wiring{t.Base, t.Fleet, t.Metrics, t.Logger, t.Trace}
	s.Base, s.Logger, s.Traced = t.Base, t.Logger, t.Trace != nil
	if t.Fleet != nil {
		s.Fleet = &t.Fleet.accounts
	}
	if s.Base == nil {
		base := cleanhttp.DefaultPooledTransport()
		base.HTTP2 = &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}
		base.OnProxyConnectResponse = fault.OnProxyConnect
		s.Base = base
	}
	if s.wrong = t.wrongBase(); s.wrong != nil {
		s.Base, s.err = new(http.Transport), errors.Join(s.err, s.wrong)
	}
	if base, ok := s.Base.(*http.Transport); ok {
		s.Watch = watch(base)
	}
	t.settings.Store(&s)
	return &s
}

// watch returns what every attempt over base must observe.
func watch(base *http.Transport) (w attempt.Watch) {
	// base may be in its first use elsewhere, which changes some of its fields. Clone
	// waits until that is done.
	known := base.Clone()
	if c := known.TLSClientConfig; c != nil && (c.VerifyConnection != nil || c.VerifyPeerCertificate != nil) {
		// The caller's own code may refuse a server.
		w |= attempt.WatchHandshake
	}
	if known.DialTLSContext != nil {
		// It may have a certificate check that can't be seen here.
		w |= attempt.WatchHandshake | attempt.WatchDialTLS
	}
	if !spare.Registered(base) {
		w |= attempt.OwnConns
	}
	if p := known.Protocols; p != nil && p.UnencryptedHTTP2() && !p.HTTP1() {
		w |= attempt.ExpectHTTP2
	}
	return w
}

// SetPolicies replaces the policies for requests that begin after the call. Hosts keep
// their state, and the fields Policy and Hosts their values. If a policy is invalid,
// nothing changes, and the error is that of Validate.
func (t *Transport) SetPolicies(policy Policy, hosts map[string]Policy) error {
	m, err := compile(policy, hosts)
	if err != nil {
		return err
	}
	t.settling.Lock()
	defer t.settling.Unlock()
	next := *t.settle()
	next.matcher, next.err, next.replaced = m, next.wrong, true
	next.count(t)
	t.tables.Hosts.Refit(m.sizeOf)
	t.settings.Store(&next)
	return nil
}

// CloseIdleConnections closes the idle connections of Base, if Base has such a method,
// and those that retries and hedges have left beside Base, also if an earlier call
// found them in use. Nothing else closes connections of Base.
func (t *Transport) CloseIdleConnections() {
	t.tables.Spares.Close()
	base := t.Base
	if s := t.settings.Load(); s != nil && s.begun {
		base = s.Base
	} else if t.wrongBase() != nil {
		return
	}
	if c, ok := base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
