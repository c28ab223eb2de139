// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counts holds the counters of a Handler. The state's lock guards it.
type counts struct {
	attempts  [len(attemptNames)]uint64
	refusals  [len(reasons)]uint64
	buckets   [len(bounds)]uint64 // served requests by time in the queue; each bucket excludes those below
	served    uint64
	queueTime time.Duration // sum over the served requests
}

// attemptNames are label values. The last one stands for all higher numbers
// too.
var attemptNames = [...]string{"1", "2", "3", "4", "5+"}

var reasons = [...]reason{canceled, deadline, queueTime, retry}

var bounds = [...]time.Duration{
	0, time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
	250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
}

func (c *counts) arrived(attempt int) { c.attempts[min(attempt, len(attemptNames))-1]++ }

func (c *counts) refused(why reason) { c.refusals[slices.Index(reasons[:], why)]++ }

func (c *counts) waited(d time.Duration) {
	c.served++
	if d == 0 {
		c.buckets[0]++
		return
	}
	c.queueTime += d
	if i, _ := slices.BinarySearch(bounds[:], d); i < len(bounds) {
		c.buckets[i]++
	}
}

var (
	requestsDesc = prometheus.NewDesc("retrip_shed_requests_total", "Requests that arrived, by the number of their attempt: 2 and up are retries.", []string{"attempt"}, nil)
	refusedDesc  = prometheus.NewDesc("retrip_shed_refused_total", "Requests that were refused, by why: retry, queue_time, deadline, or canceled by the client while it waited.", []string{"reason"}, nil)
	queueDesc    = prometheus.NewDesc("retrip_shed_queue_seconds", "Time in the queue of requests that were then served.", nil, nil)
	runningDesc  = prometheus.NewDesc("retrip_shed_running_requests", "Requests being served that count towards the limit.", nil, nil)
	waitingDesc  = prometheus.NewDesc("retrip_shed_waiting_requests", "Requests in the queue.", nil, nil)
	limitDesc    = prometheus.NewDesc("retrip_shed_limit", "Requests that may be served at a time; +Inf is no limit.", nil, nil)
)

// Describe implements [prometheus.Collector]. It is safe for concurrent use.
func (h *Handler) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{requestsDesc, refusedDesc, queueDesc, runningDesc, waitingDesc, limitDesc} {
		ch <- desc
	}
}

// Collect implements [prometheus.Collector]. It is safe for concurrent use.
func (h *Handler) Collect(ch chan<- prometheus.Metric) {
	s := h.start()
	s.mu.Lock()
	c, running, waiting, limit := s.counts, s.running, s.waiting, s.limit
	s.mu.Unlock()
	for i, name := range attemptNames {
		ch <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(c.attempts[i]), name)
	}
	for i, why := range reasons {
		ch <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(c.refusals[i]), string(why))
	}
	buckets := make(map[float64]uint64, len(bounds))
	var below uint64
	for i, bound := range bounds {
		below += c.buckets[i]
		buckets[bound.Seconds()] = below
	}
	ch <- prometheus.MustNewConstHistogram(queueDesc, c.served, c.queueTime.Seconds(), buckets)
	ch <- prometheus.MustNewConstMetric(runningDesc, prometheus.GaugeValue, float64(running))
	ch <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(waiting))
	most := float64(limit)
	if limit == math.MaxInt {
		most = math.Inf(1)
	}
	ch <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, most)
}
