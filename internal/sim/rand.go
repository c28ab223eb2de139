// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"time"
)

// source generates the random numbers of one purpose in one run. It converts
// floating-point products explicitly, which keeps the compiler from fusing them
// into a multiply-add, and it avoids math.Log: both would give different digits
// on different machines.
type source struct{ rand.PCG }

// Each purpose has its own stream, so that all policies face the same arrivals.
const (
	streamArrivals = iota + 1
	streamService
	streamFaults
	streamDraws
	_
	_
	streamInstances
	_
	streamAccount
	_
	streamLatencies
)

func newSource(seed, stream uint64) *source {
	return &source{*rand.NewPCG(seed, stream*0x9e3779b97f4a7c15)}
}

// below returns a uniformly distributed integer in [0, n).
func (s *source) below(n uint64) uint64 {
	hi, _ := bits.Mul64(s.Uint64(), n)
	return hi
}

// unit returns a uniformly distributed number in (0, 1].
func (s *source) unit() float64 {
	return float64(s.Uint64()>>11+1) / (1 << 53)
}

// exponential returns an exponentially distributed duration.
func (s *source) exponential(mean float64) time.Duration {
	return time.Duration(float64(-ln(s.unit()) * mean))
}

// normal returns a standard normally distributed number. It uses Marsaglia's
// polar method and discards the second number.
func (s *source) normal() float64 {
	for {
		u, v := float64(2*s.unit())-1, float64(2*s.unit())-1
		q := float64(u*u) + float64(v*v)
		if q > 0 && q < 1 {
			return float64(u * math.Sqrt(float64(-2*ln(q))/q))
		}
	}
}

// chance is a probability in a form that can be compared with a draw directly.
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

// exp returns e^x to about ten digits, by the series of the rest that is left of a
// power of two.
func exp(x float64) float64 {
	n := math.Round(x / math.Ln2)
	x -= float64(n * math.Ln2)
	sum, term := 1.0, 1.0
	for i := 1; i <= 11; i++ {
		term = float64(term * x / float64(i))
		sum += term
	}
	return math.Ldexp(sum, int(n))
}

// ln returns the natural logarithm of a positive, normal x to about ten digits,
// computed from ln m = 2·artanh((m-1)/(m+1)) with m in [√½, √2].
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
