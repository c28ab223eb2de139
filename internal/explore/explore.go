// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package explore visits, for tests, every state that a small system can reach.
package explore

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// System is a system together with all that acts on it. It must be deterministic.
type System[Move any] interface {
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
type node[Move any] struct {
	from int // index of the state before it
	move Move
}

// All visits every state that the system reaches from its start, each once, and returns
// how many there are. If one is wrong, it fails t with the shortest way there.
//
// It makes a new system for each move, and repeats the moves before it. So no system
// must be copied, and a field that a copy would forget can't hide a state.
//
// Where two ways lead to one state, it also looks, now and then, whether they go on to
// the same states: State may leave out only what has no effect.
func All[Move any, S System[Move]](t testing.TB, start func() S) (states int) {
	t.Helper()
	s := start()
	nodes, seen, met := []node[Move]{{from: -1}}, map[[sha256.Size]byte]int{sum(s.State()): 0}, 0
	next := [][]Move{s.Moves()} // of nodes[at:]
	for at := 0; at < len(nodes); at++ {
		way := moves(nodes, at)
		for _, move := range next[at] {
			s := after(start, way, move)
			key := sum(s.State())
			if known, again := seen[key]; !again {
				seen[key] = len(nodes)
				nodes, next = append(nodes, node[Move]{at, move}), append(next, s.Moves())
				if err := s.Check(); err != nil {
					t.Fatalf("state %d: %v\n%s", len(nodes), err, story(append(way, move)))
				}
			} else if met++; met%checked == 0 {
				one, other := moves(nodes, known), append(slices.Clip(way), move)
				if !maps.Equal(successors(start, one), successors(start, other)) {
					t.Fatalf("one state, but not the same to follow:\n%s  or\n%s", story(one), story(other))
				}
			}
		}
		next[at] = nil
	}
	return len(nodes)
}

// checked is how many meetings of two ways there are for one that All looks at.
const checked = 500

// after returns a new system after some moves.
func after[Move any, S System[Move]](start func() S, way []Move, more ...Move) S {
	s := start()
	for _, m := range way {
		s.Do(m)
	}
	for _, m := range more {
		s.Do(m)
	}
	return s
}

// successors returns the states that may follow some moves.
func successors[Move any, S System[Move]](start func() S, way []Move) map[[sha256.Size]byte]bool {
	s := after(start, way)
	all := map[[sha256.Size]byte]bool{}
	for _, m := range s.Moves() {
		s := after(start, way, m)
		all[sum(s.State())] = true
	}
	return all
}

// moves returns the moves that lead to a node.
func moves[Move any](nodes []node[Move], at int) (way []Move) {
	n := 0
	for i := at; nodes[i].from >= 0; i = nodes[i].from {
		n++
	}
	way = make([]Move, n)
	for i := at; nodes[i].from >= 0; i = nodes[i].from {
		n--
		way[n] = nodes[i].move
	}
	return way
}

func story[Move any](way []Move) string {
	var b strings.Builder
	for i, m := range way {
		fmt.Fprintf(&b, "%3d. %v\n", i+1, m)
	}
	return b.String()
}
