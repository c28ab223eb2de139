// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// resultNames are the results of an attempt, as label values. Those of a
// response come first, so that resultOf needs no table.
var resultNames = [...]string{"other", "1xx", "2xx", "3xx", "4xx", "5xx", "429", "timeout", "canceled", "error"}

const (
	resultOther     = 0
	resultThrottled = 6
	resultTimeout   = 7
	resultCanceled  = 8
	resultError     = 9
	results         = 10
	statusResults   = 7 // results of a response
)

func resultOf(status int) int {
	switch {
	case status == http.StatusTooManyRequests:
		return resultThrottled
	case status >= 100 && status < 600:
		return status / 100
	default:
		return resultOther
	}
}

// outcomeNames are the outcomes of a request, as label values.
var outcomeNames = [...]string{"answered", "recovered", "gave_up", "failed", "canceled"}

const (
	outcomeAnswered = iota
	outcomeRecovered
	outcomeGaveUp
	outcomeFailed
	outcomeCanceled
	outcomes
)

var (
	retryReasons  = []Reason{ReasonServerError, ReasonThrottled, ReasonStatus, ReasonTimeout, ReasonError, ReasonHiddenSends}
	giveUpReasons = []Reason{ReasonMaxAttempts, ReasonNotIdempotent, ReasonBodyNotReplayable, ReasonRetryForbidden, ReasonWaitTooLong, ReasonHostPaused,
		ReasonDeadline, ReasonBreakerOpen, ReasonBudgetExhausted, ReasonFleetBudget, ReasonHiddenSends, ReasonCanceled}

	// The results for a response body that has broken: continued, or the reason
	// why not.
	resumeResults = append([]Reason{resumeContinued, refusedMethod, refusedStatus, refusedEncoded, refusedMultipart, refusedTrailers, refusedLength,
		refusedRanges, refusedValidator, refusedContentRange, refusedChanged, refusedCost, refusedProgress, refusedError}, giveUpReasons...)
)

// fleetResults are the answers of the fleet's account to a retry, as label values.
var fleetResults = [...]string{"allowed", "forbidden", "unknown"}

// The gauges, which each scrape computes from the hosts in trouble.
const (
	gaugeOpen = iota
	gaugeMissing
	gaugeTroubled
	gaugeWaiting
	gaugePaused
	gaugeShared
	gauges
)

const (
	waitHelp     = "Planned waits before the retries that were sent, by source: the backoff or the server."
	gateWaitHelp = "Actual waits at gates, before first attempts and retries, however the waits ended."
)

// policyMetrics counts for one policy name. A nil policyMetrics counts nothing.
// Requests that follow the policy keep a pointer to it: after its Metrics has
// dropped it, their counts are lost with it.
type policyMetrics struct {
	name     string
	holders  int // Transports that have the policy; guarded by Metrics.mu
	exemplar func(context.Context) prometheus.Labels

	// plain counts requests whose first attempt got a final response. Each counts
	// as an attempt and as a request.
	plain [statusResults]stripedCounter

	outcomes    [outcomes]atomic.Uint64
	unattempted atomic.Uint64
	results     [results]atomic.Uint64
	retries     [6]atomic.Uint64
	giveUps     [12]atomic.Uint64
	sends       atomic.Uint64
	fleetChecks [len(fleetResults)]atomic.Uint64
	pauses      atomic.Uint64
	transitions [len(breakerNames)]atomic.Uint64

	resumes      [26]atomic.Uint64
	resumedBytes atomic.Uint64
	stalls       atomic.Uint64

	giveUpExemplars                 [12]atomic.Pointer[prometheus.Exemplar]
	waits, waitsOfServer, gateWaits histogram
	gauged                          [gauges]atomic.Bool // which gauges have ever been more than zero
}

// answered counts a request whose first attempt got a final response.
func (p *policyMetrics) answered(status int) {
	if p != nil {
		p.plain[resultOf(status)].inc()
	}
}

func (p *policyMetrics) attempt(result int) {
	if p != nil {
		p.results[result].Add(1)
	}
}

// askedFleet counts a retry for which the fleet's account was asked.
func (p *policyMetrics) askedFleet(forbids, known bool) {
	switch {
	case p == nil:
	case forbids:
		p.fleetChecks[1].Add(1)
	case known:
		p.fleetChecks[0].Add(1)
	default:
		p.fleetChecks[2].Add(1)
	}
}

// request counts a request that has ended, after an attempt or without one.
func (p *policyMetrics) request(outcome int, attempted bool) {
	if p == nil {
		return
	}
	p.outcomes[outcome].Add(1)
	if !attempted {
		p.unattempted.Add(1)
	}
}

// retry counts a retry that is being sent, and the wait before it.
func (p *policyMetrics) retry(ctx context.Context, reason Reason, wait time.Duration, fromServer bool) {
	if p == nil {
		return
	}
	exemplar := p.exemplar(ctx) // before anything is counted: it may panic
	p.retries[slices.Index(retryReasons, reason)].Add(1)
	source, h := "backoff", &p.waits
	if fromServer {
		source, h = "server", &p.waitsOfServer
	}
	h.observe(makeWaits, wait, exemplar, p.name, source)
}

func (p *policyMetrics) waitedAtGate(ctx context.Context, d time.Duration) {
	if p != nil {
		p.gateWaits.observe(makeGateWaits, d, p.exemplar(ctx), p.name)
	}
}

func (p *policyMetrics) giveUp(ctx context.Context, reason Reason) {
	if p == nil {
		return
	}
	i := slices.Index(giveUpReasons, reason)
	p.giveUps[i].Add(1)
	if labels := p.exemplar(ctx); labels != nil {
		p.giveUpExemplars[i].Store(&prometheus.Exemplar{Value: 1, Labels: labels, Timestamp: time.Now()})
	}
}

func (p *policyMetrics) hiddenSends(n int) {
	if p != nil && n > 0 {
		p.sends.Add(uint64(n))
	}
}

// resumed counts a response body that broke, by result, and the number of bytes
// that the server didn't have to send again.
func (p *policyMetrics) resumed(result Reason, bytes int64) {
	if p == nil {
		return
	}
	p.resumes[slices.Index(resumeResults, result)].Add(1)
	p.resumedBytes.Add(uint64(bytes))
}

func (p *policyMetrics) stalled() {
	if p != nil {
		p.stalls.Add(1)
	}
}

func (p *policyMetrics) hostChanged(change hostChange) {
	if p == nil {
		return
	}
	if change&hostPaused != 0 {
		p.pauses.Add(1)
	}
	for bit, state := range map[hostChange]breakerState{hostOpened: breakerOpen, hostProbed: breakerHalfOpen, hostClosed: breakerClosed} {
		if change&bit != 0 {
			p.transitions[state].Add(1)
		}
	}
}

// histogram is one series of one policy. It exists from the first observation
// on, as long as its policyMetrics.
type histogram struct {
	series atomic.Pointer[prometheus.Histogram]
}

func (h *histogram) observe(made func() *prometheus.HistogramVec, d time.Duration, exemplar prometheus.Labels, labels ...string) {
	series := h.series.Load()
	if series == nil {
		first := made().WithLabelValues(labels...).(prometheus.Histogram)
		h.series.CompareAndSwap(nil, &first)
		series = h.series.Load()
	}
	if exemplar == nil {
		(*series).Observe(d.Seconds())
		return
	}
	(*series).(prometheus.ExemplarObserver).ObserveWithExemplar(d.Seconds(), exemplar)
}

func (h *histogram) collect(ch chan<- prometheus.Metric) {
	if series := h.series.Load(); series != nil {
		(*series).Collect(ch)
	}
}

func makeWaits() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:                        "retrip_wait_seconds",
		Help:                        waitHelp,
		Buckets:                     []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		NativeHistogramBucketFactor: 1.1,
		// Beyond this number the buckets get wider. The histogram is never
		// reset: its count equals the number of retries.
		NativeHistogramMaxBucketNumber: 160,
	}, []string{"policy", "source"})
}

func makeGateWaits() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "retrip_gate_wait_seconds",
		Help:    gateWaitHelp,
		Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
	}, []string{"policy"})
}
