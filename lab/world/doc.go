// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package world tests all promises at once: one seed is one random world, in which
// everything that retrip offers runs at the same time, on virtual time, and an oracle
// that knows what really happened.
//
//	go test -run TestWorlds ./lab/world -args -worlds 3000           # seeds 1 to 3000
//	go test -run TestWorlds ./lab/world -args -worlds 1 -seed 1362   # one of them again
//	go test -c -o /some/where/world ./lab/world                      # to run it more often
//
// TestWorlds stops at the first world in which a promise broke, and prints the promise,
// the instant, and the story of the simplest world that breaks it too, of at most 30
// lines; -story prints more, and -shrink 0 doesn't look for a simpler world.
//
// A [Plan] is the whole script of a world, made from the choices of a tape: policies,
// calls, what each server does with each arrival, faults of connections, outages,
// operators. [Run] plays it in a testing/synctest bubble, with real http.Clients and
// servers. The servers keep a ledger, and checker, in oracle.go, compares it with what
// the callers, hooks, metrics and logs have seen.
package world
