// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"fmt"
	"net/http"
	"time"
)

// Off, as the value of a field of a [Policy], switches off what the field
// describes. The comment of each field says whether the field accepts Off. Any
// other negative value is an error.
const Off = -1

// Switch is a field of a [Policy] that is on, off or inherited. If 0, it is
// inherited. In JSON, a Switch is true or false.
type Switch int8

// On, as the value of a [Switch], switches on what the field describes. [Off]
// switches it off even if the inherited value is On.
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

// Unlimited is a [Budget] that never refuses a retry. With Unlimited, nothing
// keeps the retries of a fleet from prolonging an outage; see the package
// documentation.
var Unlimited = Budget{Size: Off, Shared: Off}

// Policy says how to retry requests to a set of hosts. It is a plain value: a
// program can print it, compare it field by field, store it as JSON and reuse
// it.
//
// The zero Policy is a sound default. A field that is 0 or nil inherits its
// value: in [Transport.Hosts] from Transport.Policy, in [WithPolicy] from the
// policy of the host, and in Transport.Policy from the default that the comment
// of the field names. A non-nil slice replaces the inherited one, even if it is
// empty. Off switches a feature off.
type Policy struct {
	// MaxAttempts is the maximum number of attempts for a request, including
	// the first. 1 means no retries. Off is an error, because it could mean
	// either no retries or no bound. RFC 9110 §9.2.2 says that a client should
	// not automatically retry a failed automatic retry; the budget is what
	// makes more than one retry acceptable. If 0, it is inherited; the default
	// is 4.
	MaxAttempts int `json:"max_attempts"`

	// Backoff is the schedule of waits before retries. If zero, it is
	// inherited; the default is full jitter from 100 ms, doubling up to 10 s,
	// and from 1 s after a 429 that doesn't say how long to wait.
	Backoff Backoff `json:"backoff"`

	// Deadline bounds one RoundTrip, with all its attempts and waits, up to the
	// response headers. Deadline never cuts off a body. Off means no bound
	// besides the deadline of the context. If 0, it is inherited; the default
	// is no bound.
	Deadline time.Duration `json:"deadline"`

	// AttemptTimeout bounds one attempt, up to the response headers. It never
	// cuts off a body. A retry after a timeout uses another connection if
	// Transport.Base allows it: over HTTP/2, all attempts would otherwise share
	// the fate of the host's single connection. The timeout should leave
	// headroom: while attempts time out, the [Budget] treats successes that
	// take longer than 0.7 of AttemptTimeout as a sign of overload. Off means
	// no timeout. If 0, it is inherited; the default is no timeout.
	AttemptTimeout time.Duration `json:"attempt_timeout"`

	// MaxWait is the longest wait that a server may ask for. If a server asks
	// for more, the Transport gives up at once and returns the response in
	// hand; at a Gate, every request that would have to wait that long gives
	// up. MaxWait can't be Off: use 1 ns to refuse every wait, or a long
	// duration such as 24 h to accept nearly any. If 0, it is inherited; the
	// default is 30 s.
	MaxWait time.Duration `json:"max_wait"`

	// WholeBody is the number of bytes of a response body that the Transport
	// reads as part of the attempt. If the body breaks within them, the attempt
	// fails like any other, so the Transport fetches a truncated JSON document
	// again if it may repeat the request. Otherwise, or if no retry is left, it
	// returns the response, whose body yields the bytes read and then the
	// body's own error.
	//
	// A longer body streams after that many bytes, counted after net/http's own
	// gzip decompression. AttemptTimeout, Deadline and BodyIdle apply until the
	// bytes have arrived. The Transport doesn't read ahead a response that it
	// retries anyway, an event stream, ndjson, gRPC, multipart/x-mixed-replace,
	// a 101, or a response that arrives while a streamed request body is still
	// being sent. It can't detect the truncation of an HTTP/1.0 body that ends
	// with the connection. Off reads nothing ahead. If 0, it is inherited; the
	// default is to read nothing ahead.
	WholeBody int64 `json:"whole_body"`

	// BodyIdle is how long a Read of a response body may wait for bytes. After
	// at most half a second more, the body fails with a timeout error, or is
	// continued; see Resume. Time between Reads doesn't count. The response
	// headers of each attempt at a continuation must arrive within BodyIdle
	// too. BodyIdle needs a Base whose bodies end with the context of the
	// request, as net/http's do. Off lets a Read wait forever. If 0, it is
	// inherited; the default is to wait forever.
	BodyIdle time.Duration `json:"body_idle"`

	// Resume makes the Transport continue the body of a GET where it broke or
	// where BodyIdle ended it. The Transport requests the rest with Range and
	// If-Range (RFC 9110 §14, §13.1.5), and the reader notices nothing. The
	// first response must be a 200, or a 206 to a single range that the caller
	// asked for. It must have a strong ETag and a Content-Length but no
	// Content-Encoding, and net/http must not have decompressed it. The
	// Transport never joins bytes of different representations.
	//
	// Each continuation is a retry and follows all rules for retries except
	// Deadline. The count of attempts starts again after each MiB of progress.
	// If the Transport can't continue the body, the body fails with its own
	// error joined with the reason. If 0, it is inherited; the default is Off.
	Resume Switch `json:"resume"`

	// MaxReplayBody is the number of bytes of a request body that the Transport
	// keeps for replay if it can't get the body again: the request has no
	// GetBody, and the body is neither an *os.File nor an *io.SectionReader.
	// Off keeps nothing. If 0, it is inherited; the default is 64 KiB.
	MaxReplayBody int64 `json:"max_replay_body"`

	// MaxSends bounds how often net/http may send a request within one attempt.
	// net/http repeats some requests by itself: over HTTP/2 after GOAWAY and
	// REFUSED_STREAM, endlessly with some servers, and a POST that has GetBody
	// also after a PROTOCOL_ERROR, which proves nothing. An attempt that
	// exceeds the bound fails like any other, so net/http may send a request up
	// to MaxSends times MaxAttempts times in all. Sends over pooled HTTP/1
	// connections that turn out to be dead don't count, because the pool bounds
	// them.
	//
	// A policy that sets MaxSends bounds every attempt. Off means no bound. If
	// 0, it is inherited; the default is 10 for attempts that are derived for
	// another reason (see [Transport]), and no bound for others. With an
	// AttemptTimeout or a Deadline, every attempt is derived; without them, it
	// depends on the request.
	MaxSends int `json:"max_sends"`

	// RetryOn lists statuses (400 to 599) to retry in addition to 5xx and 429.
	// If nil, it is inherited; the default is none.
	RetryOn []int `json:"retry_on"`

	// FailOn lists statuses (400 to 599) not to retry even though they are 5xx
	// or 429. If nil, it is inherited; the default is none.
	FailOn []int `json:"fail_on"`

	// Unprocessed lists statuses (400 to 599) by which these hosts say that
	// they have not processed the request. The Transport may repeat such a
	// request whatever its method. For most APIs, 429 is such a status. If nil,
	// it is inherited; the default is none.
	Unprocessed []int `json:"unprocessed"`

	// IdempotentMethods lists methods that are idempotent at these hosts, in
	// addition to GET, HEAD, OPTIONS, TRACE, PUT and DELETE (RFC 9110 §9.2.2)
	// and QUERY (RFC 10008). If nil, it is inherited; the default is none.
	IdempotentMethods []string `json:"idempotent_methods"`

	// IdempotencyKey makes the Transport generate an Idempotency-Key header for
	// a request that is not idempotent and has no key. All attempts carry the
	// same key, which makes the request safe to repeat. It should be on only
	// for hosts that document the header. If 0, it is inherited; the default is
	// Off.
	IdempotencyKey Switch `json:"idempotency_key"`

	// Dialects lists, by name, the ways in which these hosts talk about retries
	// besides Retry-After: single headers ("retry-after-ms",
	// "x-ms-retry-after-ms", "x-amz-retry-after", "ratelimit",
	// "x-ratelimit-reset", "should-retry") or everything that a service sends
	// ("anthropic", "azure", "discord", "github", "openai", "shopify",
	// "stripe"). The first dialect in the list that says something wins. All
	// rules for Retry-After apply to a wait from a dialect. A dialect that says
	// whether to retry at all overrides RetryOn and FailOn, but not Classify.
	// Any host may forbid a retry with "X-Should-Retry: false", without a
	// dialect. If nil, Dialects is inherited; the default is none.
	Dialects []string `json:"dialects"`

	// RetryHeader names a header that carries the number of the attempt on
	// retries (2 and up) and is absent from first attempts, so that a server in
	// trouble can shed retries first. An example is "Retry-Attempt". A server
	// with a [github.com/retrip/retrip/shed.Handler] may make requests with the
	// context of an incoming request that is itself a retry. The first attempts
	// of these requests carry the header too, and the count continues from the
	// incoming number. "off" means no header. If empty, it is inherited; the
	// default is none.
	RetryHeader string `json:"retry_header"`

	// Budget limits the retries to one host. Its fields, if 0, are inherited;
	// the default is 5 tokens, with 0.2 tokens back per success.
	Budget Budget `json:"budget"`

	// FleetBudget is the size of the account by which all processes of a fleet
	// together limit retries to one host, 1 to 1 000 000 tokens. It should be
	// about the number of requests that all processes together send to the host
	// in a second, and the same in every process. It has an effect only with
	// Transport.Fleet and if Budget isn't Unlimited. Off means no account. If 0,
	// it is inherited; the default is 500.
	FleetBudget float64 `json:"fleet_budget"`

	// Breaker stops attempts to a host that is down. Its fields, if 0, are
	// inherited; by default there is no breaker.
	Breaker Breaker `json:"breaker"`

	// Gate makes all requests to a host that has refused a request wait in one
	// queue, first come, first served. The gate closes for the time that the
	// server asked for, with a 429 or with a 503 that has Retry-After; after a
	// 429 that names no time, the gate chooses one. Then a single request goes
	// as a probe. The others follow its success at a pace that the gate learns
	// from what the server accepts and refuses. A request fails at once, and
	// doesn't hold up the queue, if it would miss its deadline or if the server
	// asks for a wait longer than MaxWait. If 0, it is inherited; the default is
	// Off.
	Gate Switch `json:"gate"`

	// GateKey, if not nil, names the gate at which a request waits. It is for
	// servers that limit each tenant or API key instead of the whole host:
	// requests with the same name share a gate, and a refusal of one name holds
	// back no other. An empty name means the host's own gate. Up to 4096
	// refused names have gates of their own at a time; further names share the
	// gate of their host. Names stay in memory and appear in no metric, log
	// record or HostState.
	//
	// GateKey must always return the same name for the same request, must be
	// safe for concurrent use and must not read the request's body. If nil, it
	// is inherited; by default, every host has one gate. A policy with a
	// GateKey can't be written as JSON.
	GateKey func(*http.Request) string `json:"-"`

	// Classify, if not nil, judges the outcome of every attempt before the
	// rules above do, except for an error after the caller has gone. With
	// Resume, that includes the break of a body, as an error, and the responses
	// to requests for the rest of it, most of which have status 206. Classify
	// must be safe for concurrent use, must not close the response's body and
	// must not read it except with [Peek]. If nil, it is inherited. A policy
	// with a Classify can't be written as JSON.
	Classify func(*http.Request, *http.Response, error) Verdict `json:"-"`

	// Idempotent, if not nil, decides whether the Transport may repeat a
	// request, instead of the request's method and key. The Transport still
	// repeats a request that the server provably did not process. net/http may
	// also repeat a request by itself after a dead pooled connection, if the
	// request is a GET, HEAD, OPTIONS or TRACE or has a key, and has no body or
	// has GetBody. Idempotent must be safe for concurrent use. If nil, it is
	// inherited. A policy with an Idempotent can't be written as JSON.
	Idempotent func(*http.Request) bool `json:"-"`
}

// Verdict is what Policy.Classify decides about the outcome of an attempt.
type Verdict uint8

const (
	// ByRule leaves the outcome to the policy's other rules.
	ByRule Verdict = iota

	// Retryable marks the outcome as a failure that a retry may fix.
	Retryable

	// Final marks the outcome as final, good or bad: the Transport doesn't
	// retry it.
	Final

	// NotProcessed is Retryable and also guarantees that the server did not
	// process the request: the Transport may repeat the request whatever its
	// method.
	NotProcessed
)

var verdictNames = [...]string{"by_rule", "retryable", "final", "not_processed"}

// String returns the name of v: "by_rule", "retryable", "final" or
// "not_processed".
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// noRetryHeader stands for Off in Policy.RetryHeader. Like header names, it
// matches in any case.
const noRetryHeader = "off"
