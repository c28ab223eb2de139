// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package explore visits, for tests, every state that a small system can reach.
package explore

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// System is a system together with all that acts on it. It must be deterministic.
type System[Move comparable] interface {
	// Moves returns all that may happen next; nothing at an end.
	Moves() []Move

	// Do makes one of these moves.
	Do(Move)

	// State returns all that Moves, Do and Check depend on. Package explore looks
	// into it, also behind pointers and into unexported fields.
	State() []any

	// Check returns what is wrong. Nothing follows it, so it may go on to see how the
	// system would end.
	Check() error
}

// node is a state, as the last move that leads to it.
type node struct{ from, move uint32 } // indexes of the state before it, and of the move

// tree is the states found, and the shortest way to each.
type tree[Move comparable] struct {
	nodes []node
	seen  map[[16]byte]uint32 // indexes of nodes by the start of their sum
	moves []Move
	index map[Move]uint32 // of moves
}

// All visits every state that the system reaches from its start, each once, and returns
// how many there are. If one is wrong, it fails t with the shortest way there.
//
// It makes a new system for each move, and repeats the moves before it. So no system
// must be copied, and a field that a copy would forget can't hide a state.
//
// Where two ways lead to one state, it also looks, now and then, whether they go on to
// the same states: State may leave out only what has no effect.
func All[Move comparable, S System[Move]](t testing.TB, start func() S) (states int) {
	t.Helper()
	all := &tree[Move]{seen: map[[16]byte]uint32{}, index: map[Move]uint32{}}
	first := start()
	all.add(sum(first.State()), 0, *new(Move))
	met := 0
	for at := 0; at < len(all.nodes); at++ {
		way := all.way(at)
		s := after(start, way)
		for i, move := range s.Moves() {
			if i > 0 {
				s = after(start, way)
			}
			s.Do(move)
			key := sum(s.State())
			if known, again := all.seen[key]; !again {
				all.add(key, at, move)
				if err := s.Check(); err != nil {
					t.Fatalf("state %d: %v\n%s", len(all.nodes), err, story(append(way, move)))
				}
			} else if met++; met%checked == 0 {
				one, other := all.way(int(known)), append(slices.Clip(way), move)
				if !maps.Equal(successors(start, one), successors(start, other)) {
					t.Fatalf("one state, but not the same to follow:\n%s  or\n%s", story(one), story(other))
				}
			}
		}
	}
	return len(all.nodes)
}

// add adds the state with a key, to which a move leads from another.
func (t *tree[Move]) add(key [16]byte, from int, move Move) {
	i, known := t.index[move]
	if !known {
		i = uint32(len(t.moves))
		t.moves, t.index[move] = append(t.moves, move), i
	}
	t.seen[key] = uint32(len(t.nodes))
	t.nodes = append(t.nodes, node{uint32(from), i})
}

// way returns the moves that lead to a state.
func (t *tree[Move]) way(at int) (way []Move) {
	for ; at > 0; at = int(t.nodes[at].from) {
		way = append(way, t.moves[t.nodes[at].move])
	}
	slices.Reverse(way)
	return way
}

// checked is how many meetings of two ways there are for one that All looks at.
const checked = 500

// after returns a new system after some moves.
func after[Move comparable, S System[Move]](start func() S, way []Move) S {
	s := start()
	for _, m := range way {
		s.Do(m)
	}
	return s
}

// successors returns the states that may follow some moves.
func successors[Move comparable, S System[Move]](start func() S, way []Move) map[[16]byte]bool {
	all := map[[16]byte]bool{}
	for _, m := range after(start, way).Moves() {
		s := after(start, way)
		s.Do(m)
		all[sum(s.State())] = true
	}
	return all
}

func story[Move any](way []Move) string {
	var b strings.Builder
	for i, m := range way {
		fmt.Fprintf(&b, "%3d. %v\n", i+1, m)
	}
	return b.String()
}
