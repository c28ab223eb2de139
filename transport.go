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

	// Logger gets retries at level Debug, give-ups at Info and a host's
	// changes of state at Warn, with URLs free of userinfo and query. If nil,
	// nothing is logged.
	Logger *slog.Logger

	// Trace is called at the stages of every request. If nil, nothing is; see
	// also [WithTrace].
	Trace *Trace

	setup  sync.Mutex // guards the making of what follows
	setUp  atomic.Pointer[setUp]
	hosts  hostTable
	spares spares
}

// setUp is what the fields of a Transport come to. It is immutable.
type setUp struct {
	*matcher
	base  http.RoundTripper
	epoch time.Time // instants are durations since then
	err   error     // what Validate would have said of policies

	looked bool    // watch is known
	watch  watched // what is to be seen of every attempt
}

func (s *setUp) now() time.Duration { return time.Since(s.epoch) }

func (s *setUp) instant(t time.Time) time.Duration { return t.Sub(s.epoch) }

// start makes t's set-up on first use.
func (t *Transport) start() *setUp {
	t.setup.Lock()
	defer t.setup.Unlock()
	if s := t.setUp.Load(); s != nil {
		return s
	}
	s := &setUp{base: t.Base, epoch: time.Now()}
	if s.base == nil {
		s.base = defaultBase()
	}
	_, plain := s.base.(*http.Transport)
	s.looked = !plain
	s.matcher, s.err = compile(t.Policy, t.Hosts, t.Metrics)
	t.Metrics.watch(t)
	t.setUp.Store(s)
	return s
}

// look completes t's set-up at the first RoundTrip, when the base is complete.
func (t *Transport) look() *setUp {
	t.start()
	t.setup.Lock()
	defer t.setup.Unlock()
	s := *t.setUp.Load()
	s.watch, s.looked = watchOf(s.base.(*http.Transport)), true
	t.setUp.Store(&s)
	return &s
}

// watchOf returns what is to be seen of every attempt with base.
func watchOf(base *http.Transport) (watch watched) {
	// Others may use the base for the first time now, which changes some of its
	// fields. Clone waits for that.
	base = base.Clone()
	if c := base.TLSClientConfig; c != nil && (c.VerifyConnection != nil || c.VerifyPeerCertificate != nil) {
		// The caller's own code may refuse a server.
		watch |= watchHandshake
	}
	if p := base.Protocols; p != nil && p.UnencryptedHTTP2() && !p.HTTP1() {
		watch |= expectHTTP2
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
	m, err := compile(policy, hosts, t.Metrics)
	if err != nil {
		return err
	}
	next := *t.start()
	t.setup.Lock()
	defer t.setup.Unlock()
	next.matcher, next.err = m, nil
	t.setUp.Store(&next)
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

// RoundTrip makes attempts until the answer is one, or until something speaks
// against another. It is a driver: [Host] decides.
//
// Out of attempts with a response in hand, that response is returned with a
// nil error. The error of a single attempt is returned as Base gave it, that
// of several as an *[Error].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	s := t.setUp.Load()
	if s == nil {
		s = t.start()
	}
	if !s.looked {
		s = t.look()
	}
	if s.err != nil {
		closeRequest(req)
		return nil, s.err
	}
	o := overrideOf(req.Context())
	r := s.find(req.URL)
	if o != nil && o.policy != nil {
		var err error
		if r, err = o.rules(r); err != nil {
			closeRequest(req)
			return nil, err
		}
	}

	kind := kindOf(req)
	if t.Trace != nil || o != nil && o.traces != nil || r.derives || s.watch&watchHandshake != 0 || kind >= gottenBody && (r.policy.MaxAttempts > 1 || r.breaker) ||
		r.policy.IdempotencyKey == On && (r.policy.Idempotent != nil || !r.idempotent(req)) || !t.hosts.calm(req.URL) {
		return t.exchange(s, r, req, kind, o)
	}
	return t.plain(s, r, req, kind)
}

// rules returns the rules of a request that would follow r but for o. It isn't
// inlined: the stack of every request would have to hold a Policy.
//
//go:noinline
func (o *override) rules(r *Rules) (*Rules, error) { return r.override(*o.policy) }

// exchange makes the whole of an exchange.
func (t *Transport) exchange(s *setUp, r *Rules, req *http.Request, kind bodyKind, o *override) (*http.Response, error) {
	var x exchange
	x.init(t, s, r, req, kind, o)
	return x.run()
}

// resume makes the rest of an exchange whose first attempt was made with the
// caller's own request, and began at the given instant where that matters.
func (t *Transport) resume(s *setUp, r *Rules, req *http.Request, kind bodyKind, resp *http.Response, err error, began time.Duration) (*http.Response, error) {
	var x exchange
	x.init(t, s, r, req, kind, nil)
	return x.resume(resp, err, began)
}

// plain makes a first attempt that is nothing but the caller's own request at
// a time when no host is in trouble. If that succeeds it has cost next to
// nothing; else it is handed on.
func (t *Transport) plain(s *setUp, r *Rules, req *http.Request, kind bodyKind) (*http.Response, error) {
	var began time.Duration
	ctx := req.Context()
	if done := ctx.Done(); done != nil {
		select {
		case <-done:
			return t.exchange(s, r, req, kind, nil)
		default:
		}
	}
	// Only a deadline makes the duration of an attempt matter. A context of
	// the caller's own making may have one and never end.
	if _, ok := ctx.Deadline(); ok {
		began = s.now()
	}
	returned := false
	defer func() {
		if !returned {
			closeRequest(req)
		}
	}()
	resp, err := s.base.RoundTrip(req)
	returned = true
	if err == nil && resp != nil && r.plainly(resp.StatusCode) && t.hosts.calm(req.URL) {
		r.metrics.success(resp.StatusCode)
		return resp, nil
	}
	return t.resume(s, r, req, kind, resp, err, began)
}
