// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scene is a Transport and requests to it. A scene of the same seed is the
// same. Its delays and limits have random nanoseconds, so that no two things
// happen at the same time and in random order.
type scene struct {
	transport *Transport
	drawn     bool // there are waits that the Transport draws
	logs      bool
	fleet     bool
	level     float64 // of the fleet's account
	asks      []*ask
	acts      []*act

	sent   *http.Request // the caller's request under way
	judged int           // calls of Policy.Idempotent
}

// ask is one request.
type ask struct {
	scene    *scene
	method   string
	body     string
	override *Policy
	context  string
	limit    time.Duration
	cancel   string
	hooks    bool
	key      bool
	reads    bool
	pause    time.Duration
}

// act is one attempt at the base.
type act struct {
	how     string
	err     error
	delay   time.Duration
	beside  string // host of another request that is made meanwhile; empty if there is none
	obeys   bool   // it returns when the context ends
	causes  bool   // with the cause
	keeps   bool
	sends   int
	status  int
	header  http.Header
	body    string
	text    string
	late    time.Duration // until the body arrives
	request string
}

// next returns the act of the next attempt. The last one repeats.
func (c *scene) next() *act {
	a := c.acts[0]
	if len(c.acts) > 1 {
		c.acts = c.acts[1:]
	}
	return a
}

// sceneMaker draws scenes.
type sceneMaker struct{ *rand.Rand }

func (r sceneMaker) odds(percent int) bool { return r.IntN(100) < percent }

// upTo returns a random duration.
func (r sceneMaker) upTo(most time.Duration) time.Duration {
	return 1 + time.Duration(r.Int64N(int64(most)))
}

// limit returns a limit that a policy may have.
func (r sceneMaker) limit(most time.Duration) time.Duration {
	return pick(r.Rand, 0, Off, r.upTo(most), r.upTo(most), r.upTo(most))
}

func newScene(t *testing.T, seed uint64) *scene {
	r := sceneMaker{rand.New(rand.NewPCG(seed, 14))}
	c := &scene{drawn: r.odds(15), logs: r.odds(30), fleet: r.odds(10), level: pick(r.Rand, 0.0, 2)}
	p := Policy{
		MaxAttempts: pick(r.Rand, 0, 1, 2, 4),
		Backoff:     Backoff{Base: r.upTo(time.Second), Cap: time.Second, Jitter: NoJitter},
		MaxSends:    pick(r.Rand, 0, 0, 0, Off, 1, 2),
		Budget:      pick(r.Rand, Budget{}, Unlimited, Budget{Size: 1, Credit: 1}, Budget{Shared: 3}),
		RetryOn:     pick(r.Rand, nil, []int{404}),
		FailOn:      pick(r.Rand, nil, []int{500}),
		Unprocessed: pick(r.Rand, nil, nil, []int{425, 503}),
		RetryHeader: pick(r.Rand, "", "", "Retry-Attempt"),
		FleetBudget: 2, // every success pays
	}
	p.Backoff.ThrottleBase = p.Backoff.Base
	if c.drawn {
		p.AttemptTimeout, p.Deadline = pick(r.Rand, 0, time.Hour), pick(r.Rand, 0, 24*time.Hour)
		p.Gate = pick(r.Rand, 0, On)
	} else {
		p.AttemptTimeout, p.Deadline = r.limit(3*time.Second), r.limit(6*time.Second)
		p.WholeBody, p.BodyIdle = pick(r.Rand, make([]int64, 20)...), 0
	}
	if r.odds(10) {
		p.Breaker = Breaker{Ratio: 0.5, MinVolume: pick(r.Rand, 1, 3), OpenFor: 100 * time.Hour, Window: 10 * time.Hour}
	}
	if r.odds(10) {
		p.IdempotencyKey = On
	}
	if r.odds(10) {
		yes := r.odds(50)
		p.Idempotent = func(*http.Request) bool { c.judged++; return yes }
	}
	if r.odds(10) {
		p.Dialects = pick(r.Rand, []string{"should-retry"}, []string{"openai"})
	}
	if r.odds(15) {
		verdict := pick(r.Rand, ByRule, Final, Retryable, NotProcessed)
		p.Classify = func(_ *http.Request, resp *http.Response, _ error) Verdict {
			if resp == nil || resp.Header["X-Judge"] != nil {
				return verdict
			}
			return ByRule
		}
	}
	c.transport = &Transport{Policy: p, Metrics: NewMetrics()}
	for range 1 + r.IntN(3) {
		c.asks = append(c.asks, r.ask(c))
	}
	for range 1 + r.IntN(5) {
		c.acts = append(c.acts, r.act(c))
	}
	c.acts[len(c.acts)-1].beside = "" // it repeats
	if !c.drawn && slices.ContainsFunc(c.acts, func(s *act) bool { return s.header["Retry-After"] != nil }) {
		// The wait of a second request to a paused host would be drawn.
		c.asks = c.asks[:1]
		for _, s := range c.acts {
			s.beside = ""
		}
	}
	_, err := p.Rules()
	require.NoError(t, err, "%+v", p)
	return c
}

func (r sceneMaker) ask(c *scene) *ask {
	a := &ask{
		scene:   c,
		method:  pick(r.Rand, "GET", "GET", "HEAD", "POST", "PUT"),
		body:    pick(r.Rand, "", "", "none", "memory", "memory", "memory longer", "again", "again fails", "stream"),
		context: pick(r.Rand, "background", "cancel", "cancel", "ended", "timeout", "timeout", "same", "no Done", "error without Done", "past without Done"),
		limit:   r.upTo(6 * time.Second),
		cancel:  pick(r.Rand, "", "", "", "", "never", "ended", "later", "client"),
		hooks:   r.odds(15),
		key:     r.odds(10),
		reads:   r.odds(80),
		pause:   pick(r.Rand, 0, r.upTo(5*time.Second)),
	}
	if c.drawn {
		a.context, a.cancel = "cancel", ""
		a.limit = 1000 * time.Hour
	}
	if a.method == "GET" || a.method == "HEAD" {
		a.body = ""
	}
	if r.odds(15) {
		p := Policy{AttemptTimeout: r.limit(3 * time.Second), Deadline: r.limit(6 * time.Second), MaxSends: pick(r.Rand, 0, Off, 1)}
		if c.drawn {
			p.AttemptTimeout, p.Deadline = pick(r.Rand, Off, time.Hour), Off
		}
		a.override = &p
	}
	return a
}

var errBase = errors.New("base")

func (r sceneMaker) act(c *scene) *act {
	s := &act{
		how:     "answers",
		delay:   pick(r.Rand, 0, r.upTo(time.Second), r.upTo(5*time.Second)),
		beside:  pick(r.Rand, "", "", "", "", "", "", "example.com", "other.com"),
		obeys:   r.odds(75),
		causes:  r.odds(50),
		keeps:   r.odds(50),
		sends:   pick(r.Rand, 0, 1, 1, 2, 3),
		status:  pick(r.Rand, 0, 101, 200, 200, 200, 200, 204, 302, 404, 425, 429, 500, 503, 503, 503),
		header:  http.Header{},
		body:    pick(r.Rand, "nil", "none", "memory", "reply", "reply", "conn", "stuck", "panics"),
		text:    pick(r.Rand, "", "text", strings.Repeat("long ", 1000)),
		late:    pick(r.Rand, 0, 0, r.upTo(time.Second)),
		request: pick(r.Rand, "", "", "same", "same", "derived", "other"),
		err:     pick[error](r.Rand, errBase, io.EOF, context.Canceled, context.DeadlineExceeded, http.ErrSchemeMismatch, &net.OpError{Op: "dial", Err: errBase}, (*url.Error)(nil), errAttemptTimeout),
	}
	if r.odds(40) {
		s.how = pick(r.Rand, "errs", "errs", "errs", "errs", "both", "neither", "panics", "exits")
	}
	switch {
	case c.drawn:
		s.delay, s.late = 0, 0
		if r.odds(30) {
			s.header.Set("Retry-After", pick(r.Rand, "1", "3", "500"))
		}
	case r.odds(10):
		s.header.Set("Retry-After", "500") // more than MaxWait
	}
	if r.odds(10) {
		s.header.Set("X-Should-Retry", pick(r.Rand, "true", "false"))
	}
	if r.odds(50) {
		s.header.Set("X-Judge", "1")
	}
	return s
}

type withoutDone struct {
	context.Context
	at  time.Time
	err error
}

func (c withoutDone) Deadline() (time.Time, bool) { return c.at, !c.at.IsZero() }
func (c withoutDone) Done() <-chan struct{}       { return nil }
func (c withoutDone) Err() error                  { return c.err }

// request returns the request of a, and a function that ends its context.
func (a *ask) request(t *testing.T, u *firstRun) (req *http.Request, end func()) {
	cause := errors.New("the user left")
	ctx, cancel := context.WithCancelCause(context.Background())
	end = func() { cancel(cause) }
	switch a.context {
	case "background":
		ctx = context.Background()
	case "cancel":
		time.AfterFunc(a.limit, end)
	case "ended":
		end()
	case "timeout":
		ctx, end = context.WithTimeout(context.Background(), a.limit)
	case "same":
		// The limits of the policy and of the caller are the same.
		if d := a.scene.transport.Policy.Deadline; d > 0 {
			ctx, end = context.WithTimeout(context.Background(), d)
		}
	case "no Done":
		ctx = withoutDone{context.Background(), time.Now().Add(a.limit), nil}
	case "error without Done":
		ctx = withoutDone{context.Background(), time.Time{}, context.Canceled}
	case "past without Done":
		ctx = withoutDone{context.Background(), time.Now().Add(-time.Second), context.DeadlineExceeded}
	}
	if a.override != nil {
		ctx = WithPolicy(ctx, *a.override)
	}
	if a.hooks {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { u.log("hook") }})
	}
	req, err := http.NewRequestWithContext(ctx, a.method, "http://example.com/path", nil)
	require.NoError(t, err)
	give := func() (io.ReadCloser, error) { return &heardBody{u, strings.NewReader("body"), "request"}, nil }
	switch a.body {
	case "none":
		req.Body = http.NoBody
	case "memory", "memory longer":
		req, err = http.NewRequestWithContext(ctx, a.method, "http://example.com/path", strings.NewReader("body"))
		require.NoError(t, err)
		if a.body == "memory longer" {
			req.ContentLength = 3
		}
	case "again":
		req.Body, req.GetBody = must(give()), give
	case "again fails":
		req.Body, req.GetBody = must(give()), func() (io.ReadCloser, error) { return nil, errBase }
	case "stream":
		req.Body = must(give())
	}
	if a.key {
		req.Header.Set("Idempotency-Key", "mine")
	}
	canceled := make(chan struct{})
	switch a.cancel {
	case "":
		canceled = nil
	case "ended":
		close(canceled)
	case "later":
		time.AfterFunc(a.limit/2, func() { close(canceled) })
	case "client":
		if at, ok := ctx.Deadline(); ok && time.Until(at) > 0 {
			time.AfterFunc(time.Until(at)+time.Microsecond, func() { close(canceled) })
		}
	}
	req.Cancel = canceled //lint:ignore SA1019 http.Client still uses it
	a.scene.sent = req
	return req, end
}

// heardBody is a body that records its use.
type heardBody struct {
	run *firstRun
	io.Reader
	name string
}

func (b *heardBody) Close() error {
	b.run.log("%s body closed", b.name)
	return nil
}

type panickingBody struct{ *heardBody }

func (b panickingBody) Close() error {
	_ = b.heardBody.Close()
	panic("Close")
}

// replyConn is the body of a 101.
type replyConn struct{ *heardBody }

func (replyConn) Write(p []byte) (int, error) { return len(p), nil }

func (s *act) response(u *firstRun, req *http.Request) *http.Response {
	resp := &http.Response{StatusCode: s.status, ProtoMajor: 1, Header: s.header.Clone(), ContentLength: -1}
	heard := &heardBody{u, strings.NewReader(s.text), "response"}
	switch s.body {
	case "none":
		resp.Body = http.NoBody
	case "memory":
		resp.Body = io.NopCloser(strings.NewReader(s.text))
	case "reply":
		resp.Body = heard
		if s.late > 0 {
			heard.Reader = io.MultiReader(endsAfter(s.late), heard.Reader)
		}
	case "conn":
		resp.Body = replyConn{heard}
	case "panics":
		resp.Body = panickingBody{heard}
	case "stuck":
		// It ends with the context, as net/http's do.
		heard.Reader = stuckReader{req.Context()}
		resp.Body = heard
	}
	switch s.request {
	case "same":
		resp.Request = req
	case "derived":
		type key struct{}
		resp.Request = req.WithContext(context.WithValue(req.Context(), key{}, 1))
	case "other":
		resp.Request = &http.Request{}
	}
	return resp
}

// stuckReader ends with a context, or after a few seconds.
type stuckReader struct{ context.Context }

func (r stuckReader) Read([]byte) (int, error) {
	timer := time.NewTimer(3 * time.Second)
	defer timer.Stop()
	select {
	case <-r.Done():
		return 0, context.Cause(r)
	case <-timer.C:
		return 0, io.EOF
	}
}
