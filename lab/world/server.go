// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// version returns the version of the file of r at its arrival n, and its length.
func version(script []Step, n int) (version, length int) {
	if len(script) > 0 {
		length = script[0].Length
	}
	for i := 1; i < n && i < len(script); i++ {
		if script[i].Bump {
			version, length = version+1, script[i].Length
		}
	}
	return version, length
}

// noise is the source of all bodies.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, 2<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
})

// content returns the bytes that what stands for.
func content(length int, what ...any) []byte {
	at := int(hashOf(what...) % (1 << 20))
	return noise()[at : at+length]
}

// file returns a version of the file that round trip r may fetch.
func (r *roundTrip) file(version, length int) []byte { return content(length, "file", r.id, version) }

func (s *site) serve(rw http.ResponseWriter, req *http.Request) {
	id, _ := strconv.Atoi(req.Header.Get("World-Id"))
	r := s.w.trip(id)
	if r == nil {
		http.Error(rw, "nobody made this request", http.StatusBadRequest)
		return
	}
	a := r.arrive(s, req)
	defer r.note(func() { a.left = r.w.now() })
	if s.plan.TLS != (req.TLS != nil) {
		s.w.breaks("P4", "%v arrived over the wrong protocol", r)
	}
	h := rw.Header()
	h.Set("World-Arrival", strconv.Itoa(a.number))
	step := a.step
	// The Close of a response that is discarded waits for net/http's mutex while it waits for
	// the request's body, and virtual time for both.
	drips := r.call.Drip > 0 && !step.Duplex
	if a.outage != nil {
		if drips {
			r.receive(a, req)
		}
		status := http.StatusServiceUnavailable
		if a.outage.Kind == Throttling {
			status = http.StatusTooManyRequests
		}
		if a.outage.Word >= 0 {
			h.Set("Retry-After", strconv.Itoa(a.outage.Word))
			a.word = time.Duration(a.outage.Word) * time.Second
		}
		r.answers(a, status)
		rw.WriteHeader(status)
		return
	}
	if step.Kind == CutBefore {
		panic(http.ErrAbortHandler)
	}
	if !step.Early && !step.Duplex || drips {
		r.receive(a, req)
	}
	r.note(func() { a.processed = true })
	if step.Kind == CutAfter {
		panic(http.ErrAbortHandler)
	}
	if step.Kind == Hangs {
		_ = pause(req.Context(), time.Hour)
		panic(http.ErrAbortHandler)
	}
	if step.Kind == SendsHints {
		h.Set("Link", "</style.css>; rel=preload")
		rw.WriteHeader(http.StatusEarlyHints)
		// If the stream ends meanwhile, net/http's HTTP/2 may still read h, without a lock.
		if pause(req.Context(), 1) != nil {
			panic(http.ErrAbortHandler)
		}
		h.Del("Link")
	}
	if step.Delay > 0 && pause(req.Context(), step.Delay) != nil {
		panic(http.ErrAbortHandler)
	}
	if step.Kind == Upgrades && req.ProtoMajor == 1 && r.sends == nil {
		r.answers(a, http.StatusSwitchingProtocols)
		upgrade(rw, a.number)
		return
	}
	s.respond(rw, req, r, a)
}

// upgrade switches to a protocol in which the server says hello, and repeats four bytes.
func upgrade(rw http.ResponseWriter, arrival int) {
	conn, buf, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer conn.Close()
	_, _ = fmt.Fprintf(buf, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: world\r\nWorld-Arrival: %d\r\n\r\nhello", arrival)
	_ = buf.Flush()
	var word [4]byte
	if _, err := io.ReadFull(buf, word[:]); err == nil {
		_, _ = conn.Write(word[:])
	}
}

// respond writes the response to arrival a.
func (s *site) respond(rw http.ResponseWriter, req *http.Request, r *roundTrip, a *arrival) {
	step, h := a.step, rw.Header()
	status := step.Status
	if status == 0 {
		status = http.StatusOK
	}
	a.word = step.say(h, time.Now())
	if step.Forbid {
		h.Set("X-Should-Retry", "false")
	}
	if step.Final {
		h.Set("World-Final", "1")
	}
	if step.Close {
		h.Set("Connection", "close")
	}
	if step.Kind == Redirects {
		to := s.w.sites[(s.number+1)%len(s.w.sites)]
		location := to.scheme() + "://" + to.host() + "/redirected"
		if len(s.plan.Conns) == 0 {
			// net/http's error repeats a header line that is cut, and doesn't say that it
			// has a URL.
			location += "?token=" + hush + "-query"
		}
		h.Set("Location", location)
		r.answers(a, http.StatusTemporaryRedirect)
		rw.WriteHeader(http.StatusTemporaryRedirect)
		return
	}
	body := content(step.Length, "answer", r.id, a.number)
	if status == http.StatusOK && (req.Method == http.MethodGet || req.Method == http.MethodHead) {
		number, length := version(r.script, a.number)
		body = r.file(number, length)
		h.Set("World-Version", strconv.Itoa(number))
		status, body = step.part(h, req, r.tag(step, number), body, s.plan.Unsized)
	}
	if status == http.StatusNotModified {
		body = nil
	}
	h.Set("World-Status", strconv.Itoa(status))
	switch {
	case step.Ends == Announced:
		h.Set("Trailer", "World-End")
	case step.Ends == NoTrailer && !step.Plain && status != http.StatusNotModified:
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	h.Set("Content-Type", "application/octet-stream")
	r.answers(a, status)
	control := http.NewResponseController(rw)
	if step.Duplex {
		_ = control.EnableFullDuplex()
	}
	rw.WriteHeader(status)
	flush := control.Flush
	if step.Duplex {
		_ = flush()
		r.receive(a, req)
	}
	if req.Method == http.MethodHead {
		return
	}
	if step.Stall > 0 && len(body) > 1 {
		_, _ = rw.Write(body[:len(body)/2])
		_ = flush()
		body = body[len(body)/2:]
		if pause(req.Context(), step.Stall) != nil {
			panic(http.ErrAbortHandler)
		}
	}
	if step.Cut > 0 && step.Cut <= len(body) {
		_, _ = rw.Write(body[:step.Cut-1])
		_ = flush()
		// The bytes should arrive, and then the end.
		_ = pause(req.Context(), 4*s.plan.Latency)
		panic(http.ErrAbortHandler)
	}
	_, _ = rw.Write(body)
	switch {
	case status == http.StatusNotModified:
	case step.Ends == Announced:
		h.Set("World-End", strconv.Itoa(a.number))
	case step.Ends == Surprise:
		_ = flush() // lest net/http sends a Content-Length, and no trailer
		h.Set(http.TrailerPrefix+"World-End", strconv.Itoa(a.number))
	}
}

// tag returns the ETag of a version of the file, without a W/.
func (r *roundTrip) tag(s Step, version int) string {
	if s.Ranges == WeakTag {
		version = 0
	}
	return fmt.Sprintf("%q", fmt.Sprintf("%d-%d", r.id, version))
}

// part sets the validators of a file, and cuts the part that req asks for out of it.
func (s Step) part(h http.Header, req *http.Request, tag string, file []byte, unsized bool) (int, []byte) {
	changed := time.Now().Add(-24 * time.Hour).Truncate(24 * time.Hour).UTC().Format(http.TimeFormat)
	switch s.Ranges {
	case NoValidator:
	case NoTag:
		h.Set("Last-Modified", changed)
	case WeakTag:
		h.Set("ETag", "W/"+tag)
	default:
		h.Set("ETag", tag)
	}
	size := strconv.Itoa(len(file))
	if unsized {
		size = "*"
	}
	var first, last int
	n, _ := fmt.Sscanf(req.Header.Get("Range"), "bytes=%d-%d", &first, &last)
	if n != 2 && s.Ranges == PartAs200 && len(file) > 3 {
		n, first, last = 2, len(file)/3, len(file)-1
	}
	if n != 2 || first >= len(file) || last < first || s.Ranges == IgnoresRange {
		return http.StatusOK, file
	}
	last = min(last, len(file)-1)
	if v := req.Header.Get("If-Range"); v != "" && v != tag && v != changed && s.Ranges != ignoreIfRange {
		return http.StatusOK, file
	}
	from, to := first, last
	switch s.Ranges {
	case WrongRange:
		from, to = max(0, first-1), max(0, last-1)
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first+1, last+1, len(file)+1))
		return http.StatusPartialContent, file[from : to+1]
	case ShortRange:
		to = first + (last-first)/2
	case EarlyRange:
		from = max(0, first-10)
	case LateRange:
		from = min(first+10, last)
	}
	h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%s", from, to, size))
	if s.Ranges == PartAs200 {
		return http.StatusOK, file[from : to+1]
	}
	return http.StatusPartialContent, file[from : to+1]
}
