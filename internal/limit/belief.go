// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import "math"

const (
	cells = 140
	ratio = 1.1 // of the sizes of neighboring cells: the last one is 570 000 workers

	spread = 1    // how far a belief that is loosened moves, as a logarithm
	noise  = 0.04 // of a comparison, as a share of the level
	model  = 0.15 // how wrong the expected difference may be
	wide   = 2.5  // the variance of a mean of quick requests over that of independent ones
	surest = -5   // the logarithm of how unlikely one comparison can make a size
)

// belief is how likely it is that the server has 1.1^i workers: that it works
// on so many requests at a time, and lets the others wait.
type belief [cells]float64

func size(i int) float64 { return math.Pow(ratio, float64(i)) }

func anything() (b belief) {
	for i := range b {
		b[i] = 1. / cells
	}
	return b
}

// quantile returns the number that the workers don't exceed with probability q.
func (b *belief) quantile(q float64) float64 {
	sum := 0.0
	for i, p := range b {
		if sum += p; sum >= q {
			return size(i) * math.Pow(ratio, 0.5-(sum-q)/p)
		}
	}
	return size(cells)
}

// idle returns the share of the workers that are idle when requests are in
// progress.
func (b *belief) idle(requests int) (share float64) {
	for i, p := range b {
		share += p * max(0, 1-float64(requests)/size(i))
	}
	return share
}

// loosen makes up for what may have changed: with probability p, the server
// has more or fewer workers than before.
func (b *belief) loosen(p float64) {
	keep := math.Exp(-math.Log(ratio) / spread)
	var up, down belief
	for i, sum := 0, 0.0; i < cells; i++ {
		sum = sum*keep + b[i]
		up[i] = sum
	}
	for i, sum := cells-1, 0.0; i >= 0; i-- {
		sum = sum*keep + b[i]
		down[i] = sum
	}
	for i := range b {
		b[i] = (1-p)*b[i] + p*(up[i]+down[i]-b[i])*(1-keep)/(1+keep)
	}
	b.normalize()
}

func (b *belief) normalize() {
	sum := 0.0
	for _, p := range b {
		sum += p
	}
	for i := range b {
		b[i] /= sum
	}
}

// learn compares the times of quick requests at two levels. With n workers,
// level-n requests wait, so the difference of the times, in requests that end
// meanwhile, is the difference of the levels above n. Variance is that of one
// request's time over the square of the mean, and whole the mean time of all
// requests over that of the quick ones. It returns the share of the
// difference of the levels that waited.
func (b *belief) learn(high, low summary, variance, whole float64) (waited float64) {
	if high.level < low.level {
		high, low = low, high
	}
	rate := high.level / (high.mean + (whole-1)*low.mean) // by Little's law
	got, served := (high.mean-low.mean)*rate, low.mean*rate
	fixed := wide*served*served*variance*(1/high.n+1/low.n) + noise*noise*high.level*high.level
	var likely belief
	best := math.Inf(-1)
	for i := range b {
		more, less := max(0, high.level-size(i)), max(0, low.level-size(i))
		v := fixed + 2*variance*(more*more/(high.n+more)+less*less/(low.n+less)) + model*model*(more-less)*(more-less)
		likely[i] = -(got-more+less)*(got-more+less)/(2*v) - math.Log(v)/2
		best = max(best, likely[i])
	}
	for i := range b {
		b[i] *= math.Exp(max(likely[i]-best, surest))
	}
	b.normalize()
	return got / (high.level - low.level)
}
