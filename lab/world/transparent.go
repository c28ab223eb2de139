// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"time"

	"github.com/retrip/retrip"
)

// traced counts what an httptrace sees of a call.
type traced struct{ conns, firstBytes int }

// trace returns ctx with a trace that counts for the call.
func (of *callOf) trace(ctx context.Context) context.Context {
	count := func(n *int) {
		of.mu.Lock()
		defer of.mu.Unlock()
		*n++
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:              func(httptrace.GotConnInfo) { count(&of.traced.conns) },
		GotFirstResponseByte: func() { count(&of.traced.firstBytes) },
	})
}

// transparent checks that retrip gives what net/http gives.
func (c *checker) transparent() {
	r := c.r
	if r.resp == nil {
		c.single()
		return
	}
	a := r.arrivalOf(r.resp.Header)
	if a == nil {
		return
	}
	if v := r.resp.Header.Get("Content-Length"); v != "" && v != strconv.FormatInt(r.resp.ContentLength, 10) {
		c.breaks("P1", "ContentLength is %d, and the server sent %s", r.resp.ContentLength, v)
	}
	if sent := a.step.Ends != NoTrailer && a.status != http.StatusNotModified && r.call.Method != http.MethodHead && a.outage == nil && r.resp.Header.Get("World-Status") != ""; sent && r.reading.err == io.EOF && len(c.rest) == 0 && c.p.Classify != PeeksAtStart {
		if got := r.resp.Trailer.Get("World-End"); got != strconv.Itoa(a.number) {
			c.breaks("P1", "the trailer has %q, and the server sent %d", got, a.number)
		}
	}
	if t := r.call.Traced; t && r.hop == 0 && (r.of.traced.conns < len(r.arrivals) || r.of.traced.firstBytes == 0) {
		c.breaks("P4", "an httptrace has seen %d connections and %d first bytes, %d requests arrived", r.of.traced.conns, r.of.traced.firstBytes, len(r.arrivals))
	}
	if c.p.RetryHeader == "World-Retry" && !c.hedged && len(c.rest) == 0 {
		want := strconv.Itoa(c.attempts)
		if c.attempts == 1 {
			want = ""
		}
		if a.retry != want {
			c.breaks("P4", "RetryHeader is %q in attempt %d", a.retry, c.attempts)
		}
	}
}

// headers checks what the servers got besides the caller's header fields.
func (c *checker) headers() {
	r, p := c.r, c.p
	p.IdempotencyKey = retrip.Off
	generated := c.p.IdempotencyKey == retrip.On && !r.call.Key && !r.repeatable(p)
	for _, a := range r.arrivals {
		if len(a.strange) > 0 {
			c.breaks("P4", "arrival %d has the header fields %q", a.number, a.strange)
		}
		switch own := r.call.keyOf(r.of.id); {
		case r.call.Key && a.key != own:
			c.breaks("P4", "arrival %d has the Idempotency-Key %s, the caller's is %s", a.number, a.key, own)
		case !r.call.Key && (a.key != "") != generated:
			c.breaks("P6", "arrival %d has the Idempotency-Key %q, and one is to be generated: %v", a.number, a.key, generated)
		}
	}
}

// usual are the header fields that the world and net/http send.
var usual = []string{
	"Accept-Encoding", "Authorization", "Connection", "Content-Length", "Idempotency-Key", "If-Range", "Range", "Referer", "Retry-Attempt", "User-Agent",
	"World-Id", "World-Retry", "World-Safe", "World-Tenant", "X-Hush",
}

// strange returns the names of other header fields in h.
func strange(h http.Header) (names []string) {
	for name := range h {
		if !slices.Contains(usual, name) {
			names = append(names, name)
		}
	}
	return names
}

// single checks that the error of a single attempt is that of the base.
func (c *checker) single() {
	if c.attempts != 1 || len(c.own) == 0 {
		return
	}
	if c.waited() {
		return
	}
	switch reason := c.own[len(c.own)-1].Reason; reason {
	case "", retrip.ReasonMaxAttempts, retrip.ReasonNotIdempotent:
		if _, is := errors.AsType[*retrip.Error](c.r.err); is {
			c.breaks("P3", "the error of a single attempt is %v", c.r.err)
		}
	}
}

// converse speaks the other protocol after a 101: the server says hello, and repeats what
// it gets.
func (r *roundTrip) converse(body io.ReadWriteCloser) {
	// Nothing else ends it on a connection that has frozen.
	defer time.AfterFunc(time.Minute, func() { _ = body.Close() }).Stop()
	got := make([]byte, 9)
	_, err := io.ReadFull(body, got[:5])
	if err == nil {
		_, err = body.Write([]byte("ping"))
	}
	if err == nil {
		_, err = io.ReadFull(body, got[5:])
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil && string(got) != "helloping":
		r.w.breaks("P1", "%v: after 101, the server says %q", r, got)
	case err != nil && r.undisturbed():
		r.w.breaks("P1", "%v: after 101, the connection breaks: %v", r, err)
	}
}

// upgraded reads and writes the body of a 101. It reports whether resp is one.
func (r *roundTrip) upgraded(resp *http.Response) bool {
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return false
	}
	// http.Client with a Timeout hides how to write.
	if body, ok := resp.Body.(io.ReadWriteCloser); ok && r.call.Read == ReadsAll {
		time.Sleep(r.call.Pace)
		r.converse(body)
	}
	r.close(resp)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reading = reading{err: io.EOF, done: true, closed: r.w.now()}
	return true
}
