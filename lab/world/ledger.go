// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"time"
)

// arrival is an entry of the ledger: what a server knows of one request.
type arrival struct {
	at        time.Duration
	site      int
	number    int      // of the round trip, from 1
	retry     string   // World-Retry
	key       string   // Idempotency-Key
	strange   []string // other header fields
	whole     bool     // its body has arrived whole
	wrong     bool     // its body differs from what was sent
	got       int      // bytes of its body
	step      Step
	outage    *Outage
	processed bool
	status    int           // of the response; 0 for none
	sent      time.Duration // instant of the response's header
	left      time.Duration // when the server was done with it; 0: it isn't
	word      time.Duration // the wait that it names
}

// receive reads the body of a request and compares it with what was sent.
func (r *roundTrip) receive(a *arrival, req *http.Request) {
	got, err := io.ReadAll(req.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	a.got, a.whole = len(got), err == nil
	if sum := req.Trailer.Get("World-Sum"); a.whole && r.call.Trailer && sum != strconv.Itoa(r.call.Size) {
		r.w.breaks("P7", "%v: arrival %d has a trailer %q", r, a.number, sum)
	}
	a.wrong = !bytes.HasPrefix(r.sends, got) || a.whole && len(got) != len(r.sends)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

func (r *roundTrip) arrive(s *site, req *http.Request) *arrival {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := &arrival{
		at: r.w.now(), site: s.number, number: len(r.arrivals) + 1,
		retry: req.Header.Get("World-Retry"), key: req.Header.Get("Idempotency-Key"), strange: strange(req.Header),
	}
	if a.number <= len(r.script) {
		a.step = r.script[a.number-1]
	}
	if s.limited() {
		a.outage = &Outage{Kind: Throttling, Word: s.plan.Word}
	}
	if o := s.outage(); o != nil && (o.Kind == Unavailable || o.Kind == Throttling) && (o.Part == 0 || o.Part == r.call.Part) {
		a.outage = o
	}
	r.arrivals = append(r.arrivals, a)
	r.w.log("%v: arrival %d at s%d %s %s", r, a.number, s.number, a.retry, req.Header.Get("Range"))
	return a
}

// arrivalOf returns the arrival whose response has the header h, or nil.
func (r *roundTrip) arrivalOf(h http.Header) *arrival {
	n, _ := strconv.Atoi(h.Get("World-Arrival"))
	if n < 1 || n > len(r.arrivals) {
		return nil
	}
	return r.arrivals[n-1]
}

// note changes what the ledger knows of an arrival.
func (r *roundTrip) note(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

func (r *roundTrip) answers(a *arrival, status int) {
	r.note(func() { a.status, a.sent = status, r.w.now() })
	r.w.log("%v: arrival %d gets %d, wait %v", r, a.number, status, a.word)
}
