// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-cleanhttp"

	"github.com/retrip/retrip/internal/attempt"
)

// Transport is an [http.RoundTripper] that repeats what failed, where that is
// safe, useful and bearable for the server:
//
//	client := &http.Client{Transport: &retrip.Transport{}}
//
// The zero value is ready for use. Fields must not be changed after the first
// RoundTrip; [Transport.SetPolicies] changes policies at run time. It is safe
// for concurrent use and must not be copied.
//
// A first attempt is the caller's own request, handed to Base as it is, unless
// something of ours has to go with it: a timeout, a bound of MaxSends, a hook,
// an idempotency key, a body that http.NewRequest hasn't made of a buffer, byte
// slice or string, or the watch over a Base whose TLSClientConfig has a
// VerifyConnection or VerifyPeerCertificate. Then it is derived: a shallow copy
// with a context of its own.
type Transport struct {
	// Base makes each attempt. If nil, it is go-cleanhttp's pooled transport,
	// with HTTP/2 pings that find dead connections, made for this Transport
	// alone: make one Transport and keep it. What must be renewed for every
	// attempt, as a signature, belongs in Base.
	//
	// If Base is nil or an [*http.Transport], a retry after a timeout takes
	// another connection; see Policy.AttemptTimeout. Such a retry uses a clone
	// of Base with a pool of its own. If Base is anything else, Base makes every
	// attempt.
	Base http.RoundTripper

	// Policy is for every host. Its zero value is a sound default.
	Policy Policy

	// Hosts are policies for single hosts, by pattern: "api.example.com" for
	// any port, "api.example.com:8443", "*.example.com" for all hosts below
	// example.com, "[::1]". The most specific pattern wins; case and a dot at
	// the end don't matter; fields that are unset inherit from Policy. If nil,
	// all hosts follow Policy.
	Hosts map[string]Policy

	// Metrics counts. If nil, nothing is counted.
	Metrics *Metrics

	// Logger gets retries at level Debug and give-ups at Info, those of requests
	// that an open breaker refuses at Debug. It gets a host's trouble at Warn
	// when that begins (a pause, an open breaker, an empty budget) and at Info
	// when it is over; what goes on in between is at Debug. URLs are free of
	// userinfo and query. If nil, nothing is logged.
	Logger *slog.Logger

	// Trace is called at the stages of every request. If nil, nothing is; see
	// also [WithTrace].
	Trace *Trace

	settling sync.Mutex // guards changes of settings
	settings atomic.Pointer[settings]
	hosts    hostTable
	spares   spares
}

// settings are what the fields of a Transport come to. They are immutable.
type settings struct {
	*matcher
	base  http.RoundTripper
	epoch time.Time // instants are durations since then
	err   error     // what Validate would have said of policies

	counted *holder // for Metrics; nil if nothing is counted

	looked bool          // watch is known
	watch  attempt.Watch // what is to be seen of every attempt
}

func (s *settings) now() time.Duration { return time.Since(s.epoch) }

func (s *settings) instant(t time.Time) time.Duration { return t.Sub(s.epoch) }

// start makes t's settings on first use.
func (t *Transport) start() *settings {
	t.settling.Lock()
	defer t.settling.Unlock()
	if s := t.settings.Load(); s != nil {
		return s
	}
	s := &settings{base: t.Base, epoch: time.Now()}
	if s.base == nil {
		s.base = defaultBase()
	}
	_, plain := s.base.(*http.Transport)
	s.looked = !plain
	s.matcher, s.err = compile(t.Policy, t.Hosts)
	s.counted = t.Metrics.watch(t)
	if s.err == nil {
		t.Metrics.swap(s.counted, t.Metrics.hold(s.rules))
	}
	t.settings.Store(s)
	return s
}

// look completes t's settings at the first RoundTrip, when the base is complete.
func (t *Transport) look() *settings {
	t.start()
	t.settling.Lock()
	defer t.settling.Unlock()
	s := *t.settings.Load()
	s.watch, s.looked = watchOf(s.base.(*http.Transport)), true
	t.settings.Store(&s)
	return &s
}

// watchOf returns what is to be seen of every attempt with base.
func watchOf(base *http.Transport) (watch attempt.Watch) {
	// Others may use the base for the first time now, which changes some of its
	// fields. Clone waits for that.
	base = base.Clone()
	if c := base.TLSClientConfig; c != nil && (c.VerifyConnection != nil || c.VerifyPeerCertificate != nil) {
		// The caller's own code may refuse a server.
		watch |= attempt.WatchHandshake
	}
	if p := base.Protocols; p != nil && p.UnencryptedHTTP2() && !p.HTTP1() {
		watch |= attempt.ExpectHTTP2
	}
	return watch
}

func defaultBase() *http.Transport {
	base := cleanhttp.DefaultPooledTransport()
	base.HTTP2 = &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}
	return base
}

// SetPolicies replaces Policy and Hosts for the requests that begin from now
// on; those under way keep what they began with, and hosts keep their state.
// If something is wrong with the new ones, the error says what and nothing
// changes. The fields themselves keep their values. It is safe for concurrent
// use with RoundTrip.
func (t *Transport) SetPolicies(policy Policy, hosts map[string]Policy) error {
	m, err := compile(policy, hosts)
	if err != nil {
		return err
	}
	counted := t.Metrics.hold(m.rules)
	t.start()
	t.settling.Lock()
	defer t.settling.Unlock()
	next := *t.settings.Load()
	if next.err == nil {
		m.carry(next.matcher)
	}
	next.matcher, next.err = m, nil
	t.hosts.refit(m.sizeOf)
	t.settings.Store(&next)
	t.Metrics.swap(next.counted, counted)
	return nil
}

// CloseIdleConnections closes those of Base, if it can: http.Client's method
// of the same name then does what it says. It also closes the idle connections
// that retries after a timeout have left. Transport itself never closes those
// of Base. It is safe for concurrent use.
func (t *Transport) CloseIdleConnections() {
	t.spares.close()
	if c, ok := t.start().base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
