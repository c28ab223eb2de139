// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/retrip/retrip/internal/breaker"
	"github.com/retrip/retrip/internal/exchange"
	"github.com/retrip/retrip/internal/meter"
	"github.com/retrip/retrip/internal/resume"
)

// Metrics counts what Transports do. It is a [prometheus.Collector]:
//
//	metrics := retrip.NewMetrics()
//	reg.MustRegister(metrics)
//	client := &http.Client{Transport: &retrip.Transport{Metrics: metrics}}
//
// One Metrics may serve many Transports. The label policy is the pattern in
// Transport.Hosts that a request follows, in lower case, or "default". No label
// ever holds a path or error from a request, or a host that isn't in Durations.
// Counting can't fail and, without Durations, allocates nothing. docs/metrics.md
// says what each metric counts and when its series appear and disappear.
//
// The zero Metrics is ready to use. It is safe for concurrent use and must not
// be copied.
type Metrics struct {
	// Exemplar, if not nil, returns the labels of an exemplar for a request
	// with the given context, such as the trace_id of its span, or nil for
	// none. Metrics calls Exemplar only for retries, waits at gates and
	// give-ups, and drops labels that Prometheus would reject. Exemplar must be
	// safe for concurrent use and must not be changed after the first use of m.
	Exemplar func(context.Context) prometheus.Labels

	// Durations, if not nil, adds the histograms retrip_request_duration_seconds
	// and retrip_request_attempts. The values of their label host are these
	// names, such as "api.example.com", and "other". Durations must not be
	// changed after the first use of m, and cost two readings of the clock.
	Durations []string

	once sync.Once // initializes the fields below, on first use

	requests, unattempted, attempts, retries, giveUps, sends, fleetChecks, transitions, pauses *prometheus.Desc
	resumes, resumedBytes, stalls, hedges, hedgeSkips                                          *prometheus.Desc
	waits, gateWaits, durations, tries                                                         *prometheus.Desc
	gauges                                                                                     [meter.Gauges]*prometheus.Desc

	hosts    *meter.Hosts // nil without Durations
	mu       sync.Mutex
	policies map[string]*meter.Policy
	holders  []*holder
	tidyAt   int // number of holders at which watch removes those of dead Transports
}

// holder is a Transport as its Metrics knows it.
type holder struct {
	transport weak.Pointer[Transport]
	held      []*meter.Policy // of its policies; guarded by Metrics.mu
}

// NewMetrics returns a new Metrics, like &Metrics{}.
func NewMetrics() *Metrics { return new(Metrics) }

// made initializes m on first use and returns it.
func (m *Metrics) made() *Metrics {
	m.once.Do(m.make)
	return m
}

func (m *Metrics) make() {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("retrip_"+name, help, append([]string{"policy"}, labels...), nil)
	}
	m.requests = desc("requests_total", "Requests that ended, by outcome: answered at the first attempt, recovered by a retry, gave_up, failed with an error that no retry can fix, canceled by the caller.", "outcome")
	m.unattempted = desc("unattempted_requests_total", "Requests that ended before their first attempt.")
	m.attempts = desc("attempts_total", "Attempts that ended, by result: the class of the status, 429, timeout, canceled, error, or superseded by the other attempt of a hedge.", "result")
	m.retries = desc("retries_total", "Retries sent, by reason.", "reason")
	m.giveUps = desc("give_ups_total", "Requests given up although a retry might have helped, by reason.", "reason")
	m.sends = desc("hidden_sends_total", "Transparent retries: times that net/http sent a request again within an attempt, where observable.")
	m.fleetChecks = desc("fleet_checks_total", "Retries that asked the fleet's account, by its answer: allowed, forbidden, or unknown, when the budget decides alone.", "result")
	m.hedges = desc("hedges_total", "Hedges sent, by result: won if the request got its answer from the hedge, lost if from the other attempt, failed if the hedge failed.", "result")
	m.hedgeSkips = desc("hedges_skipped_total", "Requests that were late without getting a hedge, by reason.", "reason")
	m.transitions = desc("breaker_transitions_total", "State changes of host breakers, by new state.", "to")
	m.pauses = desc("pauses_total", "Times that a host asked all clients to wait.")
	m.resumes = desc("body_resumes_total", "Response bodies that broke while being read with Policy.Resume, by result: continued, or the reason why not.", "result")
	m.resumedBytes = desc("body_resumed_bytes_total", "Bytes of continued response bodies that did not have to be sent again.")
	m.stalls = desc("body_stalls_total", "Response bodies that made no progress for Policy.BodyIdleTimeout.")
	m.waits = desc("wait_seconds", meter.WaitHelp, "source")
	m.gateWaits = desc("gate_wait_seconds", meter.GateWaitHelp)
	m.durations = prometheus.NewDesc("retrip_request_duration_seconds", meter.DurationHelp, meter.RequestLabels, nil)
	m.tries = prometheus.NewDesc("retrip_request_attempts", meter.AttemptsHelp, meter.RequestLabels, nil)
	m.hosts, _ = meter.NewHosts(m.Durations) // Transport.Validate tells of mistakes
	m.gauges = [meter.Gauges]*prometheus.Desc{
		gaugeOpen:     desc("breaker_open_hosts", "Hosts whose breaker is open or half-open."),
		gaugeMissing:  desc("budget_tokens_missing", "Tokens missing from the budgets of all hosts together."),
		gaugeTroubled: desc("hosts_in_trouble", "Hosts with tokens missing, with a pause in effect, or with failures that their breaker counts."),
		gaugeWaiting:  desc("gate_waiting_requests", "Requests waiting at the gates of all hosts together."),
		gaugePaused:   desc("paused_hosts", "Hosts to which requests are held back, at the request of the host or by a gate."),
		gaugeFailing:  desc("failing_hosts", "Hosts at which a request failed in the last five minutes, for whatever reason."),
		gaugeHedge:    desc("hedge_delay_seconds", "Delay after which a request gets a hedge, the longest of all hosts."),
	}
	m.policies = map[string]*meter.Policy{}
}

// watch includes t's hosts in what m reports, as long as t is reachable.
func (m *Metrics) watch(t *Transport) *holder {
	if m == nil {
		return nil
	}
	m.made()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.holders) >= m.tidyAt {
		m.tidy()
		m.tidyAt = 2*len(m.holders) + 16
	}
	h := &holder{transport: weak.Make(t)}
	m.holders = append(m.holders, h)
	return h
}

// tidy forgets the Transports that are garbage.
func (m *Metrics) tidy() {
	m.holders = slices.DeleteFunc(m.holders, func(h *holder) bool {
		dead := h.transport.Value() == nil
		if dead {
			for _, p := range h.held {
				p.Holders--
			}
		}
		return dead
	})
}

// hold gives each of the rules its counters. The counters stay as long as the
// holder to which the caller passes the result of hold.
func (m *Metrics) hold(rules []*rules) []*meter.Policy {
	if m == nil {
		return nil
	}
	m.made()
	m.mu.Lock()
	defer m.mu.Unlock()
	held := make([]*meter.Policy, len(rules))
	for i, r := range rules {
		p := m.policies[r.Name]
		if p == nil {
			p = meter.New(r.Name, m.exemplar, &countedWords, m.hosts)
			m.policies[r.Name] = p
		}
		p.Holders++
		r.Metrics, held[i] = p, p
	}
	return held
}

// swap replaces what h holds by held. It drops the counters that no holder has
// any more.
func (m *Metrics) swap(h *holder, held []*meter.Policy) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	held, h.held = h.held, held
	for _, p := range held {
		if p.Holders--; p.Holders == 0 {
			m.drop(p)
		}
	}
}

func (m *Metrics) drop(p *meter.Policy) {
	if p.Name != defaultName && m.policies[p.Name] == p {
		delete(m.policies, p.Name)
	}
}

// exemplar returns the labels of an exemplar, or nil for none.
func (m *Metrics) exemplar(ctx context.Context) prometheus.Labels {
	if m.Exemplar == nil {
		return nil
	}
	labels := m.Exemplar(ctx)
	if len(labels) == 0 {
		return nil
	}
	// A histogram would panic on labels that are invalid here.
	blank := prometheus.MustNewConstMetric(m.pauses, prometheus.CounterValue, 0, "")
	if _, err := prometheus.NewMetricWithExemplars(blank, prometheus.Exemplar{Labels: labels}); err != nil {
		return nil
	}
	return labels
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.made()
	for _, d := range []*prometheus.Desc{m.requests, m.unattempted, m.attempts, m.retries, m.giveUps, m.sends, m.fleetChecks, m.hedges, m.hedgeSkips, m.transitions, m.pauses, m.resumes, m.resumedBytes, m.stalls, m.waits, m.gateWaits} {
		ch <- d
	}
	if m.hosts != nil {
		ch <- m.durations
		ch <- m.tries
	}
	for _, d := range m.gauges {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.made()
	m.mu.Lock()
	m.tidy()
	policies := make([]*meter.Policy, 0, len(m.policies))
	for _, p := range m.policies {
		policies = append(policies, p)
		if p.Holders == 0 {
			// Its last Transport is garbage. This scrape still exports what that
			// Transport has counted since the last one.
			m.drop(p)
		}
	}
	holders := slices.Clone(m.holders)
	m.mu.Unlock()

	sums := map[string]*[meter.Gauges]float64{}
	for _, h := range holders {
		if t := h.transport.Value(); t != nil {
			t.addHosts(sums)
		}
	}
	for _, p := range policies {
		m.collect(ch, p, sums[p.Name])
	}
}

// addHosts adds up what t knows about hosts in trouble, by policy.
func (t *Transport) addHosts(sums map[string]*[meter.Gauges]float64) {
	of := func(policy string) *[meter.Gauges]float64 {
		if sums[policy] == nil {
			sums[policy] = new([meter.Gauges]float64)
		}
		return sums[policy]
	}
	t.hedgeDelays(func(policy string, delay time.Duration) {
		of(policy)[gaugeHedge] = max(of(policy)[gaugeHedge], delay.Seconds())
	})
	for _, state := range t.HostStates() {
		sum := of(state.Policy)
		if state.Failed > 0 {
			sum[gaugeFailing]++
		}
		if !state.Held {
			continue
		}
		sum[gaugeTroubled]++
		sum[gaugeMissing] += state.Size - state.Tokens
		sum[gaugeWaiting] += float64(state.Waiting)
		if state.PausedFor > 0 {
			sum[gaugePaused]++
		}
		if state.Breaker != BreakerClosed {
			sum[gaugeOpen]++
		}
	}
}

// collect reports the series of p: the outcomes of its requests, and every
// other series that has ever been above zero.
func (m *Metrics) collect(ch chan<- prometheus.Metric, p *meter.Policy, sum *[meter.Gauges]float64) {
	counter := func(desc *prometheus.Desc, n uint64, labels ...string) {
		if n > 0 {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), append([]string{p.Name}, labels...)...)
		}
	}
	var plain uint64
	for i, name := range meter.Results {
		n := p.Results[i].Load()
		if i < len(p.Plain) {
			answered := p.Plain[i].Load()
			plain += answered
			n += answered
		}
		counter(m.attempts, n, name)
	}
	for i, name := range meter.Outcomes {
		n := p.Outcomes[i].Load()
		if i == meter.Answered {
			n += plain
		}
		ch <- prometheus.MustNewConstMetric(m.requests, prometheus.CounterValue, float64(n), p.Name, name)
	}
	counter(m.unattempted, p.Unattempted.Load())
	for i, reason := range retryReasons {
		counter(m.retries, p.Retries[i].Load(), string(reason))
	}
	m.collectGiveUps(ch, p)
	for i, result := range meter.FleetResults {
		counter(m.fleetChecks, p.FleetChecks[i].Load(), result)
	}
	for i, result := range meter.HedgeResults {
		counter(m.hedges, p.Hedges[i].Load(), result)
	}
	for i, reason := range meter.HedgeSkips {
		counter(m.hedgeSkips, p.HedgeSkips[i].Load(), reason)
	}
	for i, state := range breaker.Names {
		counter(m.transitions, p.Transitions[i].Load(), state)
	}
	counter(m.sends, p.Sends.Load())
	counter(m.pauses, p.Pauses.Load())
	for i, result := range resumeResults {
		counter(m.resumes, p.Resumes[i].Load(), string(result))
	}
	counter(m.resumedBytes, p.ResumedBytes.Load())
	counter(m.stalls, p.Stalls.Load())
	p.Waits.Collect(ch)
	p.WaitsOfServer.Collect(ch)
	p.GateWaits.Collect(ch)
	p.CollectRequests(ch)
	m.collectGauges(ch, p, sum)
}

// collectGauges reports the gauges of p that have ever been above zero. sum is nil if all
// are zero.
func (m *Metrics) collectGauges(ch chan<- prometheus.Metric, p *meter.Policy, sum *[meter.Gauges]float64) {
	for i, desc := range m.gauges {
		var v float64
		if sum != nil {
			v = sum[i]
		}
		if v != 0 {
			p.Gauged[i].Store(true)
		}
		if p.Gauged[i].Load() {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, p.Name)
		}
	}
}

func (m *Metrics) collectGiveUps(ch chan<- prometheus.Metric, p *meter.Policy) {
	for i, reason := range giveUpReasons {
		n := p.GiveUps[i].Load()
		if n == 0 {
			continue
		}
		metric := prometheus.MustNewConstMetric(m.giveUps, prometheus.CounterValue, float64(n), p.Name, string(reason))
		if e := p.GiveUpExemplars[i].Load(); e != nil {
			metric = prometheus.MustNewMetricWithExemplars(metric, *e)
		}
		ch <- metric
	}
}

// The gauges, which each scrape computes from the hosts in trouble.
const (
	gaugeOpen = iota
	gaugeMissing
	gaugeTroubled
	gaugeWaiting
	gaugePaused
	gaugeFailing
	gaugeHedge
)

var (
	retryReasons  = []Reason{ReasonServerError, ReasonThrottled, ReasonStatus, ReasonTimeout, ReasonError, ReasonHiddenSends}
	giveUpReasons = []Reason{ReasonMaxAttempts, ReasonNotIdempotent, ReasonBodyNotReplayable, ReasonRetryForbidden, ReasonWaitTooLong, ReasonHostPaused,
		ReasonDeadline, ReasonBreakerOpen, ReasonBudgetExhausted, ReasonRetriesFailing, ReasonFleetBudget, ReasonHiddenSends, ReasonCanceled}

	// The results for a response body that has broken: continued, or the reason
	// why not.
	resumeResults = append([]Reason{exchange.Continued, resume.RefusedMethod, resume.RefusedStatus, resume.RefusedEncoded, resume.RefusedMultipart, resume.RefusedTrailers, resume.RefusedLength,
		resume.RefusedRanges, resume.RefusedValidator, resume.RefusedContentRange, resume.RefusedChanged, resume.RefusedCost, resume.RefusedProgress, resume.RefusedError}, giveUpReasons...)
)

var countedWords = meter.Words{Retries: texts(retryReasons), GiveUps: texts(giveUpReasons), Resumes: texts(resumeResults)}

func texts(reasons []Reason) []string {
	texts := make([]string, len(reasons))
	for i, reason := range reasons {
		texts[i] = string(reason)
	}
	return texts
}
