// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package prometheus has the names of client_golang that retrip uses, and does
// nothing. cmd/weight measures retrip with it.
package prometheus

import "time"

type Desc struct{}
type Labels map[string]string
type Metric interface{ Desc() *Desc }
type Collector interface {
	Describe(chan<- *Desc)
	Collect(chan<- Metric)
}
type ValueType int

const (
	CounterValue ValueType = iota
	GaugeValue
)

type Exemplar struct {
	Value     float64
	Labels    Labels
	Timestamp time.Time
}
type metric struct{}

func (metric) Desc() *Desc                                           { return nil }
func NewDesc(a, b string, c []string, d Labels) *Desc                { return &Desc{} }
func MustNewConstMetric(*Desc, ValueType, float64, ...string) Metric { return metric{} }
func MustNewConstHistogram(*Desc, uint64, float64, map[float64]uint64, ...string) Metric {
	return metric{}
}
func NewMetricWithExemplars(Metric, ...Exemplar) (Metric, error) { return metric{}, nil }
func MustNewMetricWithExemplars(Metric, ...Exemplar) Metric      { return metric{} }

type Observer interface{ Observe(float64) }
type ExemplarObserver interface{ ObserveWithExemplar(float64, Labels) }
type Histogram interface {
	Metric
	Collector
	Observer
}
type HistogramOpts struct {
	Namespace, Subsystem, Name, Help string
	ConstLabels                      Labels
	Buckets                          []float64
	NativeHistogramBucketFactor      float64
	NativeHistogramMaxBucketNumber   uint32
	NativeHistogramMinResetDuration  time.Duration
	NativeHistogramZeroThreshold     float64
	NativeHistogramMaxZeroThreshold  float64
}
type HistogramVec struct{}

func NewHistogramVec(HistogramOpts, []string) *HistogramVec { return &HistogramVec{} }
func (*HistogramVec) WithLabelValues(...string) Observer    { return nil }
func (*HistogramVec) Collect(chan<- Metric)                 {}
func (*HistogramVec) Describe(chan<- *Desc)                 {}
func (*HistogramVec) DeletePartialMatch(Labels) int         { return 0 }
