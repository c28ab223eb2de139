// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/testenv"
)

// download is the body of a response, as a base gives it.
type download struct {
	io.ReadCloser
	id      int    // of the round trip
	end     func() // ends the attempt; nil if Close does
	reading atomic.Bool
	closed  atomic.Bool
}

func (d *download) Read(p []byte) (int, error) {
	d.reading.Store(true)
	defer d.reading.Store(false)
	return d.ReadCloser.Read(p)
}

func (d *download) Close() error {
	d.closed.Store(true)
	if d.end != nil && d.reading.Load() {
		// net/http's Close during a Read would stop the time of the bubble.
		d.end()
		time.Sleep(time.Nanosecond)
	}
	return d.ReadCloser.Close()
}

// lend notes the body of resp, which somebody must close. base has made resp, or is nil.
func (w *world) lend(r *roundTrip, resp *http.Response, base *http.Transport) {
	if _, writes := resp.Body.(io.Writer); writes || r == nil || resp.Body == nil || resp.Body == http.NoBody {
		return
	}
	d := &download{ReadCloser: resp.Body, id: r.id}
	if !testenv.Go126 && base != nil && resp.ProtoMajor == 1 {
		//lint:ignore SA1019 the base has no other means
		d.end = func() { base.CancelRequest(resp.Request) }
	}
	resp.Body = d
	w.mu.Lock()
	defer w.mu.Unlock()
	w.downloads = append(w.downloads, d)
}

// checkBodies checks that each body has been closed.
func (w *world) checkBodies() {
	for _, u := range w.uploads {
		// net/http's HTTP/2 drops copies that it has not begun to read.
		if u.closed.Load() == 0 && !(u.copied && !u.read.Load()) {
			w.breaks("P2", "a body of call %d was never closed", u.id)
		}
		if n := u.closed.Load(); n > 1 && u.once && w.retried(u.id*10) {
			w.breaks("P2", "a body of call %d was closed %d times", u.id, n)
		}
	}
	for _, d := range w.downloads {
		if !d.closed.Load() {
			w.breaks("P5", "r%d: the body of a response was never closed", d.id)
		}
	}
}

// retried reports whether round trip id has had a retry, and so a body that only retrip
// closes.
func (w *world) retried(id int) bool {
	r := w.trips[id]
	return r != nil && slices.ContainsFunc(r.events, func(e event) bool { return e.hook == "Attempt" && e.Attempt > 1 && e.at <= r.end })
}

// handle does with the body of req, which the base is about to send, what a good Base may
// do: it reads a copy first, to sign what it sends, or it finds that a connection is dead,
// as net/http does. It returns an error if the request can't be sent, and a response if the
// server responds before it is.
func (b *wrapper) handle(r *roundTrip, req *http.Request) (*http.Response, error) {
	if r == nil || !b.c.plan.Handles || req.Body == nil || b.c.w.calm.Load() {
		return nil, nil
	}
	once, gotten := r.call.Body == Stream || r.call.Body == Section, r.call.Body == OwnGet || r.call.Body == Rewinds
	r.mu.Lock()
	before := r.readers
	r.readers = append(r.readers, req.Body)
	r.mu.Unlock()
	for _, old := range before {
		if !once && !gotten {
			break
		}
		if n, err := old.Read(make([]byte, 10)); n > 0 || err == nil {
			b.c.w.breaks("P7", "%v: the reader of an attempt that is over yields %d bytes, %v", r, n, err)
		}
	}
	x := b.c.w.chance(hashOf("handle", r.id, len(before)))
	switch kind := x.next() % 5; {
	case kind == 0 && req.GetBody != nil && req.ContentLength > 0 && (once || r.call.Body == Bytes):
		return nil, b.sign(r, req)
	case kind == 1 && once:
		// net/http's HTTP/2 closes a body whose connection can't be used, and sends it
		// over another.
		return nil, req.Body.Close()
	case kind == 2 && once && req.GetBody != nil:
		// It takes a copy to send, and then there is no connection.
		_ = req.Body.Close()
		if _, err := req.GetBody(); err != nil {
			return nil, err
		}
		return nil, io.ErrUnexpectedEOF
	case kind == 3 && once:
		return b.ahead(r, req), nil
	case kind >= 3 && gotten:
		b.lag(r, req)
		return nil, io.ErrUnexpectedEOF
	}
	return nil, nil
}

// lag goes on reading the body of req, which has failed.
func (b *wrapper) lag(r *roundTrip, req *http.Request) {
	r.mu.Lock()
	attempt := len(r.readers)
	r.mu.Unlock()
	b.c.w.relays.Go(func() {
		defer req.Body.Close()
		for {
			n, err := req.Body.Read(make([]byte, 100))
			r.mu.Lock()
			over := len(r.readers) > attempt
			r.mu.Unlock()
			if over && n > 0 {
				b.c.w.breaks("P7", "%v: the reader of an attempt that is over yields %d bytes", r, n)
			}
			if err != nil {
				return
			}
			time.Sleep(7 * time.Millisecond)
		}
	})
}

// trailers checks that each attempt has trailers of its own.
func (b *wrapper) trailers(r *roundTrip, req *http.Request) {
	if !r.call.Trailer {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	same := func(earlier http.Header) bool {
		return reflect.ValueOf(earlier).Pointer() == reflect.ValueOf(req.Trailer).Pointer()
	}
	if slices.ContainsFunc(r.trailers, same) {
		b.c.w.breaks("P7", "%v: two attempts have one map of trailers", r)
	}
	r.trailers = append(r.trailers, req.Trailer)
}

// untouched checks that nobody reads the body of a request before the first attempt.
func (b *wrapper) untouched(r *roundTrip) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun || r.hop > 0 {
		return
	}
	r.begun = true
	for _, u := range r.bodies {
		if u.read.Load() {
			b.c.w.breaks("P7", "%v: the body is read before the base reads it", r)
		}
	}
}

// sign reads a copy of the body of req.
func (b *wrapper) sign(r *roundTrip, req *http.Request) error {
	body, err := req.GetBody()
	var got []byte
	if err == nil {
		got, err = readAll(req, body)
		_ = body.Close()
	}
	if err != nil {
		_ = req.Body.Close()
		return err
	}
	if !bytes.Equal(got, r.sends) {
		b.c.w.breaks("P7", "%v: GetBody yields %d bytes, which are not the body of %d bytes", r, len(got), len(r.sends))
	}
	return nil
}

// readAll reads all of body, unless req is canceled before.
func readAll(req *http.Request, body io.Reader) (got []byte, err error) {
	for buf := make([]byte, 500); err == nil; {
		var n int
		n, err = body.Read(buf)
		got = append(got, buf[:n]...)
		select {
		case <-req.Cancel: //lint:ignore SA1019 http.Client uses it
			err = cmp.Or(err, context.Canceled)
		default:
			err = cmp.Or(err, req.Context().Err())
		}
	}
	if err == io.EOF {
		err = nil
	}
	return got, err
}

// ahead responds as a server of HTTP/2 may, before it has got the body of req. Its response
// ends at once, and the body still goes on.
func (b *wrapper) ahead(r *roundTrip, req *http.Request) *http.Response {
	r.mu.Lock()
	r.ahead = true
	r.mu.Unlock()
	b.c.w.relays.Go(func() {
		got, err := readAll(req, req.Body)
		_ = req.Body.Close()
		if !bytes.HasPrefix(r.sends, got) {
			b.c.w.breaks("P7", "%v: the base gets %d bytes that are not the body", r, len(got))
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.whole = err == nil
	})
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/2.0", ProtoMajor: 2, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader("ahead")), ContentLength: -1, Request: req,
	}
}

// uploaded checks that the end of a response doesn't end the request's body, if the caller
// leaves it the time.
func (c *checker) uploaded() {
	r := c.r
	need := time.Duration(r.call.Size/500+2)*r.call.Drip + slack
	if r.ahead && !r.whole && c.attempts == 1 && r.reading.err == io.EOF && r.call.Linger > need && r.undisturbed() {
		c.breaks("P4", "the end of the response ends the request's body")
	}
}
