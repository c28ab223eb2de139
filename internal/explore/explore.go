// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package explore visits, for tests, every state that a small system can reach.
package explore

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
)

// System is a system together with all that acts on it. It must be deterministic. If it
// has a method Close, Close is called at the end.
type System[Move any] interface {
	// Moves returns all that may happen next; nothing at an end.
	Moves() []Move

	// Do makes one of these moves.
	Do(Move)

	// State returns all that Moves, Do and Check depend on. Package explore looks
	// into it, also behind pointers and into unexported fields.
	State() []any

	// Check returns what is wrong. Only Close follows it, so it may go on to see how
	// the system would end.
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
func All[Move any, S System[Move]](t testing.TB, start func() S) (states int) {
	t.Helper()
	s := start()
	defer end(s)
	nodes, seen := []node[Move]{{from: -1}}, map[[sha256.Size]byte]struct{}{sum(s.State()): {}}
	next := [][]Move{s.Moves()} // of nodes[at:]
	for at := 0; at < len(nodes); at++ {
		way := moves(nodes, at)
		for _, move := range next[at] {
			s := start()
			for _, m := range way {
				s.Do(m)
			}
			s.Do(move)
			key := sum(s.State())
			if _, known := seen[key]; !known {
				seen[key] = struct{}{}
				nodes, next = append(nodes, node[Move]{at, move}), append(next, s.Moves())
				if err := s.Check(); err != nil {
					end(s)
					t.Fatalf("state %d: %v\n%s", len(nodes), err, story(append(way, move)))
				}
			}
			end(s)
		}
		next[at] = nil
	}
	return len(nodes)
}

// end closes a system that has something to close.
func end(s any) {
	if c, ok := s.(interface{ Close() }); ok {
		c.Close()
	}
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
