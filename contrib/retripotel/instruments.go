// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retripotel

import (
	"context"
	"runtime"
	"sync"
	"time"
	"weak"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
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

func (m *instruments) retry(ctx context.Context, e retrip.Event, attributes []attribute.KeyValue) {
	m.delay.Record(ctx, e.Wait.Seconds(), metric.WithAttributes(append(attributes, policyKey.String(e.Policy))...))
}

func (m *instruments) hidden(ctx context.Context, e retrip.Event) {
	m.sends.Add(ctx, int64(e.Sends-1), metric.WithAttributes(policyKey.String(e.Policy)))
}

func (m *instruments) done(ctx context.Context, elapsed time.Duration, attributes []attribute.KeyValue) {
	m.duration.Record(ctx, elapsed.Seconds(), metric.WithAttributes(attributes...))
}

// observeHosts registers the gauges of t's hosts. They hold t weakly: the
// registration doesn't keep an unused Transport alive, and ends with it.
func observeHosts(meter metric.Meter, t *retrip.Transport) error {
	// Observations of several Transports for the same policy add up.
	gauge := func(name, unit, description string) (metric.Float64ObservableUpDownCounter, error) {
		return meter.Float64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	}
	troubled, err := gauge("retrip.hosts.in_trouble", "{host}", "Hosts with tokens missing, with a pause in effect, or with failures that their breaker counts.")
	if err != nil {
		return err
	}
	paused, err := gauge("retrip.hosts.paused", "{host}", "Hosts to which requests are held back, at the request of the host or by a gate.")
	if err != nil {
		return err
	}
	open, err := gauge("retrip.hosts.breaker_open", "{host}", "Hosts behind an open or half-open breaker.")
	if err != nil {
		return err
	}
	missing, err := gauge("retrip.budget.tokens_missing", "{token}", "Tokens missing from the budgets of all hosts together.")
	if err != nil {
		return err
	}
	waiting, err := gauge("retrip.gate.waiting", "{request}", "Requests that wait at the gates of all hosts together.")
	if err != nil {
		return err
	}
	failing, err := gauge("retrip.hosts.failing", "{host}", "Hosts at which a request failed in the last five minutes, for whatever reason.")
	if err != nil {
		return err
	}
	gauges := []metric.Float64Observable{troubled, paused, open, missing, waiting, failing}
	observables := make([]metric.Observable, len(gauges))
	for i, g := range gauges {
		observables[i] = g
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
		sums := map[string]*[6]float64{}
		for policy := range seen {
			sums[policy] = new([6]float64)
		}
		for _, h := range t.HostStates() {
			s := sums[h.Policy]
			if s == nil {
				s = new([6]float64)
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
			if h.Breaker != "closed" {
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
