// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/backoff"
	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/dialect"
	"github.com/retrip/retrip/internal/exchange"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/meter"
	"github.com/retrip/retrip/internal/tell"
)

// TestCompatibility_Words lists the names on which alerts, dashboards and
// policies depend: see docs/promises.md. A line may be added. Before v1, a
// line may also change, with a line in the changelog.
//
//retrip:promise P19
func TestCompatibility_Words(t *testing.T) {
	metrics := &Metrics{}
	countEverything(metrics)
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	families, err := registry.Gather()
	require.NoError(t, err)
	var got []string
	for _, family := range families {
		var line strings.Builder
		fmt.Fprintf(&line, "%s %s", family.GetName(), strings.ToLower(family.GetType().String()))
		labels := map[string][]string{}
		var names []string
		for _, m := range family.GetMetric() {
			for _, pair := range m.GetLabel() {
				if labels[pair.GetName()] == nil {
					names = append(names, pair.GetName())
				}
				labels[pair.GetName()] = append(labels[pair.GetName()], pair.GetValue())
			}
		}
		for _, name := range names {
			if name != "policy" {
				fmt.Fprintf(&line, " %s=%v", name, labels[name])
			}
		}
		assert.Contains(t, names, "policy", family.GetName())
		if family.GetType().String() == "HISTOGRAM" {
			assert.NotEmpty(t, family.GetMetric()[0].GetHistogram().GetBucket(), "also for those without native histograms")
		}
		got = append(got, line.String())
	}
	assert.Equal(t, []string{
		"retrip_attempts_total counter result=[1xx 2xx 3xx 429 4xx 5xx canceled error other superseded timeout]",
		"retrip_body_resumed_bytes_total counter",
		"retrip_body_resumes_total counter result=[body_not_replayable breaker_open budget_exhausted canceled changed content_range continued deadline " +
			"encoded error fleet_budget hidden_sends host_paused max_attempts method multipart no_progress no_ranges no_validator not_idempotent retries_failing retry_forbidden status " +
			"too_much trailers unknown_length wait_too_long]",
		"retrip_body_stalls_total counter",
		"retrip_breaker_open_hosts gauge",
		"retrip_breaker_transitions_total counter to=[closed half-open open]",
		"retrip_budget_tokens_missing gauge",
		"retrip_failing_hosts gauge",
		"retrip_fleet_checks_total counter result=[allowed forbidden unknown]",
		"retrip_gate_wait_seconds histogram",
		"retrip_gate_waiting_requests gauge",
		"retrip_give_ups_total counter reason=[body_not_replayable breaker_open budget_exhausted canceled deadline fleet_budget hidden_sends host_paused " +
			"max_attempts not_idempotent retries_failing retry_forbidden wait_too_long]",
		"retrip_hedge_delay_seconds gauge",
		"retrip_hedges_skipped_total counter reason=[breaker fleet gate low_rate paused spent tokens]",
		"retrip_hedges_total counter result=[failed lost won]",
		"retrip_hidden_sends_total counter",
		"retrip_hosts_in_trouble gauge",
		"retrip_paused_hosts gauge",
		"retrip_pauses_total counter",
		"retrip_requests_total counter outcome=[answered canceled failed gave_up recovered]",
		"retrip_retries_total counter reason=[error hidden_sends pending server_error status throttled timeout]",
		"retrip_unattempted_requests_total counter",
		"retrip_wait_seconds histogram source=[backoff server]",
	}, got)
	assert.Subset(t, dialect.Names(), []string{
		"anthropic", "azure", "discord", "github", "openai", "ratelimit", "retry-after-ms", "shopify", "should-retry", "stripe",
		"x-amz-retry-after", "x-ms-retry-after-ms", "x-ratelimit-reset",
	})
}

// countEverything makes every series of the policy "x" appear.
func countEverything(m *Metrics) {
	r := &rules{Config: exchange.Config{Policy: tell.Policy{Name: "x"}}}
	m.count(&Transport{}, nil, []*rules{r})
	p := r.Metrics
	for i := range meter.Results {
		p.Count(meter.Attempts, i, 1)
	}
	for i := range meter.Outcomes {
		p.Request(i, false)
	}
	for _, reason := range retryReasons {
		p.Retry(context.Background(), string(reason), time.Second, reason == ReasonThrottled)
	}
	for _, reason := range giveUpReasons {
		p.GiveUp(context.Background(), string(reason))
	}
	for i := range meter.HedgeResults {
		p.Count(meter.Hedges, i, 1)
	}
	for i := range meter.HedgeSkipReasons {
		p.Count(meter.HedgeSkips, i, 1)
	}
	p.WaitedAtGate(context.Background(), time.Second)
	p.Count(meter.Sends, 0, 1)
	p.AskedFleet(false, true)
	p.AskedFleet(true, true)
	p.AskedFleet(false, false)
	for _, result := range resumeResults {
		p.Resumed(string(result), 1)
	}
	p.Stalled()
	p.HostChanged(host.Paused | host.Opened | host.Probed | host.Closed)
	for i := range p.Gauged {
		p.Gauged[i].Store(true)
	}
}

func TestREADME_NamesEveryField(t *testing.T) {
	readme, policy, metrics, runbook := mustRead(t, "README.md"), mustRead(t, "docs/policy.md"), mustRead(t, "docs/metrics.md"), mustRead(t, "docs/runbook.md")
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Policy]()) {
		assert.True(t, strings.Contains(policy, "| `"+f.Name+"` |"), "docs/policy.md has no row for %s in the table of defaults", f.Name)
	}
	for _, reason := range giveUpReasons {
		assert.True(t, strings.Contains(runbook, "| `"+string(reason)+"` |"), "docs/runbook.md has no row for %s", reason)
	}
	for _, reason := range retryReasons {
		assert.True(t, strings.Contains(metrics, "`"+string(reason)+"`"), "docs/metrics.md doesn't name %s", reason)
	}
	names := metricNames(t, &Metrics{})
	for _, name := range regexp.MustCompile(`retrip_[a-z_]+`).FindAllString(readme+policy+runbook, -1) {
		assert.Contains(t, names, name)
	}
}

func metricNames(t *testing.T, m *Metrics) string {
	t.Helper()
	descs := make(chan *prometheus.Desc, 100)
	m.Describe(descs)
	close(descs)
	var names []string
	for d := range descs {
		names = append(names, d.String())
	}
	return strings.Join(names, "\n")
}

// Package decide knows none of the exported types. Its reasons, verdicts and jitters
// are the exported ones all the same.
func TestReason_LikeDecide(t *testing.T) {
	var words []Reason
	for r := decide.None + 1; r < decide.Reasons; r++ {
		words = append(words, wordOf(r))
	}
	all := slices.Concat(retryReasons, giveUpReasons)
	slices.Sort(all)
	slices.Sort(words)
	assert.Equal(t, slices.Compact(all), words)
	assert.Equal(t, []Verdict{ByRule, Retryable, Final, Unprocessed},
		[]Verdict{Verdict(decide.ByRule), Verdict(decide.Retryable), Verdict(decide.Final), Verdict(decide.Unprocessed)})
	assert.Equal(t, []Jitter{FullJitter, EqualJitter, DecorrelatedJitter, NoJitter},
		[]Jitter{Jitter(backoff.Full), Jitter(backoff.Equal), Jitter(backoff.Decorrelated), Jitter(backoff.None)})
}
