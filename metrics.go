// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what Transports do. It is a [prometheus.Collector]:
//
//	metrics := retrip.NewMetrics()
//	reg.MustRegister(metrics)
//	client := &http.Client{Transport: &retrip.Transport{Metrics: metrics}}
//
// One Metrics may serve many Transports. The label policy is the pattern in
// Transport.Hosts that a request follows, in lower case, or "default"; no label
// ever holds a host, path or error that a request brought along. Counting
// allocates nothing, needs no registration and can't fail. The zero Metrics is
// ready for use. It is safe for concurrent use and must not be copied.
type Metrics struct {
	once sync.Once // makes what follows, on first use

	requests, attempts, retries, giveUps, sends  *prometheus.Desc
	transitions, pauses, open, missing, troubled *prometheus.Desc
	held, pausedNow                              *prometheus.Desc
	waits, gateWaits                             *prometheus.HistogramVec
	mu                                           sync.Mutex
	policies                                     map[string]*policyMetrics
	transports                                   []weak.Pointer[Transport]
}

// NewMetrics returns Metrics that have counted nothing yet, as &Metrics{} is.
func NewMetrics() *Metrics { return new(Metrics) }

// made returns m with its descriptions made.
func (m *Metrics) made() *Metrics {
	m.once.Do(m.make)
	return m
}

func (m *Metrics) make() {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("retrip_"+name, help, labels, nil)
	}
	m.requests = desc("requests_total", "Requests that ended, by how: success at the first attempt, recovered by a retry, gave_up, failed in a way no retry heals, canceled by the caller.", "policy", "outcome")
	m.attempts = desc("attempts_total", "Attempts made, by their result: the class of the status, 429, timeout or error.", "policy", "result")
	m.retries = desc("retries_total", "Retries decided on, by the reason for them.", "policy", "reason")
	m.giveUps = desc("give_ups_total", "Requests that ended although a retry would have been useful, by the reason not to make it.", "policy", "reason")
	m.sends = desc("hidden_sends_total", "Times that net/http sent a request again within an attempt, where that can be seen.", "policy")
	m.transitions = desc("breaker_transitions_total", "Changes of state of the breakers of hosts, by the new state.", "policy", "to")
	m.pauses = desc("pauses_total", "Times that a host asked everyone to leave it alone.", "policy")
	m.open = desc("breaker_open_hosts", "Hosts whose breaker is open or half-open.", "policy")
	m.missing = desc("budget_tokens_missing", "Tokens missing from the budgets of all hosts together.", "policy")
	m.troubled = desc("hosts_in_trouble", "Hosts with tokens missing, a pause running or failures that their breaker counts.", "policy")
	m.waits = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:                        "retrip_wait_seconds",
		Help:                        "Waits before retries as they were decided on, by who asked for them: the backoff or the server.",
		Buckets:                     []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		NativeHistogramBucketFactor: 1.1,
	}, []string{"policy", "source"})
	m.held = desc("gate_waiting_requests", "Requests that wait at the gates of all hosts together.", "policy")
	m.pausedNow = desc("paused_hosts", "Hosts that are to be left alone for now, as they have asked or their gate has it.", "policy")
	m.gateWaits = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "retrip_gate_wait_seconds",
		Help:    "Waits at gates as they were, before first attempts and retries, however they ended.",
		Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
	}, []string{"policy"})
	m.policies = map[string]*policyMetrics{}
}

// What an attempt can result in, as a label value.
var resultNames = [...]string{"error", "1xx", "2xx", "3xx", "4xx", "5xx", "429", "timeout", "other"}

const (
	resultError     = 0
	resultThrottled = 6
	resultTimeout   = 7
	resultOther     = 8
	results         = 9
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

// How a request can end, as a label value.
var outcomeNames = [...]string{"success", "recovered", "gave_up", "failed", "canceled"}

const (
	outcomeSuccess = iota
	outcomeRecovered
	outcomeGaveUp
	outcomeFailed
	outcomeCanceled
	outcomes
)

var (
	retryReasons  = []Reason{ReasonServerError, ReasonThrottled, ReasonStatus, ReasonTimeout, ReasonError, ReasonHiddenSends}
	giveUpReasons = []Reason{ReasonMaxAttempts, ReasonNotIdempotent, ReasonBodyNotReplayable, ReasonRetryForbidden, ReasonWaitTooLong, ReasonHostPaused,
		ReasonDeadline, ReasonBreakerOpen, ReasonBudgetExhausted, ReasonHiddenSends, ReasonCanceled}
)

// policyMetrics counts for one policy name. A nil one counts nothing.
type policyMetrics struct {
	name string

	// A request whose first attempt succeeds is counted once, here, and read
	// as an attempt and as a request.
	plain [results]stripedCounter

	outcomes    [outcomes]atomic.Uint64
	results     [results]atomic.Uint64
	retries     [6]atomic.Uint64
	giveUps     [11]atomic.Uint64
	sends       atomic.Uint64
	pauses      atomic.Uint64
	transitions [len(breakerNames)]atomic.Uint64

	backoffWait, serverWait, gateWait prometheus.Observer
}

// policy returns the counters of a policy name, made on first use.
func (m *Metrics) policy(name string) *policyMetrics {
	if m == nil {
		return nil
	}
	m.made()
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.policies[name]
	if p == nil {
		p = &policyMetrics{
			name:        name,
			backoffWait: m.waits.WithLabelValues(name, "backoff"),
			serverWait:  m.waits.WithLabelValues(name, "server"),
			gateWait:    m.gateWaits.WithLabelValues(name),
		}
		m.policies[name] = p
	}
	return p
}

// watch includes t's hosts in what m reports, as long as t is in use.
func (m *Metrics) watch(t *Transport) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.transports = slices.DeleteFunc(m.transports, func(p weak.Pointer[Transport]) bool { return p.Value() == nil })
	m.transports = append(m.transports, weak.Make(t))
}

func (p *policyMetrics) success(status int) {
	if p != nil {
		p.plain[resultOf(status)].inc()
	}
}

func (p *policyMetrics) attempt(result int) {
	if p != nil {
		p.results[result].Add(1)
	}
}

func (p *policyMetrics) request(outcome int) {
	if p != nil {
		p.outcomes[outcome].Add(1)
	}
}

func (p *policyMetrics) retry(reason Reason, wait time.Duration, fromServer bool) {
	if p == nil {
		return
	}
	p.retries[slices.Index(retryReasons, reason)].Add(1)
	if fromServer {
		p.serverWait.Observe(wait.Seconds())
	} else {
		p.backoffWait.Observe(wait.Seconds())
	}
}

func (p *policyMetrics) waitedAtGate(d time.Duration) {
	if p != nil {
		p.gateWait.Observe(d.Seconds())
	}
}

func (p *policyMetrics) giveUp(reason Reason) {
	if p != nil {
		p.giveUps[slices.Index(giveUpReasons, reason)].Add(1)
	}
}

func (p *policyMetrics) hiddenSends(n int) {
	if p != nil && n > 0 {
		p.sends.Add(uint64(n))
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

// Describe implements [prometheus.Collector]. It is safe for concurrent use.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.made().descs() {
		ch <- d
	}
	m.waits.Describe(ch)
	m.gateWaits.Describe(ch)
}

// descs returns all but those of histograms.
func (m *Metrics) descs() []*prometheus.Desc {
	return []*prometheus.Desc{m.requests, m.attempts, m.retries, m.giveUps, m.sends, m.transitions, m.pauses, m.open, m.missing, m.troubled, m.held, m.pausedNow}
}

// Collect implements [prometheus.Collector]. It is safe for concurrent use with
// RoundTrip.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.made()
	m.mu.Lock()
	policies := make([]*policyMetrics, 0, len(m.policies))
	for _, p := range m.policies {
		policies = append(policies, p)
	}
	transports := slices.Clone(m.transports)
	m.mu.Unlock()

	for _, p := range policies {
		m.collectPolicy(ch, p)
	}
	m.waits.Collect(ch)
	m.gateWaits.Collect(ch)
	m.collectHosts(ch, policies, transports)
}

func (m *Metrics) collectPolicy(ch chan<- prometheus.Metric, p *policyMetrics) {
	counter := func(desc *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), append([]string{p.name}, labels...)...)
	}
	var plain uint64
	for i, name := range resultNames {
		n := p.plain[i].value()
		plain += n
		counter(m.attempts, n+p.results[i].Load(), name)
	}
	for i, name := range outcomeNames {
		n := p.outcomes[i].Load()
		if i == outcomeSuccess {
			n += plain
		}
		counter(m.requests, n, name)
	}
	for i, reason := range retryReasons {
		counter(m.retries, p.retries[i].Load(), string(reason))
	}
	for i, reason := range giveUpReasons {
		counter(m.giveUps, p.giveUps[i].Load(), string(reason))
	}
	for i, state := range breakerNames {
		counter(m.transitions, p.transitions[i].Load(), state)
	}
	counter(m.sends, p.sends.Load())
	counter(m.pauses, p.pauses.Load())
}

// collectHosts adds up what the Transports know of hosts in trouble.
func (m *Metrics) collectHosts(ch chan<- prometheus.Metric, policies []*policyMetrics, transports []weak.Pointer[Transport]) {
	type sum struct{ open, missing, troubled, held, paused float64 }
	sums := map[string]*sum{}
	for _, p := range policies {
		sums[p.name] = &sum{}
	}
	for _, p := range transports {
		t := p.Value()
		if t == nil {
			continue
		}
		for _, state := range t.HostStates() {
			s := sums[state.Policy]
			if s == nil {
				continue
			}
			s.troubled++
			s.missing += state.Size - state.Tokens
			s.held += float64(state.Waiting)
			if state.PausedFor > 0 {
				s.paused++
			}
			if state.Breaker != breakerNames[breakerClosed] {
				s.open++
			}
		}
	}
	for name, s := range sums {
		gauge := func(desc *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, name)
		}
		gauge(m.open, s.open)
		gauge(m.missing, s.missing)
		gauge(m.troubled, s.troubled)
		gauge(m.held, s.held)
		gauge(m.pausedNow, s.paused)
	}
}
