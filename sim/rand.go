// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"time"
)

// source draws the random numbers of one purpose in one run. Floating-point
// products are converted explicitly, which forbids the compiler to fuse them
// into a multiply-add, and math.Log is avoided, since both give other digits on
// other machines.
type source struct{ rand.PCG }

// Every purpose has a stream of its own, so that all policies meet the same
// arrivals.
const (
	streamArrivals = iota + 1
	streamService
	streamFaults
	streamDraws
	streamNetwork
	streamReplicas
	streamInstances
	streamTails
)

func newSource(seed, stream uint64) *source {
	return &source{*rand.NewPCG(seed, stream*0x9e3779b97f4a7c15)}
}

// below returns a uniformly distributed number from 0 to n-1.
func (s *source) below(n uint64) uint64 {
	hi, _ := bits.Mul64(s.Uint64(), n)
	return hi
}

// unit returns a uniformly distributed number from (0, 1].
func (s *source) unit() float64 {
	return float64(s.Uint64()>>11+1) / (1 << 53)
}

// exponential returns an exponentially distributed duration.
func (s *source) exponential(mean float64) time.Duration {
	return time.Duration(float64(-ln(s.unit()) * mean))
}

// normal returns a number of the standard normal distribution, by Marsaglia's
// polar method without its second number.
func (s *source) normal() float64 {
	for {
		u, v := float64(2*s.unit())-1, float64(2*s.unit())-1
		q := float64(u*u) + float64(v*v)
		if q > 0 && q < 1 {
			return float64(u * math.Sqrt(float64(-2*ln(q))/q))
		}
	}
}

// chance is a probability, ready to be compared with a draw.
type chance uint64

func newChance(p float64) chance {
	if p >= 1 {
		return math.MaxUint64
	}
	return chance(p * (1 << 53) * (1 << 11))
}

func (s *source) happens(c chance) bool {
	switch c {
	case 0:
		return false
	case math.MaxUint64:
		return true
	}
	return s.Uint64() < uint64(c)
}

// ln returns the natural logarithm of a positive, normal x to about ten digits,
// from ln m = 2·artanh((m-1)/(m+1)) with m in [√½, √2].
func ln(x float64) float64 {
	b := math.Float64bits(x)
	exponent := int(b>>52) - 1023
	m := math.Float64frombits(b&(1<<52-1) | 1023<<52)
	if m > math.Sqrt2 {
		m /= 2
		exponent++
	}
	s := (m - 1) / (m + 1)
	q := float64(s * s)
	p := 1.0 / 11
	p = float64(p*q) + 1.0/9
	p = float64(p*q) + 1.0/7
	p = float64(p*q) + 1.0/5
	p = float64(p*q) + 1.0/3
	p = float64(p*q) + 1
	return float64(2*float64(s*p)) + float64(float64(exponent)*math.Ln2)
}
