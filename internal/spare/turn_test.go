// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

type closeNoter struct {
	io.Reader
	closed int
}

func (c *closeNoter) Close() error { c.closed++; return nil }

// try makes a request at a spare whose requests rt makes. The base must not dial.
func try(t *testing.T, req *http.Request, rt testenv.RoundTripper) (*http.Response, error) {
	own := &http.Transport{Protocols: new(http.Protocols)}
	own.RegisterProtocol("http", rt)
	base := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		t.Error("a dial")
		return nil, errors.New("no network")
	}}
	turn := &Turn{pools: new(Pools), host: new(host), base: base, patience: time.Second, pool: &pool{Transport: own}, works: context.Background()}
	return turn.RoundTrip(req)
}

func newRequest(t *testing.T, ctx context.Context, body io.Reader) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://example.com", body)
	require.NoError(t, err)
	return req
}

// connects says that r has got a connection.
func connects(r *http.Request) {
	httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
}

// A request that gives up just as it gets a connection may have been sent. It
// doesn't go to the base as well.
//
//retrip:promise P18
func TestTurn_Late(t *testing.T) {
	for _, answers := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			answer, body := &closeNoter{Reader: strings.NewReader("answer")}, &closeNoter{Reader: strings.NewReader("body")}
			resp, err := try(t, newRequest(t, t.Context(), body), func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				connects(r)
				_ = r.Body.Close()
				if answers {
					return &http.Response{StatusCode: http.StatusOK, Body: answer}, nil
				}
				return nil, errors.New("request canceled")
			})
			assert.Nil(t, resp)
			var timeout interface{ Timeout() bool }
			require.ErrorAs(t, err, &timeout)
			assert.True(t, timeout.Timeout())
			assert.Equal(t, 1, body.closed)
			assert.Equal(t, answers, answer.closed == 1)
		})
	}
}

// The body of a request that ends while it waits is closed, and nothing is dialled.
//
//retrip:promise P2
func TestTurn_Gone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		body := &closeNoter{Reader: strings.NewReader("body")}
		_, err := try(t, newRequest(t, ctx, body), func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			_ = r.Body.Close() // as net/http does
			return nil, r.Context().Err()
		})
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 1, body.closed)
	})
}

// The spare may answer however late: only the wait for its connection ends.
//
//retrip:promise P11
func TestTurn_HasItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		req := newRequest(t, t.Context(), nil)
		resp, err := try(t, req, func(r *http.Request) (*http.Response, error) {
			time.Sleep(time.Second - 1)
			connects(r)
			select {
			case <-r.Context().Done():
				return nil, r.Context().Err()
			case <-time.After(time.Hour):
			}
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
		})
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.Same(t, req, resp.Request)
	})
}

// A caller's own Cancel channel still ends the attempt.
//
//retrip:promise P10
func TestTurn_CallersCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone, began := make(chan struct{}), time.Now()
		time.AfterFunc(time.Hour, func() { close(gone) })
		req := newRequest(t, t.Context(), nil)
		req.Cancel = gone //lint:ignore SA1019 it must be obeyed
		_, err := try(t, req, func(r *http.Request) (*http.Response, error) {
			connects(r)
			<-r.Cancel //lint:ignore SA1019 net/http obeys it
			return nil, errors.New("request canceled")
		})
		assert.Error(t, err)
		assert.Equal(t, time.Hour, time.Since(began))
	})
}
