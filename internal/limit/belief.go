// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import "math"

const (
	cells = 140
	ratio = 1.1 // of the sizes of neighboring cells: the last one is 570 000 workers

	usual   = 100e6 // nanoseconds that a request takes, if nothing is known
	unusual = 1.3   // how far from that, as the standard deviation of the logarithm
	fewer   = 0.3   // how much less likely large servers are, as an exponent

	spread = 1.   // how far the number of workers moves if it changes, as a logarithm
	blur   = 0.25 // how far the time of a request moves then
	leap   = 1.5  // how far it moves if it changes and the workers don't
	creep  = 0.01 // how far it drifts between two measurements

	noise  = 0.04 // of a mean time, as a share of it
	model  = 0.1  // how wrong the expected wait may be, as a share of it
	wide   = 1.2  // the variance of a mean of quick requests over that of all
	surest = -8.  // the logarithm of how unlikely one measurement can make a number
)

// belief is what the server may be: one that works on so many requests at a
// time, and lets the others wait. Cell i is the case of 1.1^i workers.
type belief [cells]chance

// chance is how likely a case is, and, in that case, the mean and the variance
// of the logarithm of the time that a quick request takes alone.
type chance struct{ p, mean, variance float64 }

// mix returns the chance that one of several cases holds.
func mix(cases ...chance) (m chance) {
	for _, c := range cases {
		m.p += c.p
		m.mean += c.p * c.mean
		m.variance += c.p * (c.variance + c.mean*c.mean)
	}
	m.mean /= m.p
	m.variance = max(0, m.variance/m.p-m.mean*m.mean)
	return m
}

// sizes are the numbers of workers.
var sizes = func() (s [cells]float64) {
	for i := range s {
		s[i] = math.Pow(ratio, float64(i))
	}
	return s
}()

func anything() (b belief) {
	for i := range b {
		b[i].p = math.Pow(sizes[i], -fewer)
		b[i].mean, b[i].variance = math.Log(usual), unusual*unusual
	}
	b.normalize()
	return b
}

// quantile returns the number that the workers don't exceed with probability q.
func (b *belief) quantile(q float64) float64 {
	sum := 0.0
	for i := range b {
		if sum += b[i].p; sum >= q {
			return sizes[i] * math.Pow(ratio, 0.5-(sum-q)/b[i].p)
		}
	}
	return sizes[cells-1] * ratio
}

// moved returns what the server may be if the number of workers has changed:
// the nearer a number, the more likely it is.
func (b *belief) moved() belief {
	keep := math.Exp(-math.Log(ratio) / spread)
	to := *b
	var up, down chance // all smaller and all larger numbers
	add := func(from *chance, i int) {
		from.p *= keep
		to[i] = mix(to[i], *from)
		*from = mix(*from, b[i])
	}
	for i := range b {
		add(&up, i)
		add(&down, cells-1-i)
	}
	for i := range to {
		to[i].p *= (1 - keep) / (1 + keep)
		to[i].variance += blur * blur
	}
	return to
}

func (b *belief) normalize() {
	sum := 0.0
	for i := range b {
		sum += b[i].p
	}
	for i := range b {
		b[i].p = max(1e-30, b[i].p/sum)
	}
}

// learn is told the mean time of the quickest requests at a level. With n
// workers, level-n of the requests wait. Variance is that of one request's time
// over the square of the mean, and whole the mean time of all requests over
// that of the quickest. Since the last time, the number of workers has changed
// with probability changed, and so has the time that requests take.
func (b *belief) learn(is summary, variance, whole, changed float64) {
	var likely [cells]float64
	best := math.Inf(-1)
	moved := b.moved()
	for i := range b {
		waiting := max(0, is.level-sizes[i])
		longer := 1 + (1+whole)/2*waiting/sizes[i] // than alone
		wait := 1 - 1/longer                       // as a share of the time
		error2 := noise*noise + model*model*wait*wait + variance*wide/is.n
		time := math.Log(is.mean / longer)

		// A Kalman filter for each of three cases.
		same, slower, other := b[i], b[i], moved[i]
		same.p *= 1 - changed
		slower.p *= changed
		slower.variance += leap * leap
		other.p *= changed
		before := same.p + other.p
		cases := [...]*chance{&same, &slower, &other}
		for _, c := range cases {
			c.variance += creep * creep
			off, v := time-c.mean, c.variance+error2
			c.p = max(1e-300, c.p*math.Exp(-off*off/(2*v))/math.Sqrt(v))
			c.mean += off * c.variance / v
			c.variance *= error2 / v
		}
		b[i] = mix(same, slower, other)
		likely[i] = math.Log(b[i].p / before)
		b[i].p = before
		best = max(best, likely[i])
	}
	for i := range b {
		b[i].p *= math.Exp(max(likely[i]-best, surest))
	}
	b.normalize()
}
