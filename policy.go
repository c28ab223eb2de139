// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

// Off, as a value of a field of a [Policy], switches off what the field
// describes. The fields for which it means something say so; any other
// negative value is an error.
const Off = -1

// Switch is a field of a [Policy] that is on, off or inherited. In JSON it is
// true or false.
type Switch int8

// On, as a value of a [Switch], switches on what the field describes. [Off]
// switches it off, also where it would be inherited.
const On Switch = 1

// String returns "on", "off", or "" for a Switch that inherits.
func (s Switch) String() string {
	switch s {
	case 0:
		return ""
	case On:
		return "on"
	case Off:
		return "off"
	default:
		return fmt.Sprintf("Switch(%d)", int8(s))
	}
}

// Unlimited is a [Budget] that never refuses a retry. It takes away what keeps
// a fleet from prolonging an outage; see the package documentation.
var Unlimited = Budget{Size: Off, Shared: Off}

// Policy is how requests to a set of hosts are retried. It is a plain value:
// it can be printed, compared field by field, kept in JSON and used again.
//
// The zero Policy is a sound default. A field that is 0 or nil inherits: in
// [Transport.Hosts] from Transport.Policy, in [WithPolicy] from the policy of
// the host, in Transport.Policy from the default that its comment names. A
// non-nil slice replaces the inherited one, also when it is empty. Off
// switches off what can be off.
type Policy struct {
	// MaxAttempts is how many attempts a request gets, the first included.
	// If 0, it is inherited; the default is 4. 1 never retries; Off is an
	// error, since it might mean that or no bound. RFC 9110
	// §9.2.2 advises against repeating a repetition; the budget is what makes
	// more than one retry acceptable.
	MaxAttempts int `json:"max_attempts"`

	// Backoff is the schedule of waits. If zero, it is inherited; the default
	// is full jitter, 100 ms doubling to 10 s, and from 1 s on after a 429
	// that names no wait.
	Backoff Backoff `json:"backoff"`

	// Deadline bounds one RoundTrip: attempts and waits, up to the response
	// headers. It never cuts a body. If 0, it is inherited; by default there
	// is only the context's. Off: only the context's.
	Deadline time.Duration `json:"deadline"`

	// AttemptTimeout bounds one attempt, up to the response headers. It never
	// cuts a body. If 0, it is inherited; by default there is none. Off: none.
	// A retry after a timeout takes another connection, as far as Transport.Base
	// allows it: over HTTP/2 every attempt would otherwise share the fate of the
	// one connection to the host. It should leave room: where ordinary answers
	// take more than 0.7 of it, the [Budget] takes them for signs of overload
	// while attempts time out.
	AttemptTimeout time.Duration `json:"attempt_timeout"`

	// MaxWait is the longest wait a server may ask for. A longer one ends the
	// retrying at once, with the response in hand, and at a Gate every request
	// that would have to wait so long. If 0, it is inherited; the
	// default is 30 s. It can't be Off: 1 ns waits for no server, 24 h for
	// nearly any.
	MaxWait time.Duration `json:"max_wait"`

	// WholeBody is how many bytes of a response body are read within the attempt.
	// A body that breaks within them makes the attempt fail as any error does, so
	// a JSON document that arrives in half is fetched again, if the request may be
	// repeated. If it may not, or nothing is left to repeat it with, the response
	// is returned: what was read, and then the body's own error. A longer body
	// streams after so many bytes, counted as they are read, after a gunzip of
	// net/http's own. AttemptTimeout, Deadline and BodyIdle run until the bytes
	// are there. Not read ahead are responses that are retried anyway, event
	// streams, ndjson, gRPC and multipart/x-mixed-replace, a 101, and a response
	// that comes while a streamed request body is still being sent. A body that
	// HTTP/1.0 ends with the connection can break unseen. If 0, it is inherited;
	// by default nothing is read ahead. Off: nothing.
	WholeBody int64 `json:"whole_body"`

	// BodyIdle is how long a Read of a response body may wait for bytes. Then the
	// body ends in an error that is a timeout, after at most half a second more,
	// or is continued; see Resume. The time in which nobody reads doesn't count. It
	// needs a Base whose bodies end with the request's context, as net/http's do.
	// If 0, it is inherited; by default a Read may wait for ever. Off: for ever.
	BodyIdle time.Duration `json:"body_idle"`

	// Resume continues the body of a GET that breaks, or that BodyIdle ends, where
	// it broke: by a request for the rest, with Range and If-Range (RFC 9110 §14,
	// §13.1.5), so that its reader notices nothing. The first response must be a
	// 200, or a 206 to a single range that the caller asked for, and have a strong
	// ETag and a Content-Length, but no Content-Encoding; net/http must not have
	// decoded it. Bytes of another representation are never joined to it. Each
	// continuation is a retry, by all the rules for retries but Deadline; after
	// each MiB of progress attempts are counted anew. If it can't be continued,
	// the body ends in its own error, joined with why. If 0, it is inherited; by
	// default it is off.
	Resume Switch `json:"resume"`

	// MaxReplayBody is how many bytes of a request body are kept for replay
	// when it can't be had again otherwise: when there is no GetBody and it is
	// neither an *os.File nor an *io.SectionReader. If 0, it is inherited; the
	// default is 64 KiB. Off keeps nothing.
	MaxReplayBody int64 `json:"max_replay_body"`

	// MaxSends is how often net/http may send a request inside one attempt. It
	// repeats requests by itself: over HTTP/2 after GOAWAY and REFUSED_STREAM,
	// on some servers without end, and a POST that has GetBody also after a
	// PROTOCOL_ERROR, which proves nothing. Reaching the bound is a failed
	// attempt like any other, so in all a request may be sent MaxSends times
	// MaxAttempts. Sends over pooled HTTP/1 connections that turn out to be dead
	// don't count: the pool bounds them. If 0, it is inherited; the default is
	// 10 for an attempt that is derived from the caller's request anyway (see
	// [Transport]) and no bound for others: with an AttemptTimeout or a Deadline
	// it is 10 for every attempt, without, it depends on the request. A policy
	// that sets it bounds every
	// attempt. Off: no bound.
	MaxSends int `json:"max_sends"`

	// RetryOn lists statuses (400 to 599) to retry besides 5xx and 429. If
	// nil, it is inherited; the default is none.
	RetryOn []int `json:"retry_on"`

	// FailOn lists statuses (400 to 599) not to retry although they are 5xx
	// or 429. If nil, it is inherited; the default is none.
	FailOn []int `json:"fail_on"`

	// Unprocessed lists statuses (400 to 599) by which these hosts say that
	// they did nothing: such a request is repeated whatever its method. 429
	// is one for most APIs. If nil, it is inherited; the default is none.
	Unprocessed []int `json:"unprocessed"`

	// IdempotentMethods lists methods that are idempotent at these hosts,
	// besides those of RFC 9110 §9.2.2, GET, HEAD, OPTIONS, TRACE, PUT and
	// DELETE, and QUERY of RFC 10008. If nil, it is inherited; the default is
	// none.
	IdempotentMethods []string `json:"idempotent_methods"`

	// IdempotencyKey gives a request that is not idempotent and has no key a
	// fresh Idempotency-Key, the same on all its attempts, which makes it
	// repeatable. Only for hosts that document the header. If 0, it is
	// inherited; the default is Off.
	IdempotencyKey Switch `json:"idempotency_key"`

	// Dialects lists what these hosts say about retries besides Retry-After,
	// by name: single headers ("retry-after-ms", "x-ms-retry-after-ms",
	// "x-amz-retry-after", "ratelimit", "x-ratelimit-reset", "should-retry")
	// or all that a service says ("anthropic", "azure", "discord", "github",
	// "openai", "shopify", "stripe"). The first in the list that says
	// something counts. All rules for Retry-After hold for them. What one
	// says about whether to try again at all comes before RetryOn and FailOn,
	// and after Classify. "X-Should-Retry: false" needs no dialect: every host
	// may forbid a retry. If nil, it is inherited; the default is none.
	Dialects []string `json:"dialects"`

	// RetryHeader names a header that retries carry, and first attempts don't,
	// with the number of the attempt (2 and up), so that a server in trouble
	// can shed retries first: "Retry-Attempt", for instance. A request that is
	// made with the context of an incoming request which is itself a retry, and
	// which came through a [github.com/retrip/retrip/shed.Handler], carries it
	// on its first attempt too: there the count goes on from the incoming
	// number. If empty, it is inherited; the default is none. "off": none.
	RetryHeader string `json:"retry_header"`

	// Budget is what retries to one host may spend. Its fields, if 0, are
	// inherited; the default is 5 tokens and 0.2 back per success.
	Budget Budget `json:"budget"`

	// Breaker stops attempts to a host that is down. Its fields, if 0, are
	// inherited; by default it is off.
	Breaker Breaker `json:"breaker"`

	// Gate makes all requests to a host that has refused one wait in one
	// queue, in the order in which they came. None is sent within the time that
	// the server asked for, by 429 or by 503 with Retry-After; a 429 that names
	// no time closes the gate for a time of its own. Then one request goes
	// alone, and the others follow its answer at a pace that is learnt from
	// what is accepted and what is refused. A request that can't make its
	// deadline is told so at once and holds nobody back, and so is one for
	// which the server asks for more than MaxWait. If 0, it is inherited; the
	// default is Off.
	Gate Switch `json:"gate"`

	// GateKey, if not nil, names the gate at which a request waits, where limits
	// are not for a host but for a tenant or an API key: requests with one name
	// share a gate, and a refusal of one holds back no other. An empty name is
	// the host's own gate. Up to 4096 names that were refused have gates of
	// their own at one time; others share that of their host. Names are kept in
	// memory only and appear in no metric, record or HostState. GateKey must
	// return the same for a request each time, must be safe for concurrent use
	// and must not read the request's body. If nil, it is inherited; by default
	// every host has one gate. It is code: a policy that has it can't be written
	// as JSON.
	GateKey func(*http.Request) string `json:"-"`

	// Classify, if not nil, is asked about the outcome of every attempt before
	// the rules above, except for the error of one whose caller has gone. It
	// must be safe for concurrent use and must not close the response's body, or
	// read it except by [Peek]. If nil, it is inherited. It is code: a policy that has
	// it can't be written as JSON.
	Classify func(*http.Request, *http.Response, error) Verdict `json:"-"`

	// Idempotent, if not nil, decides whether a request may be repeated,
	// instead of its method and the caller's key. Transport repeats what
	// provably was not processed all the same. net/http itself repeats a
	// request that meets a dead connection of its pool if it is a GET, HEAD,
	// OPTIONS or TRACE or has a key, and has no body or has GetBody. Idempotent
	// must be safe for concurrent use. If nil, it is inherited. It is code: a
	// policy that has it can't be written as JSON.
	Idempotent func(*http.Request) bool `json:"-"`
}

// Verdict is what Policy.Classify says about the outcome of an attempt.
type Verdict uint8

const (
	// ByRule leaves the outcome to the policy's other rules.
	ByRule Verdict = iota

	// Retryable calls the outcome a failure that another attempt may heal.
	Retryable

	// Final calls the outcome the answer, good or bad: no retry.
	Final

	// NotProcessed is Retryable, and vouches that the server did nothing:
	// the request is repeated whatever its method.
	NotProcessed
)

var verdictNames = [...]string{"by_rule", "retryable", "final", "not_processed"}

// String returns v as a word: "by_rule", "retryable", "final" or
// "not_processed".
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// noRetryHeader is Off as a value of Policy.RetryHeader, in any case, as
// headers are.
const noRetryHeader = "off"

// What a zero field of Transport.Policy inherits.
const (
	defaultMaxAttempts   = 4
	defaultBackoffBase   = 100 * time.Millisecond
	defaultBackoffCap    = 10 * time.Second
	defaultThrottleBase  = time.Second
	defaultMaxWait       = 30 * time.Second
	defaultMaxReplayBody = 64 << 10
	defaultMaxSends      = 10
	defaultBudgetSize    = 5
	defaultBudgetCredit  = 0.2
)

// over returns p with its unset fields taken from base.
func (p Policy) over(base Policy) Policy {
	inherit(&p.MaxAttempts, base.MaxAttempts)
	inherit(&p.Backoff.Base, base.Backoff.Base)
	inherit(&p.Backoff.Cap, base.Backoff.Cap)
	inherit(&p.Backoff.ThrottleBase, base.Backoff.ThrottleBase)
	inherit(&p.Backoff.Jitter, base.Backoff.Jitter)
	inherit(&p.Deadline, base.Deadline)
	inherit(&p.AttemptTimeout, base.AttemptTimeout)
	inherit(&p.MaxWait, base.MaxWait)
	inherit(&p.WholeBody, base.WholeBody)
	inherit(&p.BodyIdle, base.BodyIdle)
	inherit(&p.Resume, base.Resume)
	inherit(&p.MaxReplayBody, base.MaxReplayBody)
	inherit(&p.MaxSends, base.MaxSends)
	inheritSlice(&p.RetryOn, base.RetryOn)
	inheritSlice(&p.FailOn, base.FailOn)
	inheritSlice(&p.Unprocessed, base.Unprocessed)
	inheritSlice(&p.IdempotentMethods, base.IdempotentMethods)
	inherit(&p.IdempotencyKey, base.IdempotencyKey)
	inheritSlice(&p.Dialects, base.Dialects)
	inherit(&p.RetryHeader, base.RetryHeader)
	inherit(&p.Budget.Size, base.Budget.Size)
	inherit(&p.Budget.Credit, base.Budget.Credit)
	inherit(&p.Budget.Shared, base.Budget.Shared)
	inherit(&p.Breaker.Ratio, base.Breaker.Ratio)
	inherit(&p.Breaker.Window, base.Breaker.Window)
	inherit(&p.Breaker.MinVolume, base.Breaker.MinVolume)
	inherit(&p.Breaker.OpenFor, base.Breaker.OpenFor)
	inherit(&p.Breaker.Probes, base.Breaker.Probes)
	inherit(&p.Gate, base.Gate)
	if p.GateKey == nil {
		p.GateKey = base.GateKey
	}
	if p.Classify == nil {
		p.Classify = base.Classify
	}
	if p.Idempotent == nil {
		p.Idempotent = base.Idempotent
	}
	return p
}

func inherit[T comparable](field *T, base T) {
	var zero T
	if *field == zero {
		*field = base
	}
}

func inheritSlice[T any](field *[]T, base []T) {
	if *field == nil {
		*field = base
	}
}

// defaults is what Transport.Policy inherits from. MaxSends stays 0: its
// default depends on the attempt.
var defaults = Policy{
	MaxAttempts:   defaultMaxAttempts,
	Backoff:       Backoff{Base: defaultBackoffBase, Cap: defaultBackoffCap, ThrottleBase: defaultThrottleBase, Jitter: FullJitter},
	MaxWait:       defaultMaxWait,
	MaxReplayBody: defaultMaxReplayBody,
	Budget:        Budget{Size: defaultBudgetSize, Credit: defaultBudgetCredit},
}

// WithPolicy returns a context under which requests follow p. Fields that p
// leaves unset inherit from the policy of an enclosing WithPolicy and then
// from that of the host. State belongs to the host: of Budget and Breaker only
// the switches Unlimited and Breaker{Ratio: Off} may be set here, and Gate may
// only be Off: such a request doesn't wait at the gate. A value that is wrong is reported by RoundTrip. It is safe for
// concurrent use, and so is the context; the slices in p must not be changed
// any more.
func WithPolicy(ctx context.Context, p Policy) context.Context {
	next := &override{policy: &p}
	if o := overrideOf(ctx); o != nil {
		next.traces = o.traces
		if o.policy != nil {
			p = p.over(*o.policy)
		}
	}
	return next.in(ctx)
}

// override is what a context asks for its requests. Policy and traces share
// one context value, so that a request which has neither pays for one look-up.
type override struct {
	policy *Policy
	traces []*Trace
}

type overrideKey struct{}

// overridden is set for good when the first context asks for anything. Until
// then no request has to search its own, which takes longer the deeper it is.
var overridden atomic.Bool

func (o *override) in(ctx context.Context) context.Context {
	overridden.Store(true)
	return context.WithValue(ctx, overrideKey{}, o)
}

// overrideOf returns what ctx asks for, nil if nothing.
func overrideOf(ctx context.Context) *override {
	if !overridden.Load() {
		return nil
	}
	o, _ := ctx.Value(overrideKey{}).(*override)
	return o
}
