// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/retrip/retrip"
)

// effective returns the policy that r followed, with the library's defaults.
func (r *roundTrip) effective() Policy {
	layers := []Policy{r.policies.Default, {Policy: retrip.Policy{
		MaxAttempts: 4, Backoff: retrip.Backoff{Base: 100 * time.Millisecond, Cap: 10 * time.Second, ThrottleBase: time.Second, Jitter: retrip.FullJitter},
		MaxWait: 30 * time.Second, MaxReplayBody: 64 << 10, Budget: retrip.Budget{Size: 5}, FleetBudget: 175,
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
	if r.call.Behalf {
		// What the caller has set is for other work than what came in.
		layers = slices.Insert(layers, 0, Policy{Policy: retrip.Policy{MaxAttempts: 1}})
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
	case RetriesTeas:
		if status == http.StatusTeapot {
			return true
		}
	case FinalTeas:
		if status == http.StatusTeapot || h.Get("World-Final") != "" {
			return false
		}
	}
	if status >= 400 && h.Get("X-Should-Retry") == "true" && slices.ContainsFunc(p.Dialects, func(name string) bool {
		return slices.Contains([]string{"should-retry", "anthropic", "openai", "stripe"}, name)
	}) {
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
