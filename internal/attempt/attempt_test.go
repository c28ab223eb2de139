// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/alarm"
	"github.com/retrip/retrip/internal/testenv"
)

var errLate = errors.New("too late")

func begin(t *testing.T, ctx context.Context, limit time.Duration, watch Watch) *Attempt {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://example.com", nil)
	require.NoError(t, err)
	a := Begin(req, watch)
	if limit > 0 {
		a.Limit(time.Now(), limit, errLate)
	}
	return a
}

// The headers arrive after the timer has fired, but before its function has
// run. The function would then cut the body, so the attempt counts as failed.
//
//retrip:promise P11
func TestAttempt_HeadersAsTimeRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := begin(t, t.Context(), time.Second, 0)
		a.alarm.Stop()
		a.alarm = alarm.Set(time.Now(), 0, silent{})
		time.Sleep(time.Second)
		body := &closeNoter{Reader: strings.NewReader("late")}
		resp, err := a.End(&http.Response{StatusCode: 200, Body: body}, nil)
		assert.Nil(t, resp)
		assert.Equal(t, errLate, err)
		assert.True(t, body.closed)
		assert.Error(t, a.Err())
	})
}

type silent struct{}

func (silent) Ring(*alarm.Alarm) {}

type closeNoter struct {
	io.Reader
	closed bool
}

func (c *closeNoter) Close() error { c.closed = true; return nil }

// An attempt must stay small, because every request with a timeout allocates
// one.
func TestAttempt_Size(t *testing.T) {
	assert.LessOrEqual(t, reflect.TypeFor[Attempt]().Size(), uintptr(480))
}

// watches are those of a base that may derive contexts from others that it has derived, and
// of net/http's own transport.
var watches = []Watch{0, OwnConns}

// A base that asks for the context late still learns what has happened before, and so does
// who derives contexts from it, in whatever way.
func TestAttempt_AskedLate(t *testing.T) {
	type key struct{}
	errParent := errors.New("the parent's")
	ended := func(cause error) context.Context {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		return ctx
	}
	var endParent func(error)
	for name, tt := range map[string]struct {
		parent context.Context
		end    func(a *Attempt)
		want   error // nil: the attempt has not ended
	}{
		"nothing":       {context.Background(), func(*Attempt) {}, nil},
		"nothing yet":   {t.Context(), func(*Attempt) {}, nil},
		"cut":           {context.Background(), (*Attempt).Cut, context.Canceled},
		"abandoned":     {context.Background(), (*Attempt).Abandon, context.Canceled},
		"too late":      {context.Background(), func(a *Attempt) { a.Ring(nil) }, errLate},
		"first counts":  {context.Background(), func(a *Attempt) { a.Ring(nil); a.Cut() }, errLate},
		"parent":        {ended(errParent), func(*Attempt) {}, errParent},
		"parent first":  {ended(errParent), (*Attempt).Cut, errParent},
		"parent ends":   {nil, func(*Attempt) { endParent(errParent) }, errParent},
		"parent later":  {nil, func(a *Attempt) { a.Cut(); endParent(errParent) }, context.Canceled},
		"sends":         {context.Background(), func(a *Attempt) { tracedSends(a, maxSends+1) }, ErrHiddenSends},
		"no more sends": {context.Background(), func(a *Attempt) { tracedSends(a, maxSends) }, nil},
		"whole answer":  {t.Context(), func(a *Attempt) { answer(t, a) }, context.Canceled},
		"answer, alive": {context.Background(), func(a *Attempt) { answer(t, a) }, nil},
	} {
		for i := range 4 {
			parent := tt.parent
			if parent == nil {
				ctx, end := context.WithCancelCause(context.WithValue(context.Background(), key{}, 0))
				parent, endParent = ctx, end
			}
			a := begin(t, parent, time.Hour, watches[i/2])
			assert.Equal(t, parent.Value(key{}), a.Value(key{}), name)
			var early []context.Context
			derive := func() (list []context.Context) {
				for _, from := range []context.Context{a, a, context.WithValue(a, key{}, 1)} {
					ctx, cancel := context.WithCancelCause(from)
					t.Cleanup(func() { cancel(nil) })
					list = append(list, ctx)
				}
				return append(list, a)
			}
			if i%2 == 0 {
				early = derive()
			}
			tt.end(a)
			for _, ctx := range append(early, derive()...) {
				if tt.want == nil {
					assert.NoError(t, ctx.Err(), name)
					continue
				}
				<-ctx.Done()
				assert.Equal(t, context.Canceled, ctx.Err(), name)
				assert.Equal(t, tt.want, context.Cause(ctx), name)
			}
			a.Abandon()
		}
	}
}

// What net/http derives from an attempt costs no goroutine, and no longer follows it after
// its own end.
func TestAttempt_AfterFunc(t *testing.T) {
	a := begin(t, t.Context(), 0, OwnConns)
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancelCause(a)
	next, stop := context.WithCancelCause(a)
	defer stop(nil)
	assert.LessOrEqual(t, runtime.NumGoroutine(), before)
	cancel(errLate)
	assert.NoError(t, a.Err())
	a.Cut()
	assert.Equal(t, errLate, context.Cause(ctx))
	<-next.Done()
	assert.Equal(t, context.Canceled, context.Cause(next))
}

func tracedSends(a *Attempt, n int) {
	for range n {
		httptrace.ContextClientTrace(a).GotConn(httptrace.GotConnInfo{})
	}
}

func answer(t *testing.T, a *Attempt) {
	resp, err := a.End(&http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("text"))}, nil)
	require.NoError(t, err)
	_, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
}

// Many goroutines ask for the context while the attempt ends. There is one
// context and one set of hooks, and the end is not lost.
func TestAttempt_AskedAtOnce(t *testing.T) {
	for round := range 400 {
		parent, end := context.WithCancel(t.Context())
		defer end()
		a := begin(t, parent, time.Hour, watches[round%2])
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				switch i {
				case 0:
					a.Cut()
				case 1, 2:
					<-a.Done()
				case 6:
					ctx, cancel := context.WithCancel(a)
					<-ctx.Done()
					cancel()
				case 7:
					end()
				default:
					httptrace.ContextClientTrace(a).GotConn(httptrace.GotConnInfo{})
				}
			})
		}
		wg.Wait()
		assert.Error(t, a.Err())
		assert.Equal(t, 3, a.Sends())
		a.Abandon()
	}
}

// What a base sends after its response doesn't end the attempt: the request may
// still be being sent.
//
//retrip:promise P18
func TestAttempt_SendsAfterTheWholeResponse(t *testing.T) {
	for _, end := range []func(a *Attempt, resp *http.Response){
		func(a *Attempt, resp *http.Response) { a.Finish(resp) },
		func(a *Attempt, resp *http.Response) { _, _ = a.End(resp, nil) },
	} {
		a := begin(t, t.Context(), time.Hour, 0)
		a.Req.Body = io.NopCloser(strings.NewReader("upload"))
		tracedSends(a, 1)
		resp := &http.Response{StatusCode: 200, ProtoMajor: 2, Body: io.NopCloser(strings.NewReader("text"))}
		end(a, resp)
		tracedSends(a, maxSends)
		assert.NoError(t, a.Err())
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, context.Canceled, context.Cause(a))
	}
}

// A body that net/http can't send twice has moved from a connection that couldn't take it:
// only the last send may have been processed.
//
//retrip:promise P6
func TestAttempt_Moved(t *testing.T) {
	for again, want := range map[bool]int{false: 1, true: 2} {
		a := begin(t, t.Context(), time.Hour, 0)
		a.Req.Body = io.NopCloser(iotest.OneByteReader(strings.NewReader("upload")))
		if again {
			a.Req.GetBody = func() (io.ReadCloser, error) { return http.NoBody, nil }
		}
		_, err := a.Use(testenv.RoundTripper(func(*http.Request) (*http.Response, error) {
			tracedSends(a, 2)
			return nil, io.EOF
		}), true, &a.Req)
		assert.Equal(t, io.EOF, err)
		assert.Equal(t, want, a.Processable())
		assert.Equal(t, !again, a.MayUseAgain())
		a.Abandon()
	}
}

// A base may panic after the attempt has ended, when its alarm already serves
// another attempt.
func TestAttempt_AlarmIsGivenBackOnce(t *testing.T) {
	a := begin(t, t.Context(), time.Hour, 0)
	answer(t, a)
	others := begin(t, t.Context(), time.Hour, 0)
	a.Abandon()
	assert.True(t, others.InTime())
}

// An error of a dial function with TLS of its own counts if package net had
// connected it to the server. net/http and package net call the hooks in this
// order.
//
//retrip:promise P8
func TestAttempt_HandshakeErrorOfADialFunction(t *testing.T) {
	type event = func(*httptrace.ClientTrace)
	get := func(of string) event { return func(c *httptrace.ClientTrace) { c.GetConn(of) } }
	lookUp := func(of string) event {
		return func(c *httptrace.ClientTrace) { c.DNSStart(httptrace.DNSStartInfo{Host: of}) }
	}
	connect := func(of string, err error) event {
		return func(c *httptrace.ClientTrace) { c.ConnectDone("tcp", of, err) }
	}
	got := func(c *httptrace.ClientTrace) { c.GotConn(httptrace.GotConnInfo{}) }
	server, name, direct, failed := get("example.com:443"), lookUp("example.com"), connect("192.0.2.1:443", nil), connect("192.0.2.1:443", io.EOF)
	for i, tt := range []struct {
		uses [][]event // of the base
		want bool
	}{
		{[][]event{{server, name, direct}}, true},
		{[][]event{{server, lookUp("EXAMPLE.com"), direct}}, true},
		{[][]event{{server, name, failed, connect("192.0.2.2:443", nil)}}, true},
		{[][]event{{server, name, failed}}, false},
		{[][]event{{server, name, connect("192.0.2.1:3128", nil)}}, false},
		{[][]event{{server, lookUp("proxy.example"), direct}}, false},
		{[][]event{{server, direct}}, false},
		{[][]event{{get("proxy.example:443"), lookUp("proxy.example"), direct}}, false},
		{[][]event{{server}}, false},
		{[][]event{{}}, false},
		{[][]event{{server, name, direct, got}}, false},
		{[][]event{{server, name, direct, got}, {server}}, false},
		{[][]event{{server, name, direct, got}, {server, name, direct}}, true},
	} {
		a := begin(t, t.Context(), 0, WatchHandshake|WatchDialTLS)
		a.Req.URL.Scheme = "https"
		refusal := errors.New("refused")
		for _, events := range tt.uses {
			_, err := a.Use(testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				for _, happens := range events {
					happens(httptrace.ContextClientTrace(r.Context()))
				}
				return nil, refusal
			}), true, &a.Req)
			assert.Equal(t, refusal, err)
		}
		assert.Equal(t, tt.want, a.HandshakeError(refusal) == refusal, "row %d", i)
	}
}
