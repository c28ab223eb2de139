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

// The families of counters. Each has a counter for each value of its label, or one
// counter without a label.
const (
	Requests = iota
	Unattempted
	Attempts
	Retries
	GiveUps
	Sends
	FleetChecks
	Hedges
	HedgeSkips
	Transitions
	Pauses
	Resumes
	ResumedBytes
	Stalls
	Families
)

// Results are the results of an attempt, as label values. Those of a
// response come first, so that ResultOf needs no table.
var Results = []string{"other", "1xx", "2xx", "3xx", "4xx", "5xx", "429", "timeout", "canceled", "error", "superseded"}

const (
	resultOther     = 0
	resultThrottled = 6
	Timeout         = 7
	Canceled        = 8
	Error           = 9
	Superseded      = 10
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
var Outcomes = []string{"answered", "recovered", "gave_up", "failed", "canceled"}

const (
	Answered = iota
	Recovered
	GaveUp
	Failed
	GaveIn
	outcomeCount
)

// FleetResults are the answers of the fleet's account to a retry, as label values.
var FleetResults = []string{"allowed", "forbidden", "unknown"}

// HedgeResults are the results of a hedge, as label values.
var HedgeResults = []string{"won", "lost", "failed"}

const (
	HedgeWon = iota
	HedgeLost
	HedgeFailed
)

// HedgeSkipReasons are the reasons why a late request got no hedge, as label values.
var HedgeSkipReasons = []string{"spent", "low_rate", "tokens", "paused", "gate", "breaker", "fleet"}

const (
	SkipSpent = iota
	SkipLowRate
	SkipTokens
	SkipPaused
	SkipGate
	SkipBreaker
	SkipFleet
)

// The gauges, which each scrape computes from the hosts in trouble.
const (
	GaugeOpen = iota
	GaugeMissing
	GaugeTroubled
	GaugeWaiting
	GaugePaused
	GaugeFailing
	GaugeHedge
	Gauges
)

// Words are the label values of each family.
type Words [Families][]string

// Policy counts for one policy name. A nil Policy counts nothing.
// Requests that follow the policy keep a pointer to it: after its Metrics has
// dropped it, their counts are lost with it.
type Policy struct {
	Name     string
	Holders  int // Transports that have the policy; guarded by its Metrics
	exemplar func(context.Context) prometheus.Labels
	words    *Words
	counts   [Families][]atomic.Uint64

	// plain counts requests whose first attempt got a final response. Each counts
	// as an attempt and as a request, so that most requests change one counter.
	plain [statusResults]atomic.Uint64

	giveUpExemplars                 []atomic.Pointer[prometheus.Exemplar]
	waits, waitsOfServer, gateWaits histogram
	hosts                           *Hosts     // nil without requests
	requests                        []requests // by host

	// Which families and gauges are exported even at zero, once and for all: those that
	// the policy may count, and any other that has been more than zero.
	Shown  [Families]atomic.Bool
	Gauged [Gauges]atomic.Bool
}

// Show says which parts of a policy are in use, so that their series are exported even at
// zero: no rate would show the first change of a series that begins with it.
func (p *Policy) Show(breaker, gate, fleet, hedge, resume, idle bool) {
	for family, used := range [Families]bool{Requests: true, Unattempted: true, Attempts: true, Retries: true, GiveUps: true, Sends: true, Pauses: true,
		FleetChecks: fleet, Hedges: hedge, HedgeSkips: hedge, Transitions: breaker, Resumes: resume, ResumedBytes: resume, Stalls: idle} {
		if used {
			p.Shown[family].Store(true)
		}
	}
	for gauge, used := range [Gauges]bool{GaugeOpen: breaker, GaugeMissing: true, GaugeTroubled: true, GaugeWaiting: gate, GaugePaused: true, GaugeFailing: true} {
		if used {
			p.Gauged[gauge].Store(true)
		}
	}
}

// New returns counters for the policy name. If hosts isn't nil, it also observes how
// long requests take.
func New(name string, exemplar func(context.Context) prometheus.Labels, words *Words, hosts *Hosts) *Policy {
	p := &Policy{Name: name, exemplar: exemplar, words: words, hosts: hosts,
		giveUpExemplars: make([]atomic.Pointer[prometheus.Exemplar], len(words[GiveUps]))}
	if hosts != nil {
		p.requests = make([]requests, len(hosts.names))
	}
	for family, values := range words {
		p.counts[family] = make([]atomic.Uint64, len(values))
	}
	return p
}

// Load returns the counter of a family for the given value, and an exemplar or nil.
func (p *Policy) Load(family, value int) (uint64, *prometheus.Exemplar) {
	n := p.counts[family][value].Load()
	switch {
	case family == GiveUps:
		return n, p.giveUpExemplars[value].Load()
	case family == Attempts && value < len(p.plain):
		n += p.plain[value].Load()
	case family == Requests && value == Answered:
		for i := range p.plain {
			n += p.plain[i].Load()
		}
	}
	return n, nil
}

// Counted reports whether a counter of a family is more than zero.
func (p *Policy) Counted(family int) bool {
	for value := range p.counts[family] {
		if n, _ := p.Load(family, value); n > 0 {
			return true
		}
	}
	return false
}

// Count adds n to the counter of a family for the given value.
func (p *Policy) Count(family, value, n int) {
	if p != nil && n > 0 {
		p.counts[family][value].Add(uint64(n))
	}
}

// countWord is Count for a value given as a word.
func (p *Policy) countWord(family int, word string) (value int) {
	value = slices.Index(p.words[family], word)
	p.Count(family, value, 1)
	return value
}

// CountAnswered counts a request whose first attempt got a final response.
func (p *Policy) CountAnswered(status int) {
	if p != nil {
		p.plain[ResultOf(status)].Add(1)
	}
}

// AskedFleet counts a retry for which the fleet's account was asked.
func (p *Policy) AskedFleet(forbids, known bool) {
	switch {
	case forbids:
		p.Count(FleetChecks, 1, 1)
	case known:
		p.Count(FleetChecks, 0, 1)
	default:
		p.Count(FleetChecks, 2, 1)
	}
}

// Request counts a request that has ended, after an attempt or without one.
func (p *Policy) Request(outcome int, attempted bool) {
	p.Count(Requests, outcome, 1)
	if !attempted {
		p.Count(Unattempted, 0, 1)
	}
}

// Retry counts a retry that is being sent, and the wait before it.
func (p *Policy) Retry(ctx context.Context, reason string, wait time.Duration, fromServer bool) {
	if p == nil {
		return
	}
	exemplar := p.exemplar(ctx) // before anything is counted: it may panic
	p.countWord(Retries, reason)
	source, h := "backoff", &p.waits
	if fromServer {
		source, h = "server", &p.waitsOfServer
	}
	h.observe(&waits, wait, exemplar, p.Name, source)
}

func (p *Policy) WaitedAtGate(ctx context.Context, d time.Duration) {
	if p != nil {
		p.gateWaits.observe(&gateWaits, d, p.exemplar(ctx), p.Name)
	}
}

func (p *Policy) GiveUp(ctx context.Context, reason string) {
	if p == nil {
		return
	}
	i := p.countWord(GiveUps, reason)
	if labels := p.exemplar(ctx); labels != nil {
		p.giveUpExemplars[i].Store(&prometheus.Exemplar{Value: 1, Labels: labels, Timestamp: time.Now()})
	}
}

// Resumed counts a response body that broke, by result, and the number of bytes
// that the server didn't have to send again.
func (p *Policy) Resumed(result string, bytes int64) {
	if p != nil {
		p.countWord(Resumes, result)
		p.counts[ResumedBytes][0].Add(uint64(bytes))
	}
}

func (p *Policy) Stalled() { p.Count(Stalls, 0, 1) }

func (p *Policy) HostChanged(change host.Change) {
	if change&host.Paused != 0 {
		p.Count(Pauses, 0, 1)
	}
	for state, bit := range [...]host.Change{breaker.Closed: host.Closed, breaker.Open: host.Opened, breaker.HalfOpen: host.Probed} {
		if change&bit != 0 {
			p.Count(Transitions, state, 1)
		}
	}
}

// histogram is one series of one policy. It exists from the first observation
// on, as long as its Policy.
type histogram struct {
	series atomic.Pointer[prometheus.Histogram]
}

func (h *histogram) observe(k *kind, d time.Duration, exemplar prometheus.Labels, labels ...string) {
	series := h.series.Load()
	if series == nil {
		first := prometheus.NewHistogramVec(k.HistogramOpts, k.labels).WithLabelValues(labels...).(prometheus.Histogram)
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

// CollectHistograms collects the histograms of p.
func (p *Policy) CollectHistograms(ch chan<- prometheus.Metric) {
	p.waits.collect(ch)
	p.waitsOfServer.collect(ch)
	p.gateWaits.collect(ch)
	for i := range p.requests {
		for outcome := range outcomeCount {
			p.requests[i].took[outcome].collect(ch)
			p.requests[i].attempts[outcome].collect(ch)
		}
	}
}

// DescribeHistograms describes the histograms of policies with New's hosts.
func DescribeHistograms(ch chan<- *prometheus.Desc, hosts *Hosts) {
	kinds := []*kind{&waits, &gateWaits, &durations, &tries}
	if hosts == nil {
		kinds = kinds[:2]
	}
	for _, k := range kinds {
		prometheus.NewHistogramVec(k.HistogramOpts, k.labels).Describe(ch)
	}
}

// kind is a kind of histogram.
type kind struct {
	labels []string
	prometheus.HistogramOpts
}

// mostBuckets bounds a native histogram, which is never reset: beyond this number, its
// buckets get wider.
const mostBuckets = 160

var (
	waits = kind{[]string{"policy", "source"}, prometheus.HistogramOpts{
		Name:                           "retrip_wait_seconds",
		Help:                           "Planned waits before the retries that were sent, by source: the backoff or the server.",
		Buckets:                        []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		NativeHistogramBucketFactor:    1.1,
		NativeHistogramMaxBucketNumber: mostBuckets,
	}}
	gateWaits = kind{[]string{"policy"}, prometheus.HistogramOpts{
		Name:    "retrip_gate_wait_seconds",
		Help:    "Actual waits at gates, before first attempts and retries, however the waits ended.",
		Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
	}}
	durations = kind{[]string{"policy", "outcome", "host"}, prometheus.HistogramOpts{
		Name:                           "retrip_request_duration_seconds",
		Help:                           "Time from the beginning of RoundTrip to its end, by outcome and host, with all attempts and waits.",
		Buckets:                        []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		NativeHistogramBucketFactor:    1.1,
		NativeHistogramMaxBucketNumber: mostBuckets,
	}}
	tries = kind{[]string{"policy", "outcome", "host"}, prometheus.HistogramOpts{
		Name:    "retrip_request_attempts",
		Help:    "Attempts per request, by outcome and host.",
		Buckets: []float64{0, 1, 2, 3, 4, 5, 10},
	}}
)
