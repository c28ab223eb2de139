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
	"github.com/retrip/retrip/internal/download"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/meter"
	"github.com/retrip/retrip/internal/resume"
)

// The names and help of all metrics are in make, below. Package meter counts, without knowing
// Prometheus' registry; tell.Teller says when: Sending counts a retry, Step an attempt that has
// ended, and Done the request. Collect reads what is counted, and the state of hosts.

// Metrics counts what Transports do, and is a [prometheus.Collector] to register. One
// Metrics may serve many Transports. The label policy is the pattern in
// Transport.Hosts that a request follows, in lower case, or "default". No label
// ever holds a path or error from a request, or a host that isn't in Durations.
// Counting can't fail and, without Durations, allocates nothing. docs/metrics.md
// says what each metric counts and when its series appear and disappear. The zero
// Metrics is ready to use. All methods are safe for concurrent use. A Metrics must not
// be copied, nor its fields changed after the first use, such as its registration.
type Metrics struct {
	// Exemplar, if not nil, returns the labels of an exemplar for a request with the
	// given context, such as the trace_id of its span, or nil for none. It is called
	// for retries, waits at gates and give-ups; labels that Prometheus would reject
	// are dropped. It must be safe for concurrent use.
	Exemplar func(context.Context) prometheus.Labels

	// Durations, if not nil, adds the histograms retrip_request_duration_seconds and
	// retrip_request_attempts, for two readings of the clock. The values of their label
	// host are these names, such as "api.example.com", and "other".
	Durations []string

	once sync.Once // initializes the fields below, on first use

	families [meter.Families]*prometheus.Desc
	words    meter.Words
	gauges   [meter.Gauges]*prometheus.Desc
	hosts    *meter.Hosts // nil without Durations

	mu       sync.Mutex
	made     bool     // make has run
	timed    []string // Durations then
	policies map[string]*meter.Policy
	holders  []*holder
	tidyAt   int // number of holders at which count removes those of dead Transports
}

// holder is a Transport as its Metrics knows it.
type holder struct {
	transport weak.Pointer[Transport]
	held      []*meter.Policy // of its policies; guarded by Metrics.mu
}

func (m *Metrics) make() {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("retrip_"+name, help, append([]string{"policy"}, labels...), nil)
	}
	count := func(family int, name, help string) {
		m.families[family], m.words[family] = desc(name, help), []string{""}
	}
	countBy := func(family int, name, help, label string, values []string) {
		m.families[family], m.words[family] = desc(name, help, label), values
	}
	countBy(meter.Requests, "requests_total", "Requests that ended, by outcome: answered at the first attempt, recovered by a retry, gave_up, failed in a way that no retry can fix, canceled by the caller.", "outcome", meter.Outcomes)
	count(meter.Unattempted, "unattempted_requests_total", "Requests that ended before their first attempt.")
	countBy(meter.Attempts, "attempts_total", "Attempts that ended, by result: the class of the status, 429, timeout, canceled, error, or superseded by the other attempt of a hedge.", "result", meter.Results)
	countBy(meter.Retries, "retries_total", "Retries sent, by reason.", "reason", texts(retryReasons))
	countBy(meter.GiveUps, "give_ups_total", "Requests given up although a retry might have helped, by reason.", "reason", texts(giveUpReasons))
	count(meter.Sends, "hidden_sends_total", "Times that net/http by itself sent a request again within an attempt, where observable.")
	countBy(meter.FleetChecks, "fleet_checks_total", "Retries that asked the fleet's account, by its answer: allowed, forbidden, or unknown, when the budget decides alone.", "result", meter.FleetResults)
	countBy(meter.Hedges, "hedges_total", "Hedges sent, by result: won if the request got its answer from the hedge, lost if from the other attempt, failed if the hedge failed.", "result", meter.HedgeResults)
	countBy(meter.HedgeSkips, "hedges_skipped_total", "Requests that were late without getting a hedge, by reason.", "reason", meter.HedgeSkipReasons)
	countBy(meter.Transitions, "breaker_transitions_total", "State changes of host breakers, by new state.", "to", breaker.Names[:])
	count(meter.Pauses, "pauses_total", "Times that the pause of a host began or grew, because it asked all clients to wait or, at a gate, refused one.")
	countBy(meter.Resumes, "body_resumes_total", "Response bodies that broke while being read with Policy.Resume, by result: continued, or the reason why not.", "result", texts(resumeResults))
	count(meter.ResumedBytes, "body_resumed_bytes_total", "Bytes of continued response bodies that did not have to be sent again.")
	count(meter.Stalls, "body_stalls_total", "Response bodies that made no progress for Policy.BodyIdleTimeout.")
	m.gauges = [meter.Gauges]*prometheus.Desc{
		meter.GaugeOpen:     desc("breaker_open_hosts", "Hosts whose breaker is open or half-open."),
		meter.GaugeMissing:  desc("budget_tokens_missing", "Tokens missing from the budgets of all hosts together."),
		meter.GaugeTroubled: desc("hosts_in_trouble", "Hosts with tokens missing, with a pause in effect, or with failures that their breaker counts."),
		meter.GaugeWaiting:  desc("gate_waiting_requests", "Requests waiting at the gates of all hosts together."),
		meter.GaugePaused:   desc("paused_hosts", "Hosts to which requests are held back, at the request of the host or by a gate."),
		meter.GaugeFailing:  desc("failing_hosts", "Hosts at which a request failed in the last five minutes, for whatever reason."),
		meter.GaugeHedge:    desc("hedge_delay_seconds", "Delay after which a request gets a hedge, the longest of all hosts."),
	}
	m.hosts, _ = meter.NewHosts(m.Durations) // Transport.Validate tells of mistakes
	m.policies = map[string]*meter.Policy{}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made, m.timed = true, slices.Clone(m.Durations)
}

// count gives each of the rules, which are those of t from now on, its counters, and
// drops the counters that no Transport has any more. It also includes t's hosts in what
// m reports, as long as t is reachable. h is what the last call for t has returned.
func (m *Metrics) count(t *Transport, h *holder, rules []*rules) *holder {
	m.once.Do(m.make)
	m.mu.Lock()
	defer m.mu.Unlock()
	if h == nil {
		if len(m.holders) >= m.tidyAt {
			m.tidy()
			m.tidyAt = 2*len(m.holders) + 16
		}
		h = &holder{transport: weak.Make(t)}
		m.holders = append(m.holders, h)
	}
	before := h.held
	h.held = make([]*meter.Policy, len(rules))
	for i, r := range rules {
		p := m.policies[r.Name]
		if p == nil {
			p = meter.New(r.Name, m.exemplar, &m.words, m.hosts)
			m.policies[r.Name] = p
		}
		p.Holders++
		r.Metrics, h.held[i] = p, p
		p.Show(r.Breaker != nil, r.Gated, t.Fleet != nil && r.Fleet > 0, r.Hedge.Share > 0, r.Resume > 0, r.BodyIdleTimeout > 0)
		r.Plain = r.Plain && !p.Timed()
	}
	for _, p := range before {
		if p.Holders--; p.Holders == 0 {
			m.drop(p)
		}
	}
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
	blank := prometheus.MustNewConstMetric(m.families[meter.Pauses], prometheus.CounterValue, 0, "")
	if _, err := prometheus.NewMetricWithExemplars(blank, prometheus.Exemplar{Labels: labels}); err != nil {
		return nil
	}
	return labels
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.once.Do(m.make)
	for _, d := range m.families {
		ch <- d
	}
	meter.DescribeHistograms(ch, m.hosts)
	for _, d := range m.gauges {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.once.Do(m.make)
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
			t.addHosts(m, sums)
		}
	}
	for _, p := range policies {
		m.collect(ch, p, sums[p.Name])
	}
}

// addHosts adds up what t knows about hosts in trouble, by policy, if t counts with m.
func (t *Transport) addHosts(m *Metrics, sums map[string]*[meter.Gauges]float64) {
	of := func(policy string) *[meter.Gauges]float64 {
		if sums[policy] == nil {
			sums[policy] = new([meter.Gauges]float64)
		}
		return sums[policy]
	}
	s := t.settings.Load()
	if s == nil || s.err != nil || s.counting != m {
		return
	}
	t.tables.Hedges.All(func(key hostkey.Key, delay time.Duration) {
		if r := s.of(key); r != nil && r.Hedge.Share > 0 {
			sum := of(r.Name)
			sum[meter.GaugeHedge] = max(sum[meter.GaugeHedge], delay.Seconds())
		}
	})
	for _, state := range t.hostStates(s) {
		sum := of(state.Policy)
		if state.Failed > 0 {
			sum[meter.GaugeFailing]++
		}
		if !state.Held {
			continue
		}
		sum[meter.GaugeTroubled]++
		sum[meter.GaugeMissing] += state.Size - state.Tokens
		sum[meter.GaugeWaiting] += float64(state.Waiting)
		if state.PausedFor > 0 {
			sum[meter.GaugePaused]++
		}
		if state.Breaker != BreakerClosed {
			sum[meter.GaugeOpen]++
		}
	}
}

// collect reports the series of p: all of a family that its policy may count, or that has
// counted anything. sum is nil if all gauges are zero.
func (m *Metrics) collect(ch chan<- prometheus.Metric, p *meter.Policy, sum *[meter.Gauges]float64) {
	for family, desc := range m.families {
		if !p.Shown[family].Load() {
			if !p.Counted(family) {
				continue
			}
			p.Shown[family].Store(true)
		}
		for i, value := range m.words[family] {
			n, exemplar := p.Load(family, i)
			labels := []string{p.Name, value}
			if value == "" {
				labels = labels[:1]
			}
			metric := prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
			if exemplar != nil {
				metric = prometheus.MustNewMetricWithExemplars(metric, *exemplar)
			}
			ch <- metric
		}
	}
	p.CollectHistograms(ch)
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

var (
	retryReasons  = []Reason{ReasonServerError, ReasonThrottled, ReasonStatus, ReasonPending, ReasonTimeout, ReasonError, ReasonHiddenSends}
	giveUpReasons = []Reason{ReasonMaxAttempts, ReasonNotIdempotent, ReasonBodyNotReplayable, ReasonRetryForbidden, ReasonWaitTooLong, ReasonHostPaused,
		ReasonDeadline, ReasonBreakerOpen, ReasonBudgetExhausted, ReasonRetriesFailing, ReasonFleetBudget, ReasonHiddenSends, ReasonCanceled}

	// The results for a response body that has broken: continued, or the reason
	// why not.
	resumeResults = append([]Reason{download.Continued, resume.RefusedMethod, resume.RefusedStatus, resume.RefusedEncoded, resume.RefusedMultipart, resume.RefusedTrailers, resume.RefusedLength,
		resume.RefusedRanges, resume.RefusedValidator, resume.RefusedContentRange, resume.RefusedChanged, resume.RefusedCost, resume.RefusedProgress, resume.RefusedError}, giveUpReasons...)
)

func texts(reasons []Reason) []string {
	texts := make([]string, len(reasons))
	for i, reason := range reasons {
		texts[i] = string(reason)
	}
	return texts
}
