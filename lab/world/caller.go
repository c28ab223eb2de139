// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing/iotest"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// upload is a request body that counts its Closes.
type upload struct {
	io.Reader
	id     int           // of the call
	copied bool          // it comes from GetBody
	once   bool          // it is a stream, which only retrip closes
	drip   time.Duration // of each Read
	atEnd  func()        // nil: nothing happens then
	used   atomic.Bool   // by somebody, at this moment
	two    func()        // is called if two use it at once
	read   atomic.Bool
	closed atomic.Int32
	left   int64 // bytes up to the announced length; negative if it is unknown
}

func (u *upload) Read(p []byte) (int, error) {
	defer u.alone()()
	u.read.Store(true)
	if u.drip > 0 && u.left != 0 {
		time.Sleep(u.drip)
		p = p[:min(len(p), 500)]
	}
	n, err := u.Reader.Read(p)
	u.left -= int64(n)
	if err == io.EOF && u.atEnd != nil {
		u.atEnd()
	}
	return n, err
}

// Seek makes it possible to rewind u.
func (u *upload) Seek(offset int64, whence int) (int64, error) {
	defer u.alone()()
	s, ok := u.Reader.(io.Seeker)
	if !ok {
		return 0, errOwn
	}
	before, _ := s.Seek(0, io.SeekCurrent)
	after, err := s.Seek(offset, whence)
	if u.left >= 0 {
		u.left += before - after
	}
	return after, err
}

// alone begins a use of u, which the function that it returns ends.
func (u *upload) alone() func() {
	if !u.used.CompareAndSwap(false, true) {
		u.two()
	}
	return func() { u.used.Store(false) }
}

func (u *upload) Close() error {
	u.closed.Add(1)
	return nil
}

// request makes the request of a call.
func (c *Call) request(ctx context.Context, w *world, id int) *http.Request {
	s := w.sites[c.Site]
	host := []string{s.host(), strings.ToUpper(s.host()), s.host() + ".", s.host() + ":" + s.port()}[c.Spells]
	url := s.scheme() + "://" + hush + "-user:" + hush + "-password@" + host + "/" + [...]string{"", "orders/", "search/"}[c.Part] + strconv.Itoa(id) + "?token=" + hush + "-query"
	payload := content(c.Size, "upload", id)
	var body io.Reader
	switch c.Body {
	case NoBody:
	case Bytes:
		body = bytes.NewReader(payload)
	case Section:
		body = io.NewSectionReader(bytes.NewReader(payload), 0, int64(len(payload)))
	case FailsRead:
		body = &upload{id: id, Reader: io.MultiReader(bytes.NewReader(payload[:len(payload)/2]), iotest.ErrReader(errOwn))}
	default:
		body = &upload{id: id, drip: c.Drip, once: c.Body == Stream && c.Panics == NoPanic, Reader: bytes.NewReader(payload)}
	}
	req, err := http.NewRequestWithContext(ctx, c.Method, url, body)
	must(err)
	if c.Body == Section || c.Size%2 == 0 && c.Body != NoBody && !c.Trailer {
		req.ContentLength = int64(len(payload))
	}
	two := func() { w.breaks("P7", "two use a body of call %d at once", id) }
	var atEnd func()
	if c.Trailer {
		req.Trailer = http.Header{"World-Sum": nil}
		atEnd = func() { req.Trailer.Set("World-Sum", strconv.Itoa(c.Size)) }
	}
	switch c.Body {
	case OwnGet:
		req.GetBody = func() (io.ReadCloser, error) {
			return w.opened(&upload{id: id, copied: true, drip: c.Drip, two: two, atEnd: atEnd, left: cmp.Or(req.ContentLength, -1), Reader: bytes.NewReader(payload)}), nil
		}
	case Rewinds:
		req.GetBody = func() (io.ReadCloser, error) {
			_, err := body.(*upload).Seek(0, io.SeekStart)
			return req.Body, err
		}
	case FailsGet:
		req.GetBody = func() (io.ReadCloser, error) { return nil, errOwn }
	case TooShort:
		req.ContentLength = int64(len(payload)) + 7
	}
	if u, ok := body.(*upload); ok {
		u.left, u.two, u.atEnd = cmp.Or(req.ContentLength, -1), two, atEnd
		w.opened(u)
	}
	req.Header.Set("X-Hush", hush+"-header")
	req.Header.Set("World-Tenant", strconv.Itoa(id%2))
	if c.Key {
		req.Header.Set("Idempotency-Key", c.keyOf(id))
	}
	if c.Safe {
		req.Header.Set("World-Safe", "1")
	}
	if c.Range {
		req.Header.Set("Range", "bytes=3-400")
	}
	return req
}

// keyOf returns the Idempotency-Key of the caller of call id.
func (c *Call) keyOf(id int) string { return fmt.Sprintf("%q", fmt.Sprint("key-", id)) }

// run makes the calls of caller number n.
func (w *world) caller(n int, plan *Caller) {
	time.Sleep(plan.Start)
	var burst sync.WaitGroup
	defer burst.Wait()
	for i := range plan.Calls {
		time.Sleep(plan.Calls[i].Gap)
		call := func() { w.call(n*100+i, w.clients[plan.Transport], &plan.Calls[i]) }
		if plan.Burst {
			burst.Go(call)
		} else {
			call()
		}
	}
}

// patience is after how long a caller goes who has no deadline.
const patience = 10 * time.Minute

// call makes one call and reads the response.
func (w *world) call(id int, c *client, plan *Call) {
	of := &callOf{id: id, call: plan}
	w.called(of)
	ctx := context.WithValue(context.Background(), callKey{}, of)
	if plan.Policy != nil {
		ctx = retrip.WithPolicy(ctx, w.policyOf(*plan.Policy))
	}
	if plan.Panics != NoPanic {
		ctx = retrip.WithTrace(ctx, plan.Panics.hooks())
	}
	if plan.Traced {
		ctx = of.trace(ctx)
	}
	if plan.Hints != NoHints {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error {
			if plan.Hints == RefusesHints {
				return errCause
			}
			return nil
		}})
	}
	// Nobody waits for ever.
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	timer := time.AfterFunc(patience, leave)
	defer timer.Stop()
	if plan.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, plan.Deadline)
		defer cancel()
	}
	var legacy chan struct{}
	if plan.Cancel != 0 {
		var stop func()
		if plan.Legacy {
			legacy = make(chan struct{})
			stop = func() {
				of.legacy.Store(int64(max(1, w.now())))
				close(legacy)
			}
		} else {
			var cancel context.CancelCauseFunc
			ctx, cancel = context.WithCancelCause(ctx)
			cause := error(nil)
			if plan.Cause {
				cause = errCause
			}
			stop = func() { cancel(cause) }
			defer cancel(nil)
		}
		if plan.Cancel < 0 {
			stop()
		} else {
			timer := time.AfterFunc(plan.Cancel, stop)
			defer timer.Stop()
		}
	}
	req := plan.request(ctx, w, id)
	if legacy != nil {
		req.Cancel = legacy //lint:ignore SA1019 net/http obeys it
	}
	w.do(c, of, req)
	time.Sleep(plan.Stays)
}

// do sends req and reads the response.
func (w *world) do(c *client, of *callOf, req *http.Request) {
	var resp *http.Response
	var err error
	if of.call.Direct {
		resp, err = c.http.Transport.RoundTrip(req)
	} else {
		resp, err = c.http.Do(req)
	}
	r := of.last.Load()
	if r == nil {
		return // http.Client refused it
	}
	if err == nil {
		r.read(resp)
	} else if e, ok := errors.AsType[net.Error](err); ok {
		e.Timeout()
	}
}

// read reads the response as the plan says.
func (r *roundTrip) read(resp *http.Response) {
	if r.upgraded(resp) {
		return
	}
	var got []byte
	var err error
	most, until := 1<<62, time.Duration(1<<62)
	switch r.call.Read {
	case ReadsPart:
		most = r.call.Size/2 + 1
	case ClosesAtOnce:
		most = 0
	case ClosesLater:
		if !testenv.Go126 && resp.ProtoMajor == 1 {
			// A Close during a Read would stop the time of the bubble.
			until = r.w.now() + r.call.Pace
			break
		}
		timer := time.AfterFunc(r.call.Pace, func() { r.close(resp) })
		defer timer.Stop()
	}
	defer func() {
		// The hooks of a continuation run within Read.
		if p := recover(); p != nil {
			if p != aPanic {
				panic(p)
			}
			r.close(resp)
		}
	}()
	buf := make([]byte, 8<<10)
	var longest time.Duration
	for len(got) < most && err == nil && r.w.now() < until {
		var n int
		began := r.w.now()
		n, err = resp.Body.Read(buf[:min(len(buf), most-len(got))])
		longest = max(longest, r.w.now()-began)
		got = append(got, buf[:n]...)
		if r.call.Pace > 0 && len(got) < 64<<10 && r.call.Read != ClosesLater {
			time.Sleep(r.call.Pace)
		}
	}
	time.Sleep(r.call.Linger)
	r.close(resp)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reading = reading{got: got, err: err, done: true, closed: r.w.now(), longest: longest}
	r.w.log("%v: has read %d, %s", r, len(got), readError(err))
}

func (r *roundTrip) close(resp *http.Response) {
	r.mu.Lock()
	if r.closing == 0 {
		r.closing = max(1, r.w.now())
	}
	r.mu.Unlock()
	_ = resp.Body.Close()
}

func readError(err error) string {
	if err == io.EOF {
		return "EOF"
	}
	return kindOf(err)
}

func hostport(r *http.Request) string {
	port := ":80"
	if r.URL.Scheme == "https" {
		port = ":443"
	}
	return strings.TrimSuffix(r.URL.Hostname(), ".") + port
}
