// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

// counters are two numbers below limit, of which each move increases one.
type counters struct {
	limit int
	n     [2]*int
	bad   [2]int
}

func count(limit int, bad [2]int) func() *counters {
	return func() *counters { return &counters{limit: limit, n: [2]*int{new(int), new(int)}, bad: bad} }
}

func (c *counters) Moves() (all []int) {
	for i, n := range c.n {
		if *n+1 < c.limit {
			all = append(all, i)
		}
	}
	return all
}

func (c *counters) Do(i int) { *c.n[i]++ }

func (c *counters) State() []any { return []any{c.n} }

func (c *counters) Check() error {
	defer func() { *c.n[0] = -1 }() // nobody looks at it any more
	if [2]int{*c.n[0], *c.n[1]} == c.bad {
		return errors.New("bad")
	}
	return nil
}

func TestAll(t *testing.T) {
	assert.Equal(t, 100, All(t, count(10, [2]int{-1, -1})))
	assert.Equal(t, "state 9: bad\n  1. 0\n  2. 1\n  3. 1\n", failure(t, count(10, [2]int{1, 2})), "the shortest way, and the first of these")
}

// forgetful counts, and may do something else once, of which it doesn't tell.
type forgetful struct {
	n    int
	done bool
}

func (f *forgetful) Moves() (all []int) {
	if !f.done {
		all = append(all, 0)
	}
	if f.n < checked {
		all = append(all, 1)
	}
	return all
}

func (f *forgetful) Do(i int) {
	if f.n += i; i == 0 {
		f.done = true
	}
}

func (f *forgetful) State() []any { return []any{f.n} }

func (f *forgetful) Check() error { return nil }

// A state that hides what has an effect is found.
func TestAll_Hidden(t *testing.T) {
	assert.Contains(t, failure(t, func() *forgetful { return new(forgetful) }), "one state, but not the same to follow:\n  1. ")
}

// failure returns how All fails.
func failure[S System[int]](t *testing.T, start func() S) string {
	t.Helper()
	failed := &failing{TB: t}
	func() {
		defer func() { assert.NotNil(t, recover()) }()
		All(failed, start)
	}()
	return failed.text
}

// failing is a test that ends with a panic when it fails.
type failing struct {
	testing.TB
	text string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	panic(f.text)
}

// Values with the same state have the same sum, and others have another one.
func TestSum(t *testing.T) {
	type node struct {
		name string
		next *node
		any  any
		done chan int
		sub  map[string]float64
	}
	ring := func(name string) *node {
		a, b := &node{name: "a"}, &node{name: name}
		a.next, b.next = b, a
		return a
	}
	assert.Equal(t, sum([]any{ring("b")}), sum([]any{ring("b")}))
	seen := map[[16]byte]int{}
	for i, v := range []any{
		nil, 0, "", "0", node{}, node{any: 1}, node{any: true}, node{done: make(chan int)}, &node{}, ring("b"), ring("c"), ring("b").next,
		[]int{1}, []int{1, 0}, []any{[]int{1}, 0}, node{sub: map[string]float64{"a": 1, "b": 2}}, node{sub: map[string]float64{"a": 2, "b": 1}},
		[]*node{{}, {}}, func() []*node { n := &node{}; return []*node{n, n} }(),
	} {
		key := sum([]any{v})
		if other, known := seen[key]; known {
			assert.Less(t, i, 3, "%d and %d", other, i) // nil, 0 and "" look the same
		}
		seen[key] = i
	}
	assert.Equal(t, sum([]any{map[int]int{1: 2, 3: 4, 5: 6}}), sum([]any{map[int]int{5: 6, 3: 4, 1: 2}}))
	assert.Panics(t, func() { sum([]any{complex(1, 2)}) })
}
