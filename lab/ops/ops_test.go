// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"bytes"
	"maps"
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestQueries_TellWhatTheProgramDid lets Prometheus scrape a program under load
// and runs every query of the alerts and the dashboard, once with
// classic histograms and once with native ones.
//
//retrip:promise P19
func TestQueries_TellWhatTheProgramDid(t *testing.T) {
	queries := allQueries(t)
	var names []string
	for _, q := range queries {
		names = append(names, q.name)
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(expected)), names, "each query has an expected answer, and the other way round")

	// A histogram starts when it is first used, and its first value is part of no
	// rate. So everything happens once before the first scrape that counts.
	p := newProgram(t)
	p.run(t)
	servers := map[string]*server{"classic": startServer(t, p.metrics.URL)}
	if help, err := exec.Command(find(t, "prometheus"), "--help").CombinedOutput(); err == nil && bytes.Contains(help, []byte("native-histograms")) {
		servers["native"] = startServer(t, p.metrics.URL, "--enable-feature=native-histograms")
	} else {
		t.Log("this Prometheus has no native histograms")
	}
	for _, s := range servers {
		s.waitFor(t, `count(retrip_requests_total)`, float64(5*len(p.known())))
		s.waitFor(t, `sum(retrip_requests_total)`, (&answers{known: p.known()}).total("requests", ""))
	}
	p.run(t)

	a := &answers{known: p.known(), waits: p.waits}
	for kind, s := range servers {
		t.Run(kind, func(t *testing.T) {
			at := s.waitFor(t, `sum(retrip_requests_total)`, runs*a.total("requests", ""))
			a.rate = s.query(t, `sum(rate(retrip_requests_total[5m]))`, at)[""] / a.total("requests", "")
			require.Positive(t, a.rate)
			waits := float64(len(slices.Concat(slices.Collect(maps.Values(a.waits))...)))
			require.Equal(t, a.total("retries", ""), waits, "each retry has one wait")
			a.waitRate = a.rate
			if kind == "native" {
				require.Equal(t, runs*waits, s.query(t, `sum(histogram_count(retrip_wait_seconds))`, at)[""])
				a.waitRate = s.query(t, `sum(histogram_count(rate(retrip_wait_seconds[5m])))`, at)[""] / waits
				require.InDelta(t, 1.1, a.waitRate/a.rate, 0.2)
			}
			assert.Equal(t, kind == "native", len(s.query(t, `count(retrip_wait_seconds)`, at)) > 0, "native histograms")
			assert.Equal(t, kind == "classic", len(s.query(t, `count(retrip_wait_seconds_bucket)`, at)) > 0, "classic histograms")
			for _, q := range queries {
				compare(t, q, expected[q.name](a), s.query(t, q.expr, at), kind == "native")
			}
			checkPages(t, s, at)
			checkRules(t, s, a)
		})
	}
}

// waitFor waits until expr has the single value want, and returns the time of
// the newest scrape. Queries as of that time always have the same answer,
// whereas a scrape of the current moment may still be on its way into the
// database.
func (s *server) waitFor(t *testing.T, expr string, want float64) (at time.Time) {
	t.Helper()
	var got vector
	if !assert.Eventually(t, func() bool {
		got = s.query(t, expr, time.Now())
		return got[""] == want
	}, 30*time.Second, 100*time.Millisecond) {
		require.FailNow(t, "no such answer", "%s is %v, not %v", expr, got, want)
	}
	seconds := s.query(t, `max(timestamp(retrip_requests_total))`, time.Now())[""]
	return time.UnixMilli(int64(math.Round(1000 * seconds)))
}

// compare checks an answer. A zero may be missing on either side.
func compare(t *testing.T, q query, want, got vector, native bool) {
	t.Helper()
	labels := maps.Clone(want)
	maps.Copy(labels, got)
	for label := range labels {
		least, most := want[label], want[label]
		switch {
		case strings.HasPrefix(q.name, "panel: Waits before retries"):
			least, most = bucket(want[label], native)
		case strings.HasPrefix(q.name, "panel: Waits at gates"):
			if math.IsNaN(got[label]) && want[label] == 0 {
				continue // no request was held under that policy
			}
			// A busy machine lets the request go later.
			least, _ = bucket(want[label], false)
			most = 30
		case strings.HasPrefix(q.name, "panel: Duration of requests"), strings.HasPrefix(q.name, "panel: Delay of hedges"):
			if most = 30; want[label] == 0 {
				assert.False(t, got[label] > 0, "%s: {%s}", q.name, label)
				continue
			}
			least = 1e-9
		case strings.HasPrefix(q.name, "panel: Waiting requests"):
			// The waits of a policy begin in one scrape and those of another in the
			// next, and a rate is extrapolated from where its series begins.
			least, most = 0.95*least, 1.05*most
		default:
			least, most = (1-1e-9)*least, (1+1e-9)*most
		}
		// Not negated, because of NaN.
		inside := got[label] >= least && got[label] <= most
		assert.True(t, inside, "%s: {%s} is %v, not %v to %v, according to %s", q.name, label, got[label], least, most, q.expr)
	}
}

// bucket returns the bounds of the bucket of a wait, which is all that a
// histogram knows of it.
func bucket(wait float64, native bool) (least, most float64) {
	if native {
		return wait / 1.1, wait * 1.1
	}
	for _, bound := range []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30} {
		if most = bound; wait <= bound {
			break
		}
		least = bound
	}
	return least, most
}

// checkPages runs the queries of pages for operators, for policies to which they apply.
func checkPages(t *testing.T, s *server, at time.Time) {
	t.Helper()
	for page, want := range map[string][]vector{
		"../../docs/runbook.md": {{"policy=down.test": runs}, nil},
		"../../docs/hedging.md": {{"policy=*.hedged.test": 0.1}},
	} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		block := regexp.MustCompile("(?s)```promql\n(.*?)\n```").FindSubmatch(text)
		require.NotNil(t, block, page)
		exprs := strings.Split(string(block[1]), "\n")
		require.Len(t, exprs, len(want), page)
		for i, expr := range exprs {
			got := s.query(t, strings.NewReplacer(`job="shop"`, `job="program"`, `policy="default"`, `policy="down.test"`).Replace(expr), at)
			if want[i] == nil {
				assert.NotZero(t, got["outcome=gave_up"], expr)
				continue
			}
			assert.Len(t, got, len(want[i]), expr)
			for labels, value := range want[i] {
				assert.InDelta(t, value, got[labels], 1e-9, expr)
			}
		}
	}
}

// checkRules checks which alerts Prometheus derives from the rules.
func checkRules(t *testing.T, s *server, a *answers) {
	t.Helper()
	want, got := map[string][]string{}, map[string][]string{}
	for _, rule := range alertRules(t) {
		want[rule.Alert] = slices.Sorted(maps.Keys(expected["alert: "+rule.Alert](a)))
		require.NotEmpty(t, want[rule.Alert], "nothing that the program does is about %s", rule.Alert)
	}
	assert.Eventually(t, func() bool {
		var data struct {
			Groups []struct {
				Rules []struct {
					Name, Health, LastError string
					Alerts                  []struct{ Labels map[string]string }
				}
			}
		}
		s.get(t, "rules", nil, &data)
		clear(got)
		for _, group := range data.Groups {
			for _, rule := range group.Rules {
				if rule.Health != "ok" {
					return false
				}
				for _, alert := range rule.Alerts {
					labels := ""
					if policy, ok := alert.Labels["policy"]; ok {
						labels = "policy=" + policy
					}
					if reason := alert.Labels["reason"]; reason != "" {
						labels += " reason=" + reason
					}
					got[rule.Name] = append(got[rule.Name], labels)
				}
				slices.Sort(got[rule.Name])
			}
		}
		return assert.ObjectsAreEqual(want, got)
	}, time.Minute, 100*time.Millisecond)
	assert.Equal(t, want, got)
}

// TestAlerts lets promtool check the rules and run their unit tests.
func TestAlerts(t *testing.T) {
	promtool := find(t, "promtool")
	out, err := exec.Command(promtool, "check", "rules", "alerts.yml").CombinedOutput()
	assert.NoError(t, err, "%s", out)
	var tests []byte
	for _, file := range []string{"alerts_test.yml", "alerts_days_test.yml"} {
		out, err := exec.Command(promtool, "test", "rules", file).CombinedOutput()
		assert.NoError(t, err, "%s", out)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		tests = append(tests, text...)
	}
	for _, rule := range alertRules(t) {
		assert.Regexp(t, `alertname: `+rule.Alert+`\n +exp_alerts:`, string(tests), "no test in which it fires")
		assert.Regexp(t, `alertname: `+rule.Alert+`\}`, string(tests), "no test in which it doesn't")
	}
}

// TestRunbook_HasASectionForEachAlert checks the links from alerts to the
// runbook.
func TestRunbook_HasASectionForEachAlert(t *testing.T) {
	runbook, err := os.ReadFile("../../docs/runbook.md")
	require.NoError(t, err)
	sections := regexp.MustCompile(`(?m)^## (Retrip\w+)$`).FindAllStringSubmatch(string(runbook), -1)
	var names []string
	for _, section := range sections {
		names = append(names, section[1])
	}
	var alerts []string
	for _, rule := range alertRules(t) {
		alerts = append(alerts, rule.Alert)
		assert.Equal(t, "https://github.com/retrip/retrip/blob/main/docs/runbook.md#"+strings.ToLower(rule.Alert), rule.Annotations["runbook_url"])
		assert.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
		assert.NotEmpty(t, rule.Annotations["description"], rule.Alert)
		assert.Contains(t, []string{"page", "ticket"}, rule.Labels["severity"], rule.Alert)
	}
	assert.Equal(t, alerts, names, "sections of the runbook, in the order of the alerts")
	for _, s := range scenes() {
		for what := range s.whole {
			if reason, ok := strings.CutPrefix(what, "give_ups "); ok {
				assert.Contains(t, string(runbook), "`"+reason+"`")
			}
		}
	}
}
