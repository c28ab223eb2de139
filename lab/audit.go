// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import "fmt"

// note is what is kept of a request until the ledger's account of it comes in.
type note uint8

const (
	answered note = 1 << iota // its caller was told something: a status or an error
	promised                  // namely a 2xx
	onlyOnce                  // it must not be sent again once it may have been executed
)

// Audit is what comes of comparing what the callers of a [Load] were told with
// what a [Ledger] executed, request by request.
type Audit struct {
	Begun      int // requests
	Unanswered int // of them, those whose caller was told nothing
	Lost       int // told to have succeeded, and never executed
	Duplicates int // executed twice or more, and not to be repeated
	Unasked    int // executed, and begun by nobody
}

// Audit compares the notes of l with executions, which [Ledger.Executions]
// returns when the server is closed, and so final.
func (l *Load) Audit(executions []uint8) Audit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return audit(l.notes, executions)
}

func audit(notes []note, executions []uint8) Audit {
	a := Audit{Begun: len(notes)}
	for id, n := range notes {
		var executed uint8
		if id < len(executions) {
			executed = executions[id]
		}
		if n&answered == 0 {
			a.Unanswered++
		}
		if n&promised != 0 && executed == 0 {
			a.Lost++
		}
		if n&onlyOnce != 0 && executed > 1 {
			a.Duplicates++
		}
	}
	for id := len(notes); id < len(executions); id++ {
		if executions[id] > 0 {
			a.Unasked++
		}
	}
	return a
}

// OK reports whether each caller got its answer, and the ledger knows what it
// must and no more.
func (a Audit) OK() bool { return a == Audit{Begun: a.Begun} }

func (a Audit) String() string {
	return fmt.Sprintf("%d requests begun, %d callers without an answer, %d requests lost, %d duplicates, %d executions that nobody asked for",
		a.Begun, a.Unanswered, a.Lost, a.Duplicates, a.Unasked)
}
