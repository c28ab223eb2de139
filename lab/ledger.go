// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
)

// Header fields in which a request states its number, the length and the
// SHA-256 sum of its body, and the size of the answer it wants. An answer
// repeats the number.
const (
	idField     = "Lab-Id"
	lengthField = "Lab-Length"
	sumField    = "Lab-Sum"
	wantField   = "Lab-Want"
)

// Ledger is an [http.Handler] that records which requests it has executed. It
// executes requests with the same Idempotency-Key once. It fails a share of the
// requests in every way a server can: before it reads the body, while it reads
// it, and after it has executed the request. It is safe for concurrent use.
type Ledger struct {
	mu       sync.Mutex
	draws    *rand.Rand
	faults   float64
	executed []uint8 // times, by number
	corrupt  int
	failed   int
}

// NewLedger returns an empty Ledger that fails the given share of requests,
// chosen by seed.
func NewLedger(seed uint64, faults float64) *Ledger {
	return &Ledger{draws: rand.New(rand.NewPCG(seed, 1)), faults: faults}
}

// serverFault is a way to fail one request.
type serverFault int

const (
	noFault        serverFault = iota
	refuseUnread               // 503 before the body
	refuseHalfRead             // 503 in the middle of the body
	throttle                   // 429
	hangUpBefore               // the connection is closed before execution
	hangUpAfter                // and after it
	failAfter                  // 500 after execution
	serverFaults
)

func (l *Ledger) arrive() serverFault {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.draws.Float64() >= l.faults {
		return noFault
	}
	l.failed++
	return 1 + serverFault(l.draws.IntN(int(serverFaults)-1))
}

// ServeHTTP reads the body, compares it with what the header states, and
// executes the request.
func (l *Ledger) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	id, err := strconv.Atoi(req.Header.Get(idField))
	if err != nil {
		http.Error(w, "no number", http.StatusBadRequest)
		return
	}
	w.Header().Set(idField, req.Header.Get(idField))
	fault := l.arrive()
	switch fault {
	case refuseUnread:
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	case refuseHalfRead:
		_, _ = io.CopyN(io.Discard, req.Body, 10<<10)
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	case throttle:
		http.Error(w, "slow down", http.StatusTooManyRequests)
		return
	case hangUpBefore:
		panic(http.ErrAbortHandler)
	}
	sum := sha256.New()
	n, err := io.Copy(sum, req.Body)
	if err != nil {
		// A request that didn't arrive completely is not executed.
		panic(http.ErrAbortHandler)
	}
	if strconv.FormatInt(n, 10) != req.Header.Get(lengthField) || hex.EncodeToString(sum.Sum(nil)) != req.Header.Get(sumField) {
		l.mu.Lock()
		l.corrupt++
		l.mu.Unlock()
		http.Error(w, "not the body that was promised", http.StatusBadRequest)
		return
	}
	l.execute(id, req.Header.Get("Idempotency-Key") != "")
	switch fault {
	case hangUpAfter:
		panic(http.ErrAbortHandler)
	case failAfter:
		http.Error(w, "executed, and failed to say so", http.StatusInternalServerError)
		return
	}
	want, _ := strconv.Atoi(req.Header.Get(wantField))
	w.Header().Set("Content-Length", strconv.Itoa(want))
	_, _ = w.Write(noise()[:want])
}

func (l *Ledger) execute(id int, keyed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if missing := id + 1 - len(l.executed); missing > 0 {
		l.executed = append(l.executed, make([]uint8, missing)...)
	}
	times := &l.executed[id]
	if keyed && *times > 0 || *times == 255 {
		return
	}
	*times++
}

// Executions returns how often each request was executed, by number, counting
// up to 255. It is final once the server is closed, because no late request can
// arrive then.
func (l *Ledger) Executions() []uint8 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.executed)
}

// Corrupt returns how many bodies ended regularly but differ from what was
// sent.
func (l *Ledger) Corrupt() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.corrupt
}

// Faults returns how many requests the ledger failed on purpose.
func (l *Ledger) Faults() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// noise is the source of all bodies.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, 2<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
})
