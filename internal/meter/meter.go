// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package meter counts for one policy. Counting allocates nothing.
package meter

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/host"
)

// Results are the results of an attempt, as label values. Those of a
// response come first, so that ResultOf needs no table.
var Results = [...]string{"other", "1xx", "2xx", "3xx", "4xx", "5xx", "429", "timeout", "canceled", "error", "superseded"}

const (
	resultOther     = 0
	resultThrottled = 6
	Timeout         = 7
	Canceled        = 8
	Error           = 9
	Superseded      = 10
	resultCount     = 11
	statusResults   = 7 // results of a response
)

func ResultOf(status int) int {
	switch {
	case status == http.StatusTooManyRequests:
		return resultThrottled
	case status >= 100 && status < 600:
		return status / 100
	default:
		return resultOther
	}
}

// Outcomes are the outcomes of a request, as label values.
var Outcomes = [...]string{"answered", "recovered", "gave_up", "failed", "canceled"}

const (
	Answered = iota
	Recovered
	GaveUp
	Failed
	GaveIn
	outcomeCount
)

// FleetResults are the answers of the fleet's account to a retry, as label values.
var FleetResults = [...]string{"allowed", "forbidden", "unknown"}

// HedgeResults are the results of a hedge, as label values.
var HedgeResults = [...]string{"won", "lost", "failed"}

const (
	HedgeWon = iota
	HedgeLost
	HedgeFailed
)

// HedgeSkips are the reasons why a late request got no hedge, as label values.
var HedgeSkips = [...]string{"spent", "low_rate", "tokens", "paused", "gate", "breaker", "fleet"}

const (
	SkipSpent = iota
	SkipLowRate
	SkipTokens
	SkipPaused
	SkipGate
	SkipBreaker
	SkipFleet
)

// gauges is the number of gauges that each scrape computes from the hosts in trouble.
const Gauges = 7

const (
	WaitHelp     = "Planned waits before the retries that were sent, by source: the backoff or the server."
	GateWaitHelp = "Actual waits at gates, before first attempts and retries, however the waits ended."
)

// Words are the label values that the counters of a policy tell apart.
type Words struct{ Retries, GiveUps, Resumes []string }

// New returns counters for the policy name. If hosts isn't nil, it also observes how
// long requests take.
func New(name string, exemplar func(context.Context) prometheus.Labels, words *Words, hosts *Hosts) *Policy {
	return &Policy{Name: name, exemplar: exemplar, words: words, requests: newRequests(hosts),
		Retries: make([]atomic.Uint64, len(words.Retries)), GiveUps: make([]atomic.Uint64, len(words.GiveUps)), Resumes: make([]atomic.Uint64, len(words.Resumes)),
		GiveUpExemplars: make([]atomic.Pointer[prometheus.Exemplar], len(words.GiveUps))}
}

// Policy counts for one policy name. A nil Policy counts nothing.
// Requests that follow the policy keep a pointer to it: after its Metrics has
// dropped it, their counts are lost with it.
type Policy struct {
	Name     string
	Holders  int // Transports that have the policy; guarded by its Metrics
	exemplar func(context.Context) prometheus.Labels
	words    *Words
	requests *requests // nil observes nothing

	// Plain counts requests whose first attempt got a final response. Each counts
	// as an attempt and as a request, so that most requests change one counter.
	Plain [statusResults]atomic.Uint64

	Outcomes    [outcomeCount]atomic.Uint64
	Unattempted atomic.Uint64
	Results     [resultCount]atomic.Uint64
	Retries     []atomic.Uint64
	GiveUps     []atomic.Uint64
	Sends       atomic.Uint64
	FleetChecks [len(FleetResults)]atomic.Uint64
	Hedges      [len(HedgeResults)]atomic.Uint64
	HedgeSkips  [len(HedgeSkips)]atomic.Uint64
	Pauses      atomic.Uint64
	Transitions [len(breaker.Names)]atomic.Uint64

	Resumes      []atomic.Uint64
	ResumedBytes atomic.Uint64
	Stalls       atomic.Uint64

	GiveUpExemplars                 []atomic.Pointer[prometheus.Exemplar]
	Waits, WaitsOfServer, GateWaits histogram
	Gauged                          [Gauges]atomic.Bool // which gauges have ever been more than zero
}

// Answered counts a request whose first attempt got a final response.
func (p *Policy) Answered(status int) {
	if p != nil {
		p.Plain[ResultOf(status)].Add(1)
	}
}

func (p *Policy) Attempt(result int) {
	if p != nil {
		p.Results[result].Add(1)
	}
}

// AskedFleet counts a retry for which the fleet's account was asked.
func (p *Policy) AskedFleet(forbids, known bool) {
	switch {
	case p == nil:
	case forbids:
		p.FleetChecks[1].Add(1)
	case known:
		p.FleetChecks[0].Add(1)
	default:
		p.FleetChecks[2].Add(1)
	}
}

// Hedge counts a hedge, by result.
func (p *Policy) Hedge(result int) {
	if p != nil {
		p.Hedges[result].Add(1)
	}
}

// SkipHedge counts a late request without a hedge, by reason.
func (p *Policy) SkipHedge(reason int) {
	if p != nil {
		p.HedgeSkips[reason].Add(1)
	}
}

// Request counts a request that has ended, after an attempt or without one.
func (p *Policy) Request(outcome int, attempted bool) {
	if p == nil {
		return
	}
	p.Outcomes[outcome].Add(1)
	if !attempted {
		p.Unattempted.Add(1)
	}
}

// Retry counts a retry that is being sent, and the wait before it.
func (p *Policy) Retry(ctx context.Context, reason string, wait time.Duration, fromServer bool) {
	if p == nil {
		return
	}
	exemplar := p.exemplar(ctx) // before anything is counted: it may panic
	p.Retries[slices.Index(p.words.Retries, reason)].Add(1)
	source, h := "backoff", &p.Waits
	if fromServer {
		source, h = "server", &p.WaitsOfServer
	}
	h.observe(makeWaits, wait, exemplar, p.Name, source)
}

func (p *Policy) WaitedAtGate(ctx context.Context, d time.Duration) {
	if p != nil {
		p.GateWaits.observe(makeGateWaits, d, p.exemplar(ctx), p.Name)
	}
}

func (p *Policy) GiveUp(ctx context.Context, reason string) {
	if p == nil {
		return
	}
	i := slices.Index(p.words.GiveUps, reason)
	p.GiveUps[i].Add(1)
	if labels := p.exemplar(ctx); labels != nil {
		p.GiveUpExemplars[i].Store(&prometheus.Exemplar{Value: 1, Labels: labels, Timestamp: time.Now()})
	}
}

func (p *Policy) HiddenSends(n int) {
	if p != nil && n > 0 {
		p.Sends.Add(uint64(n))
	}
}

// Resumed counts a response body that broke, by result, and the number of bytes
// that the server didn't have to send again.
func (p *Policy) Resumed(result string, bytes int64) {
	if p == nil {
		return
	}
	p.Resumes[slices.Index(p.words.Resumes, result)].Add(1)
	p.ResumedBytes.Add(uint64(bytes))
}

func (p *Policy) Stalled() {
	if p != nil {
		p.Stalls.Add(1)
	}
}

func (p *Policy) HostChanged(change host.Change) {
	if p == nil {
		return
	}
	if change&host.Paused != 0 {
		p.Pauses.Add(1)
	}
	for bit, state := range map[host.Change]breaker.State{host.Opened: breaker.Open, host.Probed: breaker.HalfOpen, host.Closed: breaker.Closed} {
		if change&bit != 0 {
			p.Transitions[state].Add(1)
		}
	}
}

// histogram is one series of one policy. It exists from the first observation
// on, as long as its Policy.
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

func (h *histogram) Collect(ch chan<- prometheus.Metric) {
	if series := h.series.Load(); series != nil {
		(*series).Collect(ch)
	}
}

func makeWaits() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:                        "retrip_wait_seconds",
		Help:                        WaitHelp,
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
		Help:    GateWaitHelp,
		Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
	}, []string{"policy"})
}
