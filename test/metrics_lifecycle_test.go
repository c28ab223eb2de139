// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

type sums = play.Sums

// counts returns the counts of the default policy, which has no requests in flight. It
// checks the identities of docs/metrics.md.
func counts(t *testing.T, m *retrip.Metrics) sums {
	t.Helper()
	s := gather(t, m)["default"]
	attempts := s["requests_total"] - s["unattempted_requests_total"] + s["retries_total"] + s["hedges_total"]
	assert.Equal(t, attempts, s["attempts_total"], "attempts = requests - unattempted + retries + hedges")
	assert.Equal(t, s["requests_total gave_up"]+s["requests_total canceled"], s["give_ups_total"], "give-ups = requests that gave up or were canceled")
	assert.Equal(t, s["requests_total canceled"], s["give_ups_total canceled"])
	assert.Equal(t, s["retries_total"], s["wait_seconds"], "each retry has one wait")
	assert.LessOrEqual(t, s["requests_total recovered"], s["retries_total"])
	return s
}

// policiesOf returns the policies that have series in m.
func policiesOf(t *testing.T, m *retrip.Metrics) []string {
	t.Helper()
	return slices.Sorted(maps.Keys(gather(t, m)))
}

// What a policy may count is there, at zero, from the first scrape on, and is bounded.
func TestMetrics_SeriesFromTheFirstScrapeOn(t *testing.T) {
	always := []string{"attempts_total", "budget_tokens_missing", "failing_hosts", "give_ups_total", "hidden_sends_total", "hosts_in_trouble",
		"paused_hosts", "pauses_total", "requests_total", "retries_total", "unattempted_requests_total"}
	for _, tt := range []struct {
		name   string
		policy retrip.Policy
		more   []string
		series int
	}{
		{"default", retrip.Policy{}, nil, 43},
		{"breaker", retrip.Policy{Breaker: retrip.Breaker{MinVolume: 10}}, []string{"breaker_open_hosts", "breaker_transitions_total"}, 47},
		{"gate", retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}}, []string{"gate_waiting_requests"}, 44},
		{"hedge", retrip.Policy{Hedge: 0.05}, []string{"hedges_total", "hedges_skipped_total"}, 53},
		{"resume", retrip.Policy{Resume: time.Minute}, []string{"body_resumes_total", "body_resumed_bytes_total"}, 71},
		{"idle", retrip.Policy{BodyIdleTimeout: time.Minute}, []string{"body_stalls_total"}, 44},
		{"fleet", retrip.Policy{FleetBudget: 100}, []string{"fleet_checks_total"}, 46},
		{"all but the delay of hedges", retrip.Policy{Breaker: retrip.Breaker{MinVolume: 10}, Gate: retrip.Gate{Enabled: retrip.On}, Hedge: 0.05, Resume: time.Minute, BodyIdleTimeout: time.Minute, FleetBudget: 100},
			[]string{"breaker_open_hosts", "breaker_transitions_total", "gate_waiting_requests", "hedges_total", "hedges_skipped_total", "body_resumes_total", "body_resumed_bytes_total", "body_stalls_total", "fleet_checks_total"}, 90},
	} {
		testenv.Bubble(t, tt.name, func(t *testing.T) {
			m := &retrip.Metrics{}
			tr := &retrip.Transport{Base: play.Base(play.Reply(503), play.Reply(200)), Metrics: m, Policy: retrip.Policy{FleetBudget: retrip.Off}, Hosts: map[string]retrip.Policy{"example.com": tt.policy}}
			tr.Fleet = retrip.NewFleet(nil)
			assert.Zero(t, testutil.CollectAndCount(m))
			require.NoError(t, tr.Validate())
			assert.Equal(t, 43+tt.series, testutil.CollectAndCount(m))
			families := map[string]bool{}
			for name, sum := range gather(t, m)["example.com"] {
				assert.Zero(t, sum, name)
				name, _, _ = strings.Cut(name, " ")
				families[name] = true
			}
			assert.ElementsMatch(t, slices.Concat(always, tt.more), slices.Collect(maps.Keys(families)))
			resp, err := tr.RoundTrip(play.Request(t, "GET", nil))
			require.NoError(t, err)
			play.Finish(t, resp)
			runtime.KeepAlive(tr)
		})
	}
}

// Without a gate, a pause is shown while it holds back others: not after a good answer.
//
//retrip:promise P9
func TestMetrics_PartlyPaused(t *testing.T) {
	for name, policy := range map[string]retrip.Policy{"plain": {MaxAttempts: 1}, "retried": {}} {
		play.Bubble(t, name, func(t *testing.T) {
			m, log := &retrip.Metrics{}, strings.Builder{}
			var n atomic.Int32
			tr := &retrip.Transport{Policy: policy, Metrics: m, Logger: slog.New(slog.NewTextHandler(&log, nil)), Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				time.Sleep(10 * time.Millisecond)
				if n.Add(1)%10 == 3 {
					return play.Reply(503, "Retry-After: 20")(r)
				}
				return play.Reply(200)(r)
			})}
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() { try(tr, play.Request(t, "GET", nil)) })
				time.Sleep(time.Second)
				if n.Load()%10 == 3 {
					continue // the last word may be that of the whole host
				}
				s := play.Must(tr.HostState("example.com:80"))
				assert.Zero(t, s.PausedFor)
				assert.Equal(t, s.Tokens < s.Size, s.Held, "a retry may have taken tokens")
				assert.Zero(t, gather(t, m)["default"]["paused_hosts"])
			}
			wg.Wait()
			assert.Equal(t, 1.0, gather(t, m)["default"]["pauses_total"], "the first: no good answer was known yet")
			assert.Equal(t, 1, strings.Count(log.String(), "change=paused"))
		})
	}
}

// When the last Transport loses a pattern, its series disappear at once, even
// with requests in flight. They start from zero when the pattern returns.
func TestMetrics_PatternsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &retrip.Metrics{}
		hosts := func(names ...string) map[string]retrip.Policy {
			all := map[string]retrip.Policy{}
			for _, name := range names {
				all[name] = retrip.Policy{}
			}
			return all
		}
		has := func(names ...string) { t.Helper(); assert.Equal(t, append(names, "default"), policiesOf(t, m)) }
		set := func(tr *retrip.Transport, names ...string) {
			t.Helper()
			require.NoError(t, tr.SetPolicies(retrip.Policy{}, hosts(names...)))
		}
		slow := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			time.Sleep(time.Second)
			return play.Reply(503)(r)
		})
		one := &retrip.Transport{Base: slow, Metrics: m, Hosts: hosts("a.test", "b.test")}
		two := &retrip.Transport{Base: slow, Metrics: m, Hosts: hosts("B.test", "c.test")}
		one.HostStates()
		two.HostStates()
		has("a.test", "b.test", "c.test")

		done := make(chan struct{})
		go func() {
			defer close(done)
			drop(t, one, play.MustRequest(t, "GET", "http://a.test/", nil))
		}()
		time.Sleep(1500 * time.Millisecond)
		set(one, "d.test")
		has("b.test", "c.test", "d.test") // two still has b.test
		<-done
		has("b.test", "c.test", "d.test") // nothing comes back

		require.Error(t, two.SetPolicies(retrip.Policy{}, map[string]retrip.Policy{"good.test": {}, "x.test": {MaxAttempts: -1}}))
		has("b.test", "c.test", "d.test") // refused policies change nothing
		set(two)
		has("d.test")

		for range 1000 {
			set(two, "a.test")
		}
		assert.Zero(t, gather(t, m)["a.test"]["attempts_total"])
		set(two)
		has("d.test")
		runtime.KeepAlive(one)
		runtime.KeepAlive(two)
	})
}

// Metrics doesn't keep a Transport alive. The counts of one that has become garbage appear
// in one more scrape.
//
//retrip:promise P13
func TestMetrics_PatternsOfGarbage(t *testing.T) {
	m := &retrip.Metrics{}
	var transport weak.Pointer[retrip.Transport]
	func() {
		tr := &retrip.Transport{Base: play.Base(play.Reply(200)), Metrics: m, Hosts: map[string]retrip.Policy{"example.com": {}}}
		transport = weak.Make(tr)
		play.Finish(t, do(t, tr, play.Request(t, "GET", nil)))
		assert.Equal(t, []string{"default", "example.com"}, policiesOf(t, m))
		runtime.KeepAlive(tr)
	}()
	for range 100 {
		// When GC returns, the weak pointers to all garbage are nil. Cleanups may run
		// at any time after that.
		if runtime.GC(); transport.Value() == nil {
			assert.Equal(t, 1.0, gather(t, m)["example.com"]["requests_total answered"])
			assert.Equal(t, []string{"default"}, policiesOf(t, m))
			return
		}
	}
	t.Error("a Transport is kept alive by its Metrics")
}

// exemplars returns the metrics that have an exemplar.
func exemplars(t *testing.T, m *retrip.Metrics) (names []string) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(m))
	for _, family := range play.Must(registry.Gather()) {
		if text := family.String(); strings.Contains(text, "exemplar:") {
			assert.Contains(t, text, "4bf92f35")
			names = append(names, family.GetName())
		}
	}
	return names
}

func TestMetrics_Exemplar(t *testing.T) {
	type spanKey struct{}
	with := func(labels prometheus.Labels) *retrip.Metrics {
		m := &retrip.Metrics{Exemplar: func(ctx context.Context) prometheus.Labels {
			span, _ := ctx.Value(spanKey{}).(prometheus.Labels)
			return span
		}}
		tr := &retrip.Transport{Base: play.Base(play.Reply(503)), Metrics: m, Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}}}
		req := play.Request(t, "GET", nil)
		play.Finish(t, do(t, tr, req.WithContext(context.WithValue(req.Context(), spanKey{}, labels))))
		return m
	}
	assert.Equal(t, []string{"retrip_give_ups_total", "retrip_wait_seconds"}, exemplars(t, with(prometheus.Labels{"trace_id": "4bf92f35"})))
	for _, labels := range []prometheus.Labels{nil, {}, {"trace_id": strings.Repeat("x", 200)}, {"trace_id": "\xff"}, {"": "x"}} {
		assert.Empty(t, exemplars(t, with(labels)), "%q", labels)
	}
}
