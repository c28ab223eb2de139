// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/caller"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/tell"
)

// Do takes req through its attempts. A plain first attempt goes straight to Base; the
// exchange begins where something isn't plain.
func Do(env *Env, cfg *Config, req *http.Request, override tell.Override) (*http.Response, error) {
	// Base may read the body even after it has returned, so look at it before.
	f := first{kind: replay.KindOf(req)}
	if override == nil && f.plain(env, cfg, req) && f.suffices(env, cfg, req) {
		return f.resp, nil
	}
	return begin(env, cfg, req, override, &f)
}

// plain reports whether the first attempt needs nothing but Base.
func (f *first) plain(env *Env, cfg *Config, req *http.Request) bool {
	if !cfg.Plain || env.Traced || env.Watch&attempt.WatchHandshake != 0 || f.kind > replay.Memory {
		return false
	}
	if env.Fleet != nil && cfg.Fleet != 0 || env.Spares.Some() {
		return false
	}
	ctx := req.Context()
	return req.URL != nil && caller.LegacyCancel(req) == nil && ctx.Err() == nil && !attempt.ChecksInterim(ctx) &&
		env.Hosts.Calm(req.URL, &f.place)
}

// first is a plain first attempt: Base gets the caller's own request.
type first struct {
	kind  replay.Kind
	made  bool
	resp  *http.Response
	err   error
	began time.Time     // if that matters
	place host.Position // of the host
}

// suffices makes the attempt, and reports whether its answer needs nothing but to be
// counted.
func (f *first) suffices(env *Env, cfg *Config, req *http.Request) bool {
	f.sendPlain(env, cfg, req)
	resp := f.resp
	if f.err != nil || resp == nil || resp.StatusCode <= 0 || resp.StatusCode >= http.StatusBadRequest {
		return false
	}
	news := env.Logger != nil && env.Owner.Unsaid() || resp.ProtoMajor >= 2 && env.Spares.Some()
	if news || !env.Hosts.Calm(req.URL, &f.place) {
		return false
	}
	cfg.Metrics.CountAnswered(resp.StatusCode)
	if env.Failures.Knows(req.URL, &f.place) {
		tell.Request{Desk: &env.Desk, Req: req}.RecordAnswer()
	}
	return true
}

// sendPlain makes the attempt. It must not be inlined: its stack frame would lie under every
// retry.
//
//go:noinline
func (f *first) sendPlain(env *Env, cfg *Config, req *http.Request) {
	if _, ok := req.Context().Deadline(); ok {
		f.began = time.Now()
	}
	f.made = true
	returned := false
	defer func() {
		if !returned {
			f.panicked(env, cfg, req)
		}
	}()
	f.resp, f.err = env.Base.RoundTrip(req)
	returned = true
}

// panicked counts an attempt in which Base has panicked, and closes the body. It must not be
// inlined, to keep the stack frame of every request small.
//
//go:noinline
func (f *first) panicked(env *Env, cfg *Config, req *http.Request) {
	var x exchange
	x.init(env, cfg, req, f.kind, nil)
	x.adopt(f)
	x.cleanUp()
}

// begin takes req through its attempts as an exchange. If f was made, it is the first
// attempt, and the exchange begins where that has ended.
//
//go:noinline
func begin(env *Env, cfg *Config, req *http.Request, override tell.Override, f *first) (*http.Response, error) {
	var x exchange
	x.init(env, cfg, req, f.kind, override)
	what := decide.Began
	if f.made {
		x.adopt(f)
		what = decide.Ended
	}
	return x.run(what)
}

// adopt makes f the first attempt of x.
func (x *exchange) adopt(f *first) {
	x.started, x.call.Attempts = f.began, 1
	x.last.resp, x.last.err = f.resp, f.err
	x.tell.Sent()
	if !f.began.IsZero() {
		x.last.began = x.beginning()
	}
}
