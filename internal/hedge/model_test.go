// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package hedge

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// model is the rule as documented, in seconds, with everything kept that it was told.
type model struct {
	share   float64
	last    float64 // instant of the last request
	asked   int
	gap     float64
	times   []float64 // of the first answers
	delay   float64
	moves   int
	inRow   int
	millis  int    // thousandths of hedges saved up
	lates   int    // late requests since the last answer
	results []bool // of the last hedges
	dear    int    // answers while too few of them have won
}

func (m *model) begin(now float64) {
	if m.asked++; m.asked == 1 {
		m.last = now
	} else {
		gap := min(10, max(0, now-m.last))
		if m.gap == 0 {
			m.gap = gap
		} else {
			m.gap = 0.95*m.gap + 0.05*gap
		}
	}
	m.last = max(m.last, now)
}

func (m *model) first(took float64) {
	if m.times = append(m.times, took); len(m.times) == 20 {
		m.delay = m.bound(slices.Max(m.times))
	}
}

func (m *model) bound(d float64) float64 { return min(3600, max(0.001, d)) }

func (m *model) move(exponent float64) {
	length := 0.1
	if m.moves < 5 {
		length = 0.5 / float64(m.moves+1)
	}
	m.moves++
	// e to that power, but for its third order
	m.delay = m.bound(m.delay * (1 + length*exponent/2) / (1 - length*exponent/2))
}

func (m *model) late(allowed bool) Skip {
	m.lates++
	switch {
	case !allowed:
		return Trouble
	case m.gap > 0.5:
		return LowRate
	case m.millis < 1000, m.millis < 2000 && m.lates < 2 && m.losing():
		return Spent
	}
	m.millis -= 1000
	return None
}

func (m *model) losing() bool {
	won := 0
	for _, w := range m.results {
		if w {
			won++
		}
	}
	return len(m.results) >= 20 && 5*won < len(m.results)
}

// out reports whether it is news that a request was out for that time.
func (m *model) out(took float64) bool {
	if m.delay == 0 {
		m.first(took)
	} else if took < m.delay {
		return false
	} else {
		m.inRow = 0
		m.move(1 - 0.4*m.share)
	}
	return true
}

func (m *model) answered(took float64, judged bool) {
	if m.losing() {
		m.dear++
		m.millis += int(math.Round(1000*m.share) / 10)
	} else {
		m.millis += int(math.Round(1000 * m.share))
	}
	m.millis, m.lates = min(2000, m.millis), 0
	if !judged && !m.out(took) {
		m.inRow++
		if by := -0.4 * m.share; m.inRow > int(math.Round(3/(0.4*m.share))) {
			m.move(4 * by)
		} else {
			m.move(by)
		}
	}
}

func (m *model) hedged(won bool) {
	if won {
		m.lates = 0
	}
	m.results = append(m.results, won)
	m.results = m.results[max(0, len(m.results)-50):]
}

// TestModel compares the code with a model of its documentation, through warm-ups,
// busy and idle times, good and bad ones.
func TestModel(t *testing.T) {
	testenv.OneGoroutine(t)
	counted, dear := map[Skip]int{}, 0
	for seed := range uint64(testenv.Size(40, 400)) {
		draw := rand.New(rand.NewPCG(seed, 31))
		// Shares of which tenths are whole thousandths, so that the model may count in those.
		r := Rule{[]float64{0.01, 0.02, 0.05, 0.1}[draw.IntN(4)]}
		h, m := new(Host), &model{share: r.Share}
		now, every, scale, wins, trouble := 0.0, 0.01, 0.02, 0.5, 0.0
		for step := range 10000 {
			if draw.IntN(500) == 0 {
				every = math.Pow(10, -3+4*draw.Float64())
				scale = math.Pow(10, -4+5*draw.Float64())
				wins, trouble = draw.Float64(), max(0, draw.Float64()-0.5)
			}
			if now += every * draw.ExpFloat64(); draw.IntN(1000) == 0 {
				now -= draw.Float64() * 20
			}
			at := time.Duration(math.Round(now * 1e9))
			m.begin(at.Seconds())
			delay := h.Begin(at, 0)
			require.InDelta(t, m.delay, delay.Seconds(), 1e-7*m.delay+2e-9, "seed %d step %d", seed, step)
			took := scale * math.Exp(draw.NormFloat64())
			began := delay.Seconds() // the delay at its beginning, which may have been shorter
			if draw.IntN(4) == 0 {
				began *= draw.Float64()
			}
			late := delay > 0 && took > began
			hedged, judged := false, false
			if late {
				allowed := draw.Float64() >= trouble
				want, news := m.late(allowed), m.out(2*began)
				var skip Skip
				skip, judged = h.Late(r, time.Duration(began*1e9), allowed)
				require.Equal(t, want, skip, "seed %d step %d", seed, step)
				require.Equal(t, news, judged, "seed %d step %d", seed, step)
				hedged = want == None
				counted[want]++
			}
			switch won := draw.Float64() < wins; {
			case hedged:
				m.hedged(won)
				h.RecordHedge(won)
			case draw.Float64() < trouble/5:
				if !judged {
					m.out(took)
					h.RecordTimeout(r, time.Duration(took*1e9))
				}
			default:
				m.answered(took, judged)
				h.RecordAnswer(r, time.Duration(took*1e9), judged)
			}
		}
		dear += m.dear
	}
	t.Logf("late requests: %v; %d answers paid little", counted, dear)
	for skip := None; skip <= Spent; skip++ {
		require.Greater(t, counted[skip], 100, skip)
	}
	require.Greater(t, dear, 1000)
}
