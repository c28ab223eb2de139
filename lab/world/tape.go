// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"math/rand/v2"
	"slices"
	"time"
)

// tape yields the choices from which a Plan is made. It draws them at random, or
// plays those of another tape, and zeros after their end. A smaller choice means a
// duller world, so a shorter tape with smaller choices is a simpler story.
type tape struct {
	random *rand.Rand // nil after the end of given
	given  []uint64
	made   []uint64
	spans  []span // parts of made that stand for one thing
}

type span struct{ from, to int }

func record(seed uint64) *tape { return &tape{random: rand.New(rand.NewPCG(seed, 0))} }

func replay(choices []uint64) *tape { return &tape{given: choices} }

// upTo returns a choice below n.
func (t *tape) upTo(n uint64) uint64 {
	var c uint64
	switch at := len(t.made); {
	case at < len(t.given):
		c = min(t.given[at], n-1)
	case t.random != nil:
		c = t.random.Uint64N(n)
	}
	t.made = append(t.made, c)
	return c
}

func (t *tape) n(n int) int { return int(t.upTo(uint64(n))) }

// odds returns true with a likelihood of percent.
func (t *tape) odds(percent int) bool { return t.n(100) >= 100-percent }

// list calls each at most so many times, percent deciding each time about another.
func (t *tape) list(most, percent int, each func()) {
	for range most {
		from := len(t.made)
		if !t.odds(percent) {
			return
		}
		each()
		t.spans = append(t.spans, span{from, len(t.made)})
	}
}

// maybe calls set with a likelihood of percent.
func (t *tape) maybe(percent int, set func()) { t.list(1, percent, set) }

// instant returns a duration that no other equals but by chance.
func (t *tape) instant(most time.Duration) time.Duration {
	return 1 + time.Duration(t.upTo(uint64(most)))
}

// log returns a duration below most; short ones are as likely as long ones.
func (t *tape) log(most time.Duration) time.Duration { return t.instant(most >> t.n(12)) }

func pick[T any](t *tape, of ...T) T { return of[t.n(len(of))] }

// shrink returns the simplest choices that it finds for which fails holds, as it does
// for t, within so many tries.
func (t *tape) shrink(tries int, fails func(choices []uint64) (*tape, bool)) *tape {
	best := t
	attempt := func(choices []uint64) bool {
		if tries <= 0 || slices.Equal(choices, best.made) {
			return false
		}
		tries--
		next, ok := fails(choices)
		if ok {
			best = next
		}
		return ok
	}
	for {
		before := slices.Clone(best.made)
		// Leave things out, the largest first.
		spans := slices.Clone(best.spans)
		slices.SortFunc(spans, func(a, b span) int { return (b.to - b.from) - (a.to - a.from) })
		for i := 0; i < len(spans); i++ {
			s := spans[i]
			if s.to > len(best.made) {
				continue
			}
			if attempt(slices.Concat(best.made[:s.from], best.made[s.to:])) {
				spans = slices.Clone(best.spans)
				slices.SortFunc(spans, func(a, b span) int { return (b.to - b.from) - (a.to - a.from) })
				i = max(-1, min(i, len(spans))-2)
			}
		}
		// Make choices smaller, in blocks and then one by one.
		for size := 64; size > 0; size /= 4 {
			for at := 0; at < len(best.made); at += size {
				end := min(at+size, len(best.made))
				zeros := slices.Clone(best.made)
				clear(zeros[at:end])
				if attempt(zeros) || size > 1 {
					continue
				}
				for by := best.made[at] / 2; by > 0 && at < len(best.made); by /= 2 {
					smaller := slices.Clone(best.made)
					if smaller[at] < by {
						continue
					}
					smaller[at] -= by
					if !attempt(smaller) && by > 1<<20 {
						break
					}
				}
			}
		}
		if tries <= 0 || slices.Equal(before, best.made) {
			return best
		}
	}
}
