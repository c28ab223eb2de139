// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/decide"
)

// always is a limiter that allows everything. Other limiters embed it.
type always struct{}

func (always) result(int32, time.Duration, *decide.Outcome, int, *int32) {}
func (always) retry(int32, time.Duration, *decide.Outcome, *int32) bool  { return true }
func (always) delay(int32, time.Duration) time.Duration                  { return 0 }
func (always) send(int32, time.Duration, time.Duration, *int32) bool     { return true }

func succeeded(o *decide.Outcome) bool {
	return o.Status != 0 && o.Status < 500 && o.Status != http.StatusTooManyRequests
}

func fill(n int, value int32) []int32 {
	s := make([]int32, n)
	for i := range s {
		s[i] = value
	}
	return s
}

// envoy is the circuit breaker max_retries, 3 by default: the cluster's retries
// that are waiting or in flight.
type envoy struct {
	always
	retries []int32
}

func newEnvoy(clients int) limiter { return &envoy{retries: make([]int32, clients)} }

func (e *envoy) result(client int32, _ time.Duration, _ *decide.Outcome, _ int, paid *int32) {
	e.retries[client] -= *paid
	*paid = 0
}

func (e *envoy) retry(client int32, _ time.Duration, _ *decide.Outcome, paid *int32) bool {
	if e.retries[client] >= 3 {
		return false
	}
	e.retries[client]++
	*paid = 1
	return true
}

// quota is the retry quota of the AWS SDKs: a retry withdraws its cost and gets
// it back if it succeeds; a success without a retry deposits 1.
type quota struct {
	always
	tokens                         []int32
	most, cost, timeout, throttled int32
}

func newQuota(clients int, q quota) limiter {
	q.tokens = fill(clients, q.most)
	return &q
}

func newAWSStandard(clients int) limiter {
	return newQuota(clients, quota{most: 500, cost: 5, timeout: 10, throttled: 5})
}

// newPlainBudget counts in fifths of a token.
func newPlainBudget(clients int) limiter {
	return newQuota(clients, quota{most: 5 * 5, cost: 5, timeout: 5, throttled: 5})
}

func (q *quota) result(client int32, _ time.Duration, o *decide.Outcome, attempts int, paid *int32) {
	if succeeded(o) {
		back := *paid
		if attempts == 1 {
			back = 1
		}
		q.tokens[client] = min(q.tokens[client]+back, q.most)
	}
	*paid = 0
}

func (q *quota) retry(client int32, _ time.Duration, o *decide.Outcome, paid *int32) bool {
	cost := q.cost
	switch {
	case o.Timeout:
		cost = q.timeout
	case o.Status == http.StatusTooManyRequests:
		cost = q.throttled
	}
	if q.tokens[client] < cost {
		return false
	}
	q.tokens[client] -= cost
	*paid = cost
	return true
}
