// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

// note is what Load keeps about a request until the ledger's executions are
// known.
type note uint8

const (
	answered note = 1 << iota // its caller got an outcome: a status or an error
	promised                  // the outcome was a 2xx
	onlyOnce                  // it must not be sent again once it may have been executed
)

// Audit compares what the callers of a [Load] were told with what a [Ledger]
// executed, request by request.
type Audit struct {
	Begun      int // requests
	Unanswered int // requests whose caller got no outcome
	Lost       int // reported as successful, but never executed
	Duplicates int // executed more than once, although they must not be repeated
	Unasked    int // executed, although no caller made them
}

// Audit compares the notes of l with executions, the result of
// [Ledger.Executions] after the server was closed.
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
