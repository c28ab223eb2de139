// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"
)

func TestX(t *testing.T) {
	for _, name := range []string{"no-retries", "no-budget", "finagle", "envoy", "envoy-budget", "grpc", "aws-standard", "aws-2026", "sre", "polly", "bucket-10", "breaker", "retrip"} {
		for _, c := range []int{10, 100, 1000, 3000, 10000} {
			s := Overload()
			s.Policy, _ = Preset(name, s.Policy.Retry)
			s.Fleet.Clients = c
			if c > 1000 {
				s.Horizon = 300 * time.Second
			}
			begin := time.Now()
			r, err := s.Run(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			d := time.Since(begin)
			t.Log(name, c, r.Recovery, r.Peak, r.Steady, r.Amplification, r.SuccessRate(), r.P99, int(float64(r.Events)/d.Seconds()/1e3), "k/s", d)
		}
	}
}

func BenchmarkOverload(b *testing.B) {
	s := Overload()
	s.Policy, _ = Preset("no-budget", s.Policy.Retry)
	var events int64
	for b.Loop() {
		r, _ := s.Run(b.Context(), nil)
		events += r.Events
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}
