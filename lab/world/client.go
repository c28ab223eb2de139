// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/shed"
)

// hush begins all secrets: no log may show it.
const hush = "hush"

var (
	errOwn   = errors.New("the caller's own body fails")
	errCause = errors.New("the caller's cause")

	errPanicked = errors.New("RoundTrip panicked")
)

// client is a Transport and what is on and below it.
type client struct {
	w      *world
	number int
	plan   *Transport
	base   *http.Transport
	retrip *retrip.Transport
	http   *http.Client

	mu    sync.Mutex
	swaps []swap // of policies, in order
	hosts []hostEvent

	orders []order
	forgot bool // a host

	strangers int                // requests to hosts that don't exist
	strange   map[string]float64 // why they were given up
	cost      float64            // of their retries
}

type swap struct {
	at       time.Duration
	policies Policies
}

type hostEvent struct {
	at    time.Duration
	state retrip.HostState
}

func (w *world) newClient(number int, plan *Transport) *client {
	c := &client{w: w, number: number, plan: plan, swaps: []swap{{0, Policies{plan.Default, plan.Hosts}}}}
	var p http.Protocols
	p.SetHTTP1(!w.plan.H2C)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(w.plan.H2C)
	c.base = &http.Transport{
		DialContext:     w.dial,
		Protocols:       &p,
		MaxConnsPerHost: plan.MaxConns,
		TLSClientConfig: &tls.Config{RootCAs: identity().roots, CurvePreferences: []tls.CurveID{tls.X25519}, ClientSessionCache: tls.NewLRUClientSessionCache(8)},
	}
	c.retrip = &retrip.Transport{Base: c.base, Policy: w.policyOf(plan.Default), Hosts: w.hostsOf(plan.Hosts), Metrics: w.metrics[plan.Metrics], Trace: c.hooks()}
	if plan.Bare {
		c.retrip.Trace = nil
	}
	if plan.Verifies {
		c.base.TLSClientConfig.VerifyConnection = func(tls.ConnectionState) error { return nil }
	}
	if plan.DialTLS {
		c.base.DialTLSContext = c.dialTLS
	}
	if plan.Wrapped {
		c.retrip.Base = &wrapper{c}
	}
	if plan.Fleet {
		c.retrip.Fleet = w.fleet
	}
	if plan.Logger {
		c.retrip.Logger = slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	c.http = &http.Client{Transport: &outer{c}, Timeout: plan.Client}
	return c
}

// policyOf returns the policy that p stands for.
func (w *world) policyOf(p Policy) retrip.Policy {
	q := p.Policy
	if p.Keyed {
		q.Gate.Key = func(r *http.Request) string { return r.Header.Get("World-Tenant") }
	}
	switch p.Classify {
	case RetriesTeas:
		q.Classify = func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict { return teas(resp, true) }
	case FinalTeas:
		q.Classify = func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict { return teas(resp, false) }
	case PeeksAtStart:
		q.Classify = func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
			if resp != nil && resp.StatusCode == http.StatusOK {
				_, _ = retrip.Peek(resp, 100)
			}
			return retrip.ByRule
		}
	}
	switch p.Idempotent {
	case NeverIdempotent:
		q.Idempotent = func(*http.Request) bool { return false }
	case ByHeader:
		q.Idempotent = func(r *http.Request) bool { return r.Header.Get("World-Safe") != "" }
	}
	return q
}

func teas(resp *http.Response, retry bool) retrip.Verdict {
	switch {
	case resp == nil:
	case retry && resp.StatusCode == http.StatusTeapot:
		return retrip.Retryable
	case !retry && (resp.StatusCode == http.StatusTeapot || resp.Header.Get("World-Final") != ""):
		return retrip.Final
	}
	return retrip.ByRule
}

func (w *world) hostsOf(plan map[string]Policy) map[string]retrip.Policy {
	hosts := map[string]retrip.Policy{}
	for pattern, p := range plan {
		hosts[pattern] = w.policyOf(p)
	}
	return hosts
}

// event is a call of a hook.
type event struct {
	at   time.Duration
	hook string
	retrip.Event
	host retrip.HostState // at an attempt, a retry or a give-up
}

// aPanic is what hooks panic with.
const aPanic = "a hook panics"

// hooks returns hooks of which one panics.
func (p Panic) hooks() *retrip.Trace {
	t := new(retrip.Trace)
	hook := func(retrip.Event) { panic(aPanic) }
	switch p {
	case AtAttempt:
		t.Attempt = hook
	case AtRetry:
		t.Retry = hook
	case AtGiveUp:
		t.GiveUp = hook
	case AtDone:
		t.Done = hook
	}
	return t
}

// hooks returns the hooks of c.
func (c *client) hooks() *retrip.Trace {
	note := func(hook string) func(retrip.Event) {
		return func(e retrip.Event) {
			id, err := strconv.Atoi(e.Request.Header.Get("World-Id"))
			if err != nil {
				c.estrange(hook, e)
				return
			}
			r := c.w.trip(id)
			n := event{at: c.w.now(), hook: hook, Event: e}
			if hook == "GiveUp" || hook == "Attempt" || hook == "Retry" {
				n.host, _ = c.retrip.HostState(hostport(e.Request))
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, n)
			ctx := e.Request.Context()
			if deadline, ok := ctx.Deadline(); r.end != 0 && (ctx.Err() != nil || ok && !time.Now().Before(deadline)) {
				// The caller has gone while it read. Which of the errors of that instant
				// net/http returns is left to chance.
				return
			}
			c.w.log("%v: %s %d %d %q wait %v err %v", r, hook, e.Attempt, e.StatusCode, e.Reason, e.Wait, kindOf(e.Err))
		}
	}
	return &retrip.Trace{
		Attempt: note("Attempt"), Retry: note("Retry"), GiveUp: note("GiveUp"), Hedge: note("Hedge"), Done: note("Done"), Resume: note("Resume"),
		Host: func(s retrip.HostState) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.hosts = append(c.hosts, hostEvent{c.w.now(), s})
			c.w.log("t%d: host %s breaker %v paused %v tokens %.2f", c.number, s.Host, s.Breaker, s.PausedFor, s.Tokens)
		},
	}
}

// estrange notes what happens to a request to a stranger.
func (c *client) estrange(hook string, e retrip.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case hook == "GiveUp":
		if c.strange == nil {
			c.strange = map[string]float64{}
		}
		c.strange[string(e.Reason)]++
	case hook == "Attempt" && e.Attempt > 1 || hook == "Hedge":
		c.cost += 0.7
	}
}

// kindOf describes an error without what differs between runs, such as a port.
func kindOf(err error) string {
	switch {
	case err == nil:
		return "none"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, errCause):
		return "cause"
	case errors.Is(err, errOwn):
		return "own"
	}
	return "error"
}

// roundTrip is what the world knows of one call of RoundTrip.
type roundTrip struct {
	w      *world
	id     int
	client *client
	call   *Call
	hop    int // redirects before it
	script []Step
	sends  []byte // the body
	host   string

	mu       sync.Mutex
	begin    time.Duration
	end      time.Duration // 0: it hasn't ended
	panicked bool
	hostile  bool          // the base was hostile
	uses     int           // of a hostile base
	dead     error         // why its context had ended before
	cause    error         // why it has ended, if it has by the end of RoundTrip
	over     time.Duration // end of its context; 0: it didn't end before RoundTrip
	legacy   time.Duration // when Request.Cancel was closed
	deadline time.Duration // of the context when it began; 0: none
	policies Policies      // when it began
	events   []event
	arrivals []*arrival
	resp     *http.Response
	err      error
	reading  reading
	bodies   []*upload
}

// reading is what a caller has read of a response.
type reading struct {
	got    []byte
	err    error // after got; nil if it stopped reading
	done   bool
	closed time.Duration

	longest time.Duration // of one Read
}

func (r *roundTrip) String() string { return "r" + strconv.Itoa(r.id) }

// outer is the RoundTripper of an http.Client: it notes what RoundTrip does.
type outer struct{ c *client }

type callKey struct{}

// callOf is the value of the context of a call.
type callOf struct {
	id   int
	call *Call
	hops atomic.Int32
	last atomic.Pointer[roundTrip]
}

func (o *outer) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	c, w := o.c, o.c.w
	of := req.Context().Value(callKey{}).(*callOf)
	hop := int(of.hops.Add(1)) - 1
	r := &roundTrip{w: w, id: of.id*10 + hop, client: c, call: of.call, hop: hop, begin: w.now(), host: strings.ToLower(strings.TrimSuffix(req.URL.Hostname(), "."))}
	of.last.Store(r)
	if hop == 0 {
		r.script = of.call.Script
	}
	if req.Body != nil && req.Body != http.NoBody {
		r.sends = content(of.call.Size, "upload", of.id)
	}
	if d, ok := req.Context().Deadline(); ok {
		r.deadline = max(1, d.Sub(w.began))
	}
	c.mu.Lock()
	r.policies = c.swaps[len(c.swaps)-1].policies
	c.mu.Unlock()
	r.dead = context.Cause(req.Context())
	w.keep(r)
	stop := context.AfterFunc(req.Context(), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.over = w.now()
	})
	if u, ok := req.Body.(*upload); ok {
		r.bodies = append(r.bodies, u)
	}
	mine := req.Clone(req.Context())
	mine.Header.Set("World-Id", strconv.Itoa(r.id))
	//lint:ignore SA1019 net/http obeys it
	if canceled := mine.Cancel; canceled != nil {
		done := make(chan struct{})
		defer close(done)
		go func() {
			select {
			case <-canceled:
			case <-done:
				// Both may have happened.
				select {
				case <-canceled:
				default:
					return
				}
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.legacy = w.now()
		}()
	}
	before := mine.Clone(context.Background())
	get := mine.GetBody
	w.log("%v: t%d %s %s", r, c.number, mine.Method, r.host)
	defer func() {
		// P5: a panic reaches the caller.
		if p := recover(); p != nil {
			if p != aPanic {
				panic(p)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.panicked, r.end = true, w.now()
			resp, err = nil, errPanicked
		}
	}()
	resp, err = c.retrip.RoundTrip(mine)
	r.mu.Lock()
	r.end, r.resp, r.err, r.cause = w.now(), resp, err, context.Cause(req.Context())
	r.mu.Unlock()
	stop()
	if !sameHeader(before.Header, mine.Header) || before.URL.String() != mine.URL.String() || before.Method != mine.Method || before.ContentLength != mine.ContentLength ||
		(get == nil) != (mine.GetBody == nil) || before.Body != mine.Body || before.Host != mine.Host {
		w.breaks("P2", "%v: RoundTrip has changed the request", r)
	}
	if (resp == nil) == (err == nil) {
		w.breaks("P3", "%v: neither or both of a response and an error: %v, %v", r, resp, err)
	}
	status := 0
	if resp != nil {
		status = resp.StatusCode
		// net/http's HTTP/2 may set a copy of its own.
		if q := resp.Request; q != mine && (q == nil || q.Header.Get("World-Id") != strconv.Itoa(r.id) || mine.Body == nil) {
			w.breaks("P1", "%v: Response.Request is another request", r)
		}
	}
	w.log("%v: returns %d, %s", r, status, kindOf(err))
	return resp, err
}

// CloseIdleConnections is for http.Client.CloseIdleConnections.
func (o *outer) CloseIdleConnections() { o.c.retrip.CloseIdleConnections() }

func sameHeader(a, b http.Header) bool {
	if len(a) != len(b) {
		return false
	}
	for name, values := range a {
		if strings.Join(values, "\n") != strings.Join(b[name], "\n") {
			return false
		}
	}
	return true
}

// wrapper is a Base that is no *http.Transport.
type wrapper struct{ c *client }

func (b *wrapper) RoundTrip(req *http.Request) (*http.Response, error) {
	for name, values := range req.Header {
		if len(values) == 0 {
			b.c.w.breaks("P4", "the base sees %s, which isn't sent", name)
		}
	}
	if id, _ := strconv.Atoi(req.Header.Get("World-Id")); req.GetBody != nil {
		if r := b.c.w.trip(id); r != nil && r.call.Body == Stream && !r.repeatable(r.effective()) {
			b.c.w.breaks("P6", "%v: net/http may repeat a stream that must not be repeated", r)
		}
	}
	if text := fmt.Sprintf("%v %+v", req.Context(), req.Context()); strings.Contains(text, hush) {
		b.c.w.breaks("P4", "the context of an attempt prints a secret: %s", text)
	}
	if resp, err, done := b.hostile(req); done {
		return resp, err
	}
	return b.c.base.RoundTrip(req)
}

func (b *wrapper) CloseIdleConnections() { b.c.base.CloseIdleConnections() }

// upload is a request body that counts its Closes.
type upload struct {
	io.Reader
	id     int           // of the call
	copied bool          // it comes from GetBody
	drip   time.Duration // of each Read
	read   atomic.Bool
	closed atomic.Int32
}

func (u *upload) Read(p []byte) (int, error) {
	u.read.Store(true)
	if u.drip > 0 {
		time.Sleep(u.drip)
		p = p[:min(len(p), 500)]
	}
	return u.Reader.Read(p)
}

func (u *upload) Close() error {
	u.closed.Add(1)
	return nil
}

// failing fails halfway.
func failing(content []byte) io.Reader {
	return io.MultiReader(bytes.NewReader(content[:len(content)/2]), readerFunc(func([]byte) (int, error) { return 0, errOwn }))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// request makes the request of a call.
func (c *Call) request(ctx context.Context, w *world, id int) *http.Request {
	s := w.sites[c.Site]
	host := []string{s.host(), strings.ToUpper(s.host()), s.host() + ".", s.host() + ":" + s.port()}[c.Spells]
	url := s.scheme() + "://" + hush + "-user:" + hush + "-password@" + host + "/" + strconv.Itoa(id) + "?token=" + hush + "-query"
	payload := content(c.Size, "upload", id)
	var body io.Reader
	switch c.Body {
	case NoBody:
	case Bytes:
		body = bytes.NewReader(payload)
	case Section:
		body = io.NewSectionReader(bytes.NewReader(payload), 0, int64(len(payload)))
	case FailsRead:
		body = &upload{id: id, Reader: failing(payload)}
	default:
		body = &upload{id: id, drip: c.Drip, Reader: bytes.NewReader(payload)}
	}
	req, err := http.NewRequestWithContext(ctx, c.Method, url, body)
	must(err)
	if c.Body == Section || c.Size%2 == 0 && c.Body != NoBody {
		req.ContentLength = int64(len(payload))
	}
	switch c.Body {
	case OwnGet:
		req.GetBody = func() (io.ReadCloser, error) {
			return w.opened(&upload{id: id, copied: true, drip: c.Drip, Reader: bytes.NewReader(payload)}), nil
		}
	case FailsGet:
		req.GetBody = func() (io.ReadCloser, error) { return nil, errOwn }
	case TooShort:
		req.ContentLength = int64(len(payload)) + 7
	}
	if u, ok := body.(*upload); ok {
		w.opened(u)
	}
	req.Header.Set("X-Hush", hush+"-header")
	req.Header.Set("World-Tenant", strconv.Itoa(id%2))
	if c.Key {
		req.Header.Set("Idempotency-Key", fmt.Sprintf("%q", fmt.Sprint("key-", id)))
	}
	if c.Safe {
		req.Header.Set("World-Safe", "1")
	}
	if c.Range {
		req.Header.Set("Range", "bytes=3-400")
	}
	return req
}

// run makes the calls of caller number n.
func (w *world) caller(n int, plan *Caller) {
	time.Sleep(plan.Start)
	shared := context.Background()
	if plan.Shared > 0 {
		var cancel context.CancelFunc
		shared, cancel = context.WithCancel(shared)
		defer cancel()
		timer := time.AfterFunc(plan.Shared, cancel)
		defer timer.Stop()
	}
	for i := range plan.Calls {
		time.Sleep(plan.Calls[i].Gap)
		w.call(shared, n*100+i, w.clients[plan.Transport], &plan.Calls[i])
	}
}

// call makes one call and reads the response.
func (w *world) call(ctx context.Context, id int, c *client, plan *Call) {
	of := &callOf{id: id, call: plan}
	ctx = context.WithValue(ctx, callKey{}, of)
	if plan.Policy != nil {
		ctx = retrip.WithPolicy(ctx, w.policyOf(*plan.Policy))
	}
	if plan.Hooks {
		ctx = retrip.WithTrace(ctx, &retrip.Trace{Done: func(retrip.Event) {}})
	}
	if plan.Panics != NoPanic {
		ctx = retrip.WithTrace(ctx, plan.Panics.hooks())
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
	patience := time.AfterFunc(10*time.Minute, leave)
	defer patience.Stop()
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
			stop = func() { close(legacy) }
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
	if plan.Behalf {
		onBehalf(req, func(ctx context.Context) { w.do(c, of, req.WithContext(ctx)) })
	} else {
		w.do(c, of, req)
	}
}

// onBehalf calls do with the context of a request that came in as a retry.
func onBehalf(req *http.Request, do func(context.Context)) {
	in, err := http.NewRequestWithContext(req.Context(), http.MethodGet, "http://server.test/", nil)
	must(err)
	in.Header.Set("Retry-Attempt", "2")
	h := &shed.Handler{Limit: 1, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { do(r.Context()) })}
	h.ServeHTTP(httptest.NewRecorder(), in)
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
	var got []byte
	var err error
	most := 1 << 62
	switch r.call.Read {
	case ReadsPart:
		most = r.call.Size/2 + 1
	case ClosesAtOnce:
		most = 0
	case ClosesLater:
		timer := time.AfterFunc(r.call.Pace, func() { _ = resp.Body.Close() })
		defer timer.Stop()
	}
	defer func() {
		// The hooks of a continuation run within Read.
		if p := recover(); p != nil {
			if p != aPanic {
				panic(p)
			}
			_ = resp.Body.Close()
		}
	}()
	buf := make([]byte, 8<<10)
	var longest time.Duration
	for len(got) < most && err == nil {
		var n int
		began := r.w.now()
		n, err = resp.Body.Read(buf[:min(len(buf), most-len(got))])
		longest = max(longest, r.w.now()-began)
		got = append(got, buf[:n]...)
		if r.call.Pace > 0 && len(got) < 64<<10 && r.call.Read != ClosesLater {
			time.Sleep(r.call.Pace)
		}
	}
	_ = resp.Body.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reading = reading{got: got, err: err, done: true, closed: r.w.now(), longest: longest}
	r.w.log("%v: has read %d, %s", r, len(got), readError(err))
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
	return r.URL.Hostname() + port
}
