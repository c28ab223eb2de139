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

// stubbed returns a transport whose requests rt makes.
func stubbed(rt testenv.RoundTripper) *http.Transport {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.RegisterProtocol("http", rt)
	return tr
}

type closeNoter struct {
	io.Reader
	closed int
}

func (c *closeNoter) Close() error { c.closed++; return nil }

// turnOver returns a turn at a spare whose requests rt makes. The base answers
// everything with 204.
func turnOver(rt testenv.RoundTripper) *Turn {
	base := stubbed(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: r}, nil
	})
	return &Turn{
		pools: new(Pools), host: new(host), base: base, patience: time.Second,
		pool: &pool{Transport: stubbed(rt)}, works: context.Background(),
	}
}

// A request that gives up just as it gets a connection may have been sent. It
// doesn't go to the base as well.
//
//retrip:promise P18
func TestTurn_Late(t *testing.T) {
	t.Parallel()
	for _, answers := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			answer := &closeNoter{Reader: strings.NewReader("answer")}
			turn := turnOver(func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
				_ = r.Body.Close()
				if answers {
					return &http.Response{StatusCode: http.StatusOK, Body: answer}, nil
				}
				return nil, errors.New("request canceled")
			})
			body := &closeNoter{Reader: strings.NewReader("body")}
			req, err := http.NewRequest(http.MethodPut, "http://example.com", body)
			require.NoError(t, err)
			resp, err := turn.RoundTrip(req)
			assert.Nil(t, resp)
			var timeout interface{ Timeout() bool }
			require.ErrorAs(t, err, &timeout)
			assert.True(t, timeout.Timeout())
			assert.False(t, turn.AtBase())
			assert.Equal(t, 1, body.closed)
			assert.Equal(t, answers, answer.closed == 1)
		})
	}
}

// The body of a request that ends while it waits is closed, and nothing is dialled.
//
//retrip:promise P2
func TestTurn_Gone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turn := turnOver(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			_ = r.Body.Close() // as net/http does
			return nil, r.Context().Err()
		})
		turn.base = &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			t.Error("a dial")
			return nil, errors.New("no network")
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		body := &closeNoter{Reader: strings.NewReader("body")}
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://example.com", body)
		require.NoError(t, err)
		_, err = turn.RoundTrip(req)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 1, body.closed)
	})
}

// The spare may answer however late: only the wait for its connection ends.
//
//retrip:promise P11
func TestTurn_HasItsConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turn := turnOver(func(r *http.Request) (*http.Response, error) {
			time.Sleep(time.Second - 1)
			httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
			select {
			case <-r.Context().Done():
				return nil, r.Context().Err()
			case <-time.After(time.Hour):
			}
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
		})
		req, err := http.NewRequest(http.MethodGet, "http://example.com", nil)
		require.NoError(t, err)
		resp, err := turn.RoundTrip(req)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.Same(t, req, resp.Request)
	})
}

// A caller's own Cancel channel still ends the attempt.
//
//retrip:promise P10
func TestTurn_CallersCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gone := make(chan struct{})
		turn := turnOver(func(r *http.Request) (*http.Response, error) {
			httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
			<-r.Cancel //lint:ignore SA1019 net/http obeys it
			return nil, errors.New("request canceled")
		})
		req, err := http.NewRequest(http.MethodGet, "http://example.com", nil)
		require.NoError(t, err)
		req.Cancel = gone //lint:ignore SA1019 it must be obeyed
		time.AfterFunc(time.Hour, func() { close(gone) })
		began := time.Now()
		_, err = turn.RoundTrip(req)
		assert.Error(t, err)
		assert.Equal(t, time.Hour, time.Since(began))
	})
}
