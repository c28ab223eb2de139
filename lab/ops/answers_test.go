// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"maps"
	"math"
	"slices"
	"strings"
)

// answers predicts the results of queries from what a program has done.
type answers struct {
	known map[string]tally
	waits map[waitKey][]float64

	// rate is the rate of a counter that the program incremented once, waitRate
	// that of a histogram.
	rate, waitRate float64
}

// total returns the program's count of a metric under a policy ("" means all),
// with one of the given label values or with any.
func (a *answers) total(metric, policy string, labels ...string) float64 {
	var sum float64
	for name, tally := range a.known {
		if policy != "" && name != policy {
			continue
		}
		for what, n := range tally {
			counted, label, _ := strings.Cut(what, " ")
			if counted == metric && (len(labels) == 0 || slices.Contains(labels, label)) {
				sum += n
			}
		}
	}
	if slices.Contains([]string{"open", "troubled", "missing", "paused"}, metric) {
		return runs * sum // each run leaves its hosts in the same state
	}
	return sum
}

func (a *answers) alone(value float64) vector { return vector{"": value} }

// byLabel returns rates of a metric by its own label.
func (a *answers) byLabel(metric, name string) vector {
	v := vector{}
	for _, tally := range a.known {
		for what := range tally {
			if counted, label, _ := strings.Cut(what, " "); counted == metric {
				v[name+"="+label] = a.total(metric, "", label) * a.rate
			}
		}
	}
	return v
}

// byPolicy returns f for each policy.
func (a *answers) byPolicy(f func(policy string) float64) vector {
	v := vector{}
	for policy := range a.known {
		v["policy="+policy] = f(policy)
	}
	return v
}

// share returns the share of the requests under a policy that metric counts.
func (a *answers) share(metric, policy string, labels ...string) float64 {
	return a.total(metric, policy, labels...) / a.total("requests", policy)
}

// bySource returns f of all waits, by their source.
func (a *answers) bySource(f func(waits []float64) float64) vector {
	waits := map[string][]float64{}
	for key, some := range a.waits {
		waits[key.source] = append(waits[key.source], some...)
	}
	v := vector{}
	for source, all := range waits {
		slices.Sort(all)
		v["source="+source] = f(all)
	}
	return v
}

// alerting keeps the values that an alert fires for: shares above the
// threshold, under policies with enough requests.
func (a *answers) alerting(v vector, above float64, metric string, labels ...string) vector {
	maps.DeleteFunc(v, func(key string, value float64) bool {
		policy, _, _ := strings.Cut(strings.TrimPrefix(key, "policy="), " ")
		return value <= above || a.total(metric, policy, labels...) < 10
	})
	return v
}

// failing returns the share of requests under each policy that ended without an
// answer, except for canceled ones.
func (a *answers) failing(above float64) vector {
	return a.alerting(a.byPolicy(func(p string) float64 {
		all := a.total("requests", p) - a.total("requests", p, "canceled")
		if all == 0 {
			return 0
		}
		return a.total("requests", p, "gave_up", "failed") / all
	}), above, "requests", "gave_up", "failed")
}

// hostsFailing returns the number of hosts that fail under a policy: each run has one.
func (a *answers) hostsFailing(policy string) float64 {
	return runs * min(1, a.total("requests", policy, "gave_up", "failed"))
}

func sum(values []float64) float64 {
	var total float64
	for _, v := range values {
		total += v
	}
	return total
}

// quantile returns the q-quantile of sorted values.
func quantile(q float64) func([]float64) float64 {
	return func(sorted []float64) float64 {
		return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
	}
}

// expected computes the expected answer of each query, by name.
var expected = map[string]func(a *answers) vector{
	"alert: RetripRequestsFailing":       func(a *answers) vector { return a.failing(0.006) },
	"alert: RetripRequestsFailingSlowly": func(a *answers) vector { return a.failing(0.001) },
	"alert: RetripHostsFailing": func(a *answers) vector {
		return a.alerting(a.byPolicy(a.hostsFailing), 0, "requests", "gave_up", "failed")
	},
	"alert: RetripRequestsCanceled": func(a *answers) vector {
		return a.alerting(a.byPolicy(func(p string) float64 { return a.share("requests", p, "canceled") }), 0.05, "requests", "canceled")
	},
	"alert: RetripBudgetExhausted": func(a *answers) vector {
		return a.alerting(a.byPolicy(func(p string) float64 { return a.share("give_ups", p, "budget_exhausted", "retries_failing") }), 0.01, "give_ups", "budget_exhausted", "retries_failing")
	},
	// The program's store never answers.
	"alert: RetripFleetStoreAway": func(a *answers) vector { return a.alone(1) },
	"alert: RetripBreakerOpen": func(a *answers) vector {
		return a.alerting(a.byPolicy(func(p string) float64 { return a.share("give_ups", p, "breaker_open") }), 0.05, "give_ups", "breaker_open")
	},
	"alert: RetripRetryRatioHigh": func(a *answers) vector {
		return a.alerting(a.byPolicy(func(p string) float64 { return a.share("retries", p) }), 0.2, "retries")
	},
	"alert: RetripGivingUp": func(a *answers) vector {
		v := vector{}
		for policy, tally := range a.known {
			for what := range tally {
				reason, ok := strings.CutPrefix(what, "give_ups ")
				if ok && !slices.Contains([]string{"budget_exhausted", "retries_failing", "breaker_open", "canceled"}, reason) {
					v["policy="+policy+" reason="+reason] = a.share("give_ups", policy, reason)
				}
			}
		}
		return a.alerting(v, 0.05, "give_ups")
	},
	"alert: RetripHedgesWasted": func(a *answers) vector {
		v := a.byPolicy(func(p string) float64 { return a.total("hedges", p, "won") / a.total("hedges", p) })
		maps.DeleteFunc(v, func(key string, won float64) bool {
			return !(won < 0.2) || a.total("hedges", strings.TrimPrefix(key, "policy=")) < 20
		})
		return v
	},
	"alert: RetripThrottled": func(a *answers) vector {
		return a.alerting(a.byPolicy(func(p string) float64 { return a.share("attempts", p, "429") }), 0.1, "attempts", "429")
	},

	"panel: Answered: A": func(a *answers) vector {
		return a.alone(a.share("requests", "", "answered", "recovered"))
	},
	"panel: Saved by retries: A":             func(a *answers) vector { return a.alone(a.share("requests", "", "recovered")) },
	"panel: Load added by retries: A":        func(a *answers) vector { return a.alone(a.share("retries", "")) },
	"panel: Hosts behind an open breaker: A": func(a *answers) vector { return a.alone(a.total("open", "")) },
	"panel: Hosts that fail or are in trouble: A": func(a *answers) vector {
		return a.alone(sum(slices.Collect(maps.Values(a.byPolicy(a.hostsFailing)))))
	},
	"panel: Hosts that fail or are in trouble: B": func(a *answers) vector { return a.alone(a.total("troubled", "")) },
	"panel: Budget tokens missing: A":             func(a *answers) vector { return a.alone(a.total("missing", "")) },
	"panel: Requests by outcome: A":               func(a *answers) vector { return a.byLabel("requests", "outcome") },
	"panel: Attempts by result: A":                func(a *answers) vector { return a.byLabel("attempts", "result") },
	"panel: Answered by policy: A": func(a *answers) vector {
		return a.byPolicy(func(p string) float64 { return a.share("requests", p, "answered", "recovered") })
	},
	"panel: Retries by reason: A": func(a *answers) vector { return a.byLabel("retries", "reason") },
	"panel: Load added by policy: A": func(a *answers) vector {
		return a.byPolicy(func(p string) float64 { return a.share("retries", p) })
	},
	"panel: Give-ups by reason: A":   func(a *answers) vector { return a.byLabel("give_ups", "reason") },
	"panel: Waits before retries: A": func(a *answers) vector { return a.bySource(quantile(0.5)) },
	"panel: Waits before retries: B": func(a *answers) vector { return a.bySource(quantile(0.99)) },
	"panel: Waits by source: A": func(a *answers) vector {
		return a.bySource(func(waits []float64) float64 { return float64(len(waits)) * a.waitRate })
	},
	"panel: Waiting requests: A": func(a *answers) vector {
		return a.bySource(func(waits []float64) float64 { return sum(waits) * a.waitRate })
	},
	"panel: Open breakers by policy: A": func(a *answers) vector {
		return a.byPolicy(func(p string) float64 { return a.total("open", p) })
	},
	"panel: Breaker transitions: A": func(a *answers) vector { return a.byLabel("transitions", "to") },
	"panel: Tokens missing by policy: A": func(a *answers) vector {
		return a.byPolicy(func(p string) float64 { return a.total("missing", p) })
	},
	"alert: RetripHostPaused": func(a *answers) vector {
		return a.alerting(a.byPolicy(func(p string) float64 { return a.total("paused", p) }), 0, "requests")
	},
	"panel: Requests at gates: A": func(*answers) vector { return vector{} },
	"panel: Paused hosts by policy: A": func(a *answers) vector {
		return a.byPolicy(func(p string) float64 { return a.total("paused", p) })
	},
	"panel: Requests held at gates: A": func(a *answers) vector {
		return a.byPolicy(func(p string) float64 { return a.total("held", p) * a.rate })
	},
	"panel: Waits at gates: A":                func(*answers) vector { return vector{"policy=queue.test": heldFor.Seconds()} },
	"panel: Hedges by result: A":              func(a *answers) vector { return a.byLabel("hedges", "result") },
	"panel: Late requests without a hedge: A": func(*answers) vector { return vector{} },
	// That the delay is known is enough: it is that of the machine.
	"panel: Delay of hedges: A": func(*answers) vector { return vector{"policy=*.hedged.test": 1} },
	"panel: Retries asked of the fleet account: A": func(a *answers) vector {
		// A retry after a 429 at a gate asks nobody.
		asked := a.total("retries", "") - a.total("retries", "queue.test")
		return vector{"result=allowed": 0, "result=forbidden": 0, "result=unknown": asked * a.rate}
	},
	"panel: Share decided without the account: A": func(a *answers) vector { return a.alone(1) },
	"panel: Pauses and hidden sends: A":           func(a *answers) vector { return a.alone(a.total("pauses", "") * a.rate) },
	// That a duration is known is enough: it is that of the machine.
	"panel: Duration of requests: A": func(a *answers) vector {
		return a.byPolicy(func(string) float64 { return 1 })
	},
	"panel: Duration of requests: B": func(a *answers) vector {
		return a.byPolicy(func(p string) float64 { return min(1, a.total("requests", p, "answered")) })
	},
	"panel: Pauses and hidden sends: B": func(a *answers) vector { return a.alone(a.total("sends", "") * a.rate) },
}
