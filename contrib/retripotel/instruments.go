// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retripotel

import (
	"context"
	"runtime"
	"sync"
	"weak"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"

	"github.com/retrip/retrip"
)

// instruments are the metrics of a Transport.
type instruments struct {
	duration metric.Float64Histogram
	delay    metric.Float64Histogram
	sends    metric.Int64Counter
}

// Bucket bounds in seconds: those that the conventions recommend for durations
// of HTTP requests, and two more for requests that wait.
var buckets = metric.WithExplicitBucketBoundaries(.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 30, 60)

// newInstruments creates the instruments. If one can't be created,
// OpenTelemetry's error handler gets the error, and the instrument counts
// nothing.
func newInstruments(meter metric.Meter, t *retrip.Transport) *instruments {
	var m instruments
	var err error
	report := func(err error) {
		if err != nil {
			otel.Handle(err)
		}
	}
	m.duration, err = meter.Float64Histogram("retrip.request.duration", metric.WithUnit("s"), buckets,
		metric.WithDescription("Duration of requests up to the response headers, with all attempts and waits."))
	report(err)
	m.delay, err = meter.Float64Histogram("retrip.retry.delay", metric.WithUnit("s"), buckets,
		metric.WithDescription("Waits before retries, as they were decided on; the count is that of the retries."))
	report(err)
	m.sends, err = meter.Int64Counter("retrip.hidden_sends", metric.WithUnit("{send}"),
		metric.WithDescription("Times that net/http sent a request again within an attempt."))
	report(err)
	report(observeHosts(meter, t))
	return &m
}

// observeHosts registers the gauges of t's hosts. They hold t weakly: the
// registration doesn't keep an unused Transport alive, and ends with it.
func observeHosts(meter metric.Meter, t *retrip.Transport) error {
	var gauges [6]metric.Float64Observable
	var observables []metric.Observable
	for i, g := range [len(gauges)]struct{ name, unit, description string }{
		{"retrip.hosts.in_trouble", "{host}", "Hosts with tokens missing, with a pause in effect, or with failures that their breaker counts."},
		{"retrip.hosts.paused", "{host}", "Hosts to which requests are held back, at the request of the host or by a gate."},
		{"retrip.hosts.breaker_open", "{host}", "Hosts behind an open or half-open breaker."},
		{"retrip.budget.tokens_missing", "{token}", "Tokens missing from the budgets of all hosts together."},
		{"retrip.gate.waiting", "{request}", "Requests that wait at the gates of all hosts together."},
		{"retrip.hosts.failing", "{host}", "Hosts at which a request failed in the last five minutes, for whatever reason."},
	} {
		// Observations of several Transports for the same policy add up.
		gauge, err := meter.Float64ObservableUpDownCounter(g.name, metric.WithUnit(g.unit), metric.WithDescription(g.description))
		if err != nil {
			return err
		}
		gauges[i], observables = gauge, append(observables, gauge)
	}
	transport := weak.Make(t)
	var mu sync.Mutex
	seen := map[string]bool{} // policies observed before, which drop to zero; guarded by mu
	registration, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		t := transport.Value()
		if t == nil {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		sums := map[string]*[len(gauges)]float64{}
		for policy := range seen {
			sums[policy] = new([len(gauges)]float64)
		}
		for _, h := range t.HostStates() {
			s := sums[h.Policy]
			if s == nil {
				s = new([len(gauges)]float64)
				sums[h.Policy], seen[h.Policy] = s, true
			}
			if h.Failed > 0 {
				s[5]++
			}
			if !h.Held {
				continue
			}
			s[0]++
			if h.PausedFor > 0 {
				s[1]++
			}
			if h.Breaker != retrip.BreakerClosed {
				s[2]++
			}
			s[3] += max(0, h.Size-h.Tokens)
			s[4] += float64(h.Waiting)
		}
		for policy, s := range sums {
			attributes := metric.WithAttributes(policyKey.String(policy))
			for i, g := range gauges {
				o.ObserveFloat64(g, s[i], attributes)
			}
		}
		return nil
	}, observables...)
	if err != nil {
		return err
	}
	runtime.AddCleanup(t, func(r metric.Registration) {
		if err := r.Unregister(); err != nil {
			otel.Handle(err)
		}
	}, registration)
	return nil
}
