// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/incoming"
)

// Policy says how to retry requests to a set of hosts. It is a plain value, to print,
// store as JSON and reuse. The zero Policy is safe but has no time limit: set
// AttemptTimeout, and Deadline unless every context has a deadline.
//
// A field that is 0, "" or nil, also of a Backoff, Breaker or Gate, inherits its value:
// in [Transport.Hosts] from Transport.Policy, in [WithPolicy] from the policy of the
// host, and in Transport.Policy from the default that its comment names; without one,
// the field is off or has no bound. A non-nil slice replaces the inherited one, even if
// empty, and has at most 200 elements. Functions must be safe for concurrent use.
//
// AttemptTimeout and Deadline never cut off a body. AttemptTimeout should be at
// least 1.5 times as long as a new connection and the usual response take together.
// While attempts time out, successes that take longer than 0.7 of AttemptTimeout cost
// tokens of the Budget.
//
// If the first attempt of a GET, HEAD or OPTIONS without a body takes longer than
// nearly all others at its host, Hedge sends a second one beside it, if possible over
// another connection. The first good answer wins, and the other attempt is canceled.
// Both may run Classify at the same time. A share of 0.05 allows one hedge per 20
// requests. P21 in docs/promises.md has the rest.
//
// # What is retried
//
// Dialects are single headers ("retry-after-ms", "x-ms-retry-after-ms",
// "x-amz-retry-after", "ratelimit", "x-ratelimit-reset", "should-retry") or all that
// a service says about retries ("anthropic", "azure", "discord", "github", "openai",
// "shopify", "stripe"). A dialect of exact waits comes before Retry-After, others
// after it; the rules for Retry-After apply. "ratelimit" reads all versions of its
// draft, and "x-ratelimit-reset" also X-Rate-Limit-Reset and X's limits of a day. A
// dialect that says whether to retry overrides RetryOn and FailOn, but not Classify.
// Without a dialect, any host may forbid a retry with "X-Should-Retry: false".
//
// Classify comes before all other rules, except for an error after the caller
// has gone. With Resume, Classify also judges the break of a body, as an error,
// and the responses to requests for the rest, mostly 206. Classify must neither
// close the response's body nor read it except with [Peek].
//
// # What may be repeated
//
// Idempotent runs once per request. Whatever it returns, the Transport repeats a request
// that the server provably did not process, and net/http may repeat a GET, HEAD, OPTIONS,
// TRACE or a request with a key after a dead pooled connection. IdempotencyKey is for
// hosts that document the header.
//
// net/http makes hidden sends: it repeats some requests by itself, even POSTs, and
// endlessly with some HTTP/2 servers. After ten sends, not counting those over dead HTTP/1
// connections of the pool, a derived attempt (see [Transport]), such as one with a
// timeout, fails like any other. Other attempts have no bound: for servers that you don't
// trust, set AttemptTimeout.
//
// # Response bodies
//
// If a body breaks within the first WholeBody bytes, the attempt fails like any other.
// If no retry follows, the caller gets the response, whose body yields the bytes read
// and then its error. The timeouts apply until the bytes have arrived. WholeBody holds
// back slow streams, but not event streams and the like. At most half a second after
// BodyIdleTimeout, the body fails with a timeout error, or Resume continues it.
// BodyIdleTimeout needs a Base whose bodies end with the request's context, as
// net/http's do.
//
// Resume uses Range and If-Range (RFC 9110 §14, §13.1.5). The response must have a
// Content-Length, no Content-Encoding, and a strong ETag or an old enough
// Last-Modified. Each continuation is a retry; where MaxAttempts or a budget allows
// none, the body waits its turn. docs/downloads.md has more.
//
// # Protection of the hosts
//
// Budget, 1 to 1 000 000 tokens, keeps retries from prolonging an outage. It starts full. A success
// without a retry adds a fifth of a token. Of a request's failed retries, the first costs half a
// token, or each 0.7 tokens while attempts time out. The Transport makes no retry while too few
// tokens are left, but for bursts, or after 0.6 times Budget requests in a row whose retries failed
// (0.4 times Budget retries in a row, if the attempt timed out). First attempts are never refused,
// so successes refill the budget; time alone does so only after an hour without a failure. A larger
// Budget outlasts longer outages, and prolongs an overload of a fleet (docs/promises.md, P14).
//
// FleetBudget, 1 to 1 000 000 tokens, should be about the number of requests
// that all processes together send to the host in a quarter of a second, and the
// same in every process. It needs Transport.Fleet and a Budget.
//
// RetryHeader names a header without another meaning, such as "Retry-Attempt",
// so that an overloaded server can shed retries first. First attempts carry it
// only on behalf of an incoming retry, with the context of a
// [github.com/retrip/retrip/shed.Handler], whose count continues.
type Policy struct {
	// MaxAttempts bounds the attempts, including the first; 1 means no retries. It can't be Off. The default is 4.
	MaxAttempts int `json:"max_attempts"`
	// Backoff is the schedule of waits before retries.
	Backoff Backoff `json:"backoff"`
	// MaxWait is the longest wait that a server may ask for; after a longer one, the Transport
	// gives up at once. A random time is added: up to half of what it asks for, or to the
	// ceiling of the backoff. MaxWait can't be Off. The default is 30 s.
	MaxWait time.Duration `json:"max_wait"`
	// AttemptTimeout bounds one attempt, up to the response headers.
	AttemptTimeout time.Duration `json:"attempt_timeout"`
	// Deadline bounds one RoundTrip, with all its attempts and waits, up to the response headers.
	Deadline time.Duration `json:"deadline"`

	// Hedge is the largest share of hedges, 0.001 to 0.2: second attempts beside late first ones.
	Hedge float64 `json:"hedge"`

	// RetryOn lists statuses, 400 to 599, to retry besides 5xx and 429. A 421
	// (Misdirected Request) is retried once, over a new connection, if Base is nil or an
	// *http.Transport that allows one.
	RetryOn []int `json:"retry_on"`
	// FailOn lists statuses, of 5xx and 429, not to retry.
	FailOn []int `json:"fail_on"`
	// Dialects lists, by name, what these hosts say about retries besides Retry-After.
	Dialects []string `json:"dialects"`
	// Classify, if not nil, judges the outcome of every attempt.
	Classify func(*http.Request, *http.Response, error) Verdict `json:"-"`

	// IdempotentMethods lists methods to repeat, besides those of RFC 9110 §9.2.2 and QUERY (RFC 10008).
	// With POST, an order whose response is lost is placed twice: use Unprocessed or IdempotencyKey.
	IdempotentMethods []string `json:"idempotent_methods"`
	// Unprocessed lists statuses, 400 to 599, by which the host says that it has not processed
	// the request, as most APIs do with 429: it is repeated whatever its method.
	Unprocessed []int `json:"unprocessed"`
	// Idempotent, if not nil, decides instead of method and key whether to repeat a request.
	Idempotent func(*http.Request) bool `json:"-"`
	// IdempotencyKey adds a generated key to requests that aren't idempotent and have none.
	IdempotencyKey Switch `json:"idempotency_key"`
	// MaxReplayBody is the number of bytes kept of a stream without GetBody. The default is 64 KiB.
	MaxReplayBody int64 `json:"max_replay_body"`

	// WholeBody is the number of bytes of a response body to read before RoundTrip returns.
	WholeBody int64 `json:"whole_body"`
	// BodyIdleTimeout is how long a Read of a response body may wait for bytes.
	BodyIdleTimeout time.Duration `json:"body_idle_timeout"`
	// Resume is how long to continue the broken body of a GET without a new byte, such as a minute.
	Resume time.Duration `json:"resume"`

	// Budget is the number of tokens that limit the retries to one host. The default is 5.
	Budget float64 `json:"budget"`
	// FleetBudget is the size of the account that limits the retries of a [Fleet] to one host. The default is 175.
	FleetBudget float64 `json:"fleet_budget"`
	// Breaker stops attempts to a host that is down.
	Breaker Breaker `json:"breaker"`
	// Gate makes requests to a host that refuses some of them wait in one queue.
	Gate Gate `json:"gate"`
	// RetryHeader names a header that carries the number of the attempt on retries, 2 and up. "off" means none.
	RetryHeader string `json:"retry_header"`
}

// Verdict is what Policy.Classify decides about the outcome of an attempt.
type Verdict uint8

const (
	ByRule    Verdict = iota // the policy's other rules decide
	Retryable                // a failure that a retry may fix
	Final                    // final, good or bad: no retry follows

	// Unprocessed is Retryable and also guarantees that the server did not
	// process the request, so the Transport may repeat it whatever its method.
	Unprocessed

	// Throttled is Unprocessed because there were too many requests, as a 429 says:
	// the Gate and Backoff.ThrottleBase apply, whatever the status.
	Throttled
)

// noRetryHeader stands for Off in Policy.RetryHeader. Like header names, it
// matches in any case.
const noRetryHeader = "off"

// WithPolicy returns a context whose requests follow p. Unset fields of p inherit
// from the policy of an enclosing WithPolicy, and then from that of the host.
// Budgets, breakers and gates belong to the host, so p may only switch them off.
// RoundTrip refuses an invalid p. Its slices must not change.
func WithPolicy(ctx context.Context, p Policy) context.Context {
	next := &override{policy: &p, from: incoming.Of(ctx), limits: p.MaxAttempts != 0}
	if o := overrideOf(ctx); o != nil {
		next.traces = o.traces
		next.limits = next.limits || o.limits && o.from == next.from
		if o.policy != nil {
			both := *o.policy
			_ = both.set(&p, "") // RoundTrip checks both
			next.policy = &both
		}
	}
	return next.in(ctx)
}

// override holds what a context sets for its requests. All share one context
// value, so that a request which has nothing of it needs one lookup.
type override struct {
	policy *Policy
	traces []*Trace
	from   *incoming.Mark // nil if there is none
	limits bool           // policy sets MaxAttempts for work on behalf of from
}

type overrideKey struct{}

// overridden becomes true, for good, when the first context sets anything.
// Until then no request has to search its context, which takes longer the
// deeper the context is nested.
var overridden atomic.Bool

func (o *override) in(ctx context.Context) context.Context {
	overridden.Store(true)
	return context.WithValue(ctx, overrideKey{}, o)
}

// overrideOf returns what ctx sets, or nil if it sets nothing.
func overrideOf(ctx context.Context) *override {
	if !overridden.Load() {
		return nil
	}
	o, _ := ctx.Value(overrideKey{}).(*override)
	return o
}

// Peek returns the first n bytes of the body of resp without consuming them, for
// Policy.Classify: some services report an error inside a 200. There are fewer if the
// body ends or, without a Content-Length, sends nothing for 100 ms, and none after a
// 101. If the body broke, Peek returns its error, as a later Read does. The bytes are
// read-only, and valid until the body is read; nobody else may use resp meanwhile.
func Peek(resp *http.Response, n int) ([]byte, error) {
	if n <= 0 || resp == nil || !body.In(resp.Request, resp) {
		return nil, nil
	}
	ahead := body.AheadSoon(resp, int64(n), peekPatience)
	resp.Body = ahead
	start := ahead.Bytes(n)
	if err := ahead.Err(); err != nil && err != io.EOF && len(start) < n {
		return start, err
	}
	return start, nil
}

// peekPatience is how long Peek waits for more bytes after the first ones. It is
// longer than the way of a second packet, and hardly delays a stream.
const peekPatience = 100 * time.Millisecond
