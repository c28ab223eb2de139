// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retripotel

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/retrip/retrip"
)

const (
	reasonKey      = attribute.Key("retrip.reason")
	policyKey      = attribute.Key("retrip.policy")
	retriedKey     = attribute.Key("retrip.retried")
	attemptsKey    = attribute.Key("retrip.attempts")
	waitSecondsKey = attribute.Key("retrip.wait_seconds")
	waitSourceKey  = attribute.Key("retrip.wait_source")
	hedgeResultKey = attribute.Key("retrip.hedge_result")
)

// call is one RoundTrip. Its hooks run one after another. Attempts may run beside
// each other, and use only sent.
type call struct {
	span    trace.Span
	metrics *instruments

	sent    atomic.Int64 // attempts so far, including those before a redirect
	last    retrip.Event
	counted int // the last attempt whose hidden sends were counted
}

type callKey struct{}

// sentBefore returns the number of attempts before a redirect led to req.
func sentBefore(req *http.Request) int {
	if req.Response == nil || req.Response.Request == nil {
		return 0
	}
	if c, ok := req.Response.Request.Context().Value(callKey{}).(*call); ok {
		return int(c.sent.Load())
	}
	return 0
}

func (c *call) trace() *retrip.Trace {
	return &retrip.Trace{
		Hedge: c.own(func(e retrip.Event) {
			c.span.AddEvent("hedge", trace.WithAttributes(hedgeResultKey.String(string(e.Reason)), waitSecondsKey.Float64(e.Wait.Seconds())))
		}),
		Retry: c.own(func(e retrip.Event) {
			source := "backoff"
			if e.FromServer {
				source = "server"
			}
			attributes := []attribute.KeyValue{reasonKey.String(string(e.Reason)), waitSourceKey.String(source)}
			c.span.AddEvent("retry", trace.WithAttributes(append(attributes, waitSecondsKey.Float64(e.Wait.Seconds()))...))
			ctx := e.Request.Context()
			c.metrics.delay.Record(ctx, e.Wait.Seconds(), metric.WithAttributes(append(attributes, policyKey.String(e.Policy))...))
			c.hiddenSends(ctx, e)
		}),
		GiveUp: c.own(func(e retrip.Event) {
			c.span.AddEvent("give up", trace.WithAttributes(reasonKey.String(string(e.Reason))))
		}),
		Done: c.own(func(e retrip.Event) {
			c.last = e
			c.hiddenSends(e.Request.Context(), e)
		}),
	}
}

// own returns a hook for the requests of c alone. A caller may make other
// requests with the context of c's response, several at once, and they run the
// hooks of that context, too.
func (c *call) own(hook func(retrip.Event)) func(retrip.Event) {
	return func(e retrip.Event) {
		if e.Request.Context().Value(callKey{}) == c {
			hook(e)
		}
	}
}

// hiddenSends counts the hidden sends of the last attempt once, although
// several hooks report them.
func (c *call) hiddenSends(ctx context.Context, e retrip.Event) {
	if e.Sends > 1 && e.Attempt > c.counted {
		c.counted = e.Attempt
		c.metrics.sends.Add(ctx, int64(e.Sends-1), metric.WithAttributes(policyKey.String(e.Policy)))
	}
}

// end reports how the RoundTrip ended.
func (c *call) end(ctx context.Context, req *http.Request, resp *http.Response, err error, elapsed time.Duration) {
	var outcome attribute.KeyValue
	failed := true
	switch {
	case err != nil:
		// Never a Go type: those of retrip mean nothing to its users.
		word := cmp.Or(c.last.Kind, string(c.last.Reason), semconv.ErrorTypeOther.Value.AsString())
		outcome = semconv.ErrorTypeKey.String(word)
	case resp == nil: // from a RoundTripper that violates its contract
		outcome = semconv.ErrorTypeOther
	default:
		outcome, failed = semconv.HTTPResponseStatusCode(resp.StatusCode), resp.StatusCode >= 400
	}
	if failed {
		c.span.SetStatus(codes.Error, "")
		if outcome.Key == semconv.HTTPResponseStatusCodeKey {
			c.span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(resp.StatusCode)))
		}
	}
	c.span.SetAttributes(outcome)
	if c.last.Policy == "" {
		return // an invalid policy refused the request: nothing was tried
	}
	attributes := []attribute.KeyValue{policyKey.String(c.last.Policy)}
	if c.last.Reason != "" {
		attributes = append(attributes, reasonKey.String(string(c.last.Reason)))
	}
	c.span.SetAttributes(append(attributes, attemptsKey.Int(c.last.Attempt))...)
	attributes = append(attributes, methodOf(req), outcome, retriedKey.Bool(c.last.Attempt > 1))
	c.metrics.duration.Record(ctx, elapsed.Seconds(), metric.WithAttributes(attributes...))
}

// resends marks the span of an attempt as a retry, and ends the span if the base
// panics, because otelhttp does not.
type resends struct{ base http.RoundTripper }

func (r resends) RoundTrip(req *http.Request) (*http.Response, error) {
	span := trace.SpanFromContext(req.Context())
	if c, ok := req.Context().Value(callKey{}).(*call); ok {
		if before := c.sent.Add(1) - 1; before > 0 {
			span.SetAttributes(semconv.HTTPRequestResendCount(int(before)))
		}
	}
	returned := false
	defer func() {
		if !returned {
			span.SetStatus(codes.Error, "")
			span.End()
		}
	}()
	resp, err := r.base.RoundTrip(req)
	returned = true
	return resp, err
}

// knownMethods holds the methods that the conventions know (those of RFC 9110,
// and PATCH) and QUERY. All others count as one, so that a caller can't create
// any number of attribute values.
var knownMethods = []string{"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"}

func methodOf(req *http.Request) attribute.KeyValue {
	switch {
	case req.Method == "":
		return semconv.HTTPRequestMethodGet
	case slices.Contains(knownMethods, req.Method):
		return semconv.HTTPRequestMethodKey.String(req.Method)
	default:
		return semconv.HTTPRequestMethodOther
	}
}

func spanName(req *http.Request) string {
	method := methodOf(req)
	if method == semconv.HTTPRequestMethodOther {
		return "HTTP with retries"
	}
	return method.Value.AsString() + " with retries"
}

func requestAttributes(req *http.Request) []attribute.KeyValue {
	attributes := []attribute.KeyValue{methodOf(req)}
	if req.URL == nil {
		return attributes
	}
	attributes = append(attributes, semconv.ServerAddress(req.URL.Hostname()))
	if port, err := strconv.Atoi(req.URL.Port()); err == nil {
		return append(attributes, semconv.ServerPort(port))
	}
	switch strings.ToLower(req.URL.Scheme) {
	case "http":
		attributes = append(attributes, semconv.ServerPort(80))
	case "https":
		attributes = append(attributes, semconv.ServerPort(443))
	}
	return attributes
}
