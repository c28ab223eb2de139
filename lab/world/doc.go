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
// the callers, hooks, metrics and logs have seen. It has a small model of a policy of
// its own (model.go). Then 26 hours pass (afterwards.go): no host may have a state, and
// one more request to each site must succeed at once.
//
// A tape is a list of small numbers, and zero is the dullest choice, so that a story
// shrinks by leaving out parts of the tape and making its numbers smaller. The same
// seed gives the same world: each delay has random nanoseconds of its own, because the
// scheduler chooses the order of goroutines that can run at one instant, and the
// process has one processor and no garbage collection. One run in some hundreds
// differs all the same, where a select of net/http chooses.
//
// To add a promise:
//
//   - Give the world what it is about: a field of Plan whose zero means none, drawn in
//     planOf.
//   - Note what happened where it can't lie: in the ledger, at a hook, in the caller.
//   - Add the check to checker, with breaks("P6", …). Model it from the docs, not from
//     the code, and check nothing where the docs promise nothing.
//   - Break the library on purpose, and see that the world finds it.
//
// The world doesn't reach proxies and CONNECT, malformed requests, odd files in Resume,
// bodies whose Close hangs or panics, a full table whose hosts all miss tokens, Bases
// that answer after a cancellation, the shares of a limit that a gate gets (P23), and
// the cost of a request (P16). Other tests do.
package world
