// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"crypto/tls"
	"errors"
	"math"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/retrip/retrip"
)

// effective returns the policy that r followed, with the library's defaults.
func (r *roundTrip) effective() Policy {
	layers := []Policy{r.policies.Default, {Policy: retrip.Policy{
		MaxAttempts: 4, Backoff: retrip.Backoff{Base: 100 * time.Millisecond, Cap: 10 * time.Second, ThrottleBase: time.Second, Jitter: retrip.FullJitter},
		MaxWait: 30 * time.Second, MaxReplayBody: 64 << 10, Budget: 5, FleetBudget: 175,
	}}}
	for _, pattern := range []string{"*.test", r.host} {
		if p, ok := r.policies.Hosts[pattern]; ok {
			layers = slices.Insert(layers, 0, p)
			if pattern == r.host && len(layers) == 4 {
				layers = slices.Delete(layers, 1, 2) // only the most specific pattern counts
			}
		}
	}
	if r.call.Policy != nil {
		layers = slices.Insert(layers, 0, *r.call.Policy)
	}
	p := layers[0]
	for _, under := range layers[1:] {
		inherit(reflect.ValueOf(&p).Elem(), reflect.ValueOf(under))
	}
	return p
}

func inherit(v, base reflect.Value) {
	switch {
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			inherit(v.Field(i), base.Field(i))
		}
	case v.IsZero():
		v.Set(base)
	}
}

// repeatable reports whether r may be sent again after any outcome.
func (r *roundTrip) repeatable(p Policy) bool {
	switch p.Idempotent {
	case NeverIdempotent:
		return p.IdempotencyKey == retrip.On && !r.call.Key
	case ByHeader:
		return r.call.Safe || p.IdempotencyKey == retrip.On && !r.call.Key
	}
	switch r.call.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete, "QUERY":
		return true
	}
	return r.call.Key || p.IdempotencyKey == retrip.On || slices.Contains(p.IdempotentMethods, r.call.Method)
}

// retryable reports whether a response is one that the policy retries.
func retryable(p Policy, status int, h http.Header) bool {
	switch p.Classify {
	case RetriesTeas, ThrottlesTeas:
		if status == http.StatusTeapot {
			return true
		}
	case Polls:
		if status == http.StatusAccepted {
			return true
		}
	case FinalTeas:
		if status == http.StatusTeapot || h.Get("World-Final") != "" {
			return false
		}
	}
	if status >= 400 && strings.EqualFold(h.Get("X-Should-Retry"), "true") && slices.ContainsFunc(p.Dialects, func(name string) bool {
		return slices.Contains([]string{"should-retry", "anthropic", "openai", "stripe"}, name)
	}) {
		return true
	}
	if githubs(p, status, h) {
		return true
	}
	switch {
	case slices.Contains(p.Unprocessed, status), slices.Contains(p.RetryOn, status):
		return true
	case slices.Contains(p.FailOn, status):
		return false
	}
	return status >= 500 || status == http.StatusTooManyRequests
}

// githubs reports whether a response is a refusal in GitHub's words.
func githubs(p Policy, status int, h http.Header) bool {
	return status == http.StatusForbidden && slices.Contains(p.Dialects, "github") && !strings.EqualFold(h.Get("X-Should-Retry"), "false") && (h.Get("X-Ratelimit-Remaining") == "0" || h.Get("Retry-After") != "")
}

// throttled reports whether a response that is retried, and names a wait if names is true, is a
// refusal for the rate of requests.
func throttled(p Policy, status int, h http.Header, names bool) bool {
	switch status {
	case http.StatusTooManyRequests:
		return true
	case http.StatusTeapot:
		return names || p.Classify == ThrottlesTeas
	case http.StatusNotFound, http.StatusConflict, http.StatusMisdirectedRequest:
		return false
	}
	return githubs(p, status, h) || names && (status/100 == 4 || status == http.StatusServiceUnavailable)
}

// unprocessed reports whether a response says that the server hasn't processed the request.
func unprocessed(p Policy, status int) bool {
	if status == http.StatusTeapot && p.Classify == ThrottlesTeas {
		return true
	}
	return slices.Contains(p.Unprocessed, status) || status == http.StatusMisdirectedRequest
}

// mayProve reports whether err can be a proof that no server has processed the request.
func mayProve(err error) bool {
	switch e := err.(type) {
	case *net.OpError:
		return e.Op == "dial" || e.Op == "proxyconnect"
	case *net.DNSError:
		return true
	case http2StreamError:
		return e.Code == 7 // REFUSED_STREAM
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !mayProve(err) })
	case interface{ Unwrap() error }:
		return mayProve(e.Unwrap())
	case nil:
		return false
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return true // if the attempt had no connection
	}
	text := err.Error()
	return strings.Contains(text, "REFUSED_STREAM") || strings.Contains(text, "GOAWAY") || strings.Contains(text, "cannot rewind")
}

// hopeless reports whether no attempt can fix err.
func (c *checker) hopeless(err error) bool {
	switch e := err.(type) {
	case *tls.CertificateVerificationError, *net.AddrError:
		return true
	case *net.DNSError:
		return e.IsNotFound
	case http2StreamError:
		return e.Code == 0xd // HTTP_1_1_REQUIRED
	case interface{ Unwrap() error }:
		return c.hopeless(e.Unwrap())
	}
	return err == http.ErrSchemeMismatch || err == http.ErrNotSupported || err == errRefuses && !c.r.client.plan.Wrapped
}

// saidTo returns the wait that the response of a names at least, for a client that knows
// the dialects of p.
func (a *arrival) saidTo(p Policy) time.Duration {
	wait := time.Duration(a.step.Wait)
	var said map[string]time.Duration
	switch a.step.Word {
	case Millis:
		said = map[string]time.Duration{"retry-after-ms": wait * time.Second / 10, "azure": wait * time.Second / 10, "openai": wait * time.Second / 10}
	case RateLimit:
		said = map[string]time.Duration{"ratelimit": wait * time.Second}
	case Reset:
		said = map[string]time.Duration{
			"x-ratelimit-reset": wait * time.Second, "github": wait * time.Second, "discord": wait * time.Second,
			"x-ms-retry-after-ms": wait * time.Second / 10, "azure": wait * time.Second / 10, "x-amz-retry-after": wait * time.Second / 10,
		}
	case Services:
		said = map[string]time.Duration{"openai": wait * time.Second, "anthropic": min(wait*time.Second, 40*time.Second) - time.Second}
	}
	least := time.Duration(-1)
	for _, name := range p.Dialects {
		if w, ok := said[name]; ok && a.outage == nil && a.status >= 400 && (least < 0 || w < least) {
			least = w
		}
	}
	return max(a.word, least)
}

// window returns the shortest and longest wait before the retry after e, whose response or
// error names none.
func (p Policy) window(e event) (lo, hi time.Duration) {
	if e.Err != nil {
		p.Classify = NoClassify // it doesn't get the response of a body that broke
	}
	b, n := p.Backoff, e.Attempt
	if throttled(p, e.StatusCode, nil, false) {
		b.Base = min(b.Cap, max(b.Base, b.ThrottleBase))
	}
	ceiling := time.Duration(min(float64(b.Cap), max(0, float64(b.Base))*math.Pow(2, float64(n-1))))
	switch b.Jitter {
	case retrip.NoJitter:
		return ceiling, ceiling
	case retrip.EqualJitter:
		return ceiling / 2, ceiling
	case retrip.DecorrelatedJitter:
		return max(0, b.Base), b.Cap
	}
	return 0, ceiling
}
