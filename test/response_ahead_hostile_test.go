// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// Peek reports an error only to those whom it keeps bytes from, and leaves a body
// alone that nobody wants to look at.
func TestPeek_Errors(t *testing.T) {
	half := func() io.ReadCloser {
		return io.NopCloser(iotest.DataErrReader(io.MultiReader(strings.NewReader("abcdef"), iotest.ErrReader(syscall.ECONNRESET))))
	}
	body := half()
	resp := &http.Response{StatusCode: 200, Body: body, ContentLength: 6}
	for _, n := range []int{-1, 0} {
		got, err := retrip.Peek(resp, n)
		require.NoError(t, err)
		assert.Empty(t, got)
		assert.Equal(t, body, resp.Body)
	}
	got, err := retrip.Peek(resp, 6)
	require.NoError(t, err, "all that was asked for is there")
	assert.Equal(t, "abcdef", string(got))
	got, err = retrip.Peek(resp, 7)
	assert.Equal(t, syscall.ECONNRESET, err)
	assert.Equal(t, "abcdef", string(got))
	got, err = retrip.Peek(resp, 3)
	require.NoError(t, err, "the error is behind them")
	assert.Equal(t, "abc", string(got))
	all, err := io.ReadAll(resp.Body)
	assert.Equal(t, syscall.ECONNRESET, err)
	assert.Equal(t, "abcdef", string(all))

	resp = &http.Response{StatusCode: 200, Body: http.NoBody}
	_, err = retrip.Peek(resp, 5)
	require.NoError(t, err)
	assert.Equal(t, http.NoBody, resp.Body)
}

// A response without a body stays as it is, whatever bodies have to be.
func TestWholeBody_NoBody(t *testing.T) {
	for _, none := range []io.ReadCloser{nil, http.NoBody} {
		base := testenv.RoundTripper(func(*http.Request) (*http.Response, error) { return &http.Response{StatusCode: 204, Body: none}, nil })
		resp := do(t, &retrip.Transport{Base: base, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Second, WholeBody: 1000}}, play.Must(http.NewRequest(http.MethodGet, "http://a.example/", nil)))
		assert.Equal(t, none, resp.Body)
	}
}

// A base that fails has no body to read.
func TestWholeBody_NoResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		base := testenv.RoundTripper(func(*http.Request) (*http.Response, error) { asked++; return nil, syscall.ECONNRESET })
		_, err := (&retrip.Transport{Base: base, Policy: retrip.Policy{WholeBody: 1000}}).RoundTrip(play.Must(http.NewRequest(http.MethodGet, "http://a.example/", nil)))
		assert.ErrorIs(t, err, syscall.ECONNRESET)
		assert.NotContains(t, err.Error(), "response body")
		assert.Equal(t, 4, asked)
	})
}

// Nobody waits for the body of a response that is retried anyway.
func TestWholeBody_RetriedAnyway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
			if asked++; asked == 1 {
				return &http.Response{StatusCode: 503, Header: http.Header{}, ContentLength: -1, Body: broken("down", nil)(req.Context())}, nil
			}
			return &http.Response{StatusCode: 200, Header: http.Header{}, ContentLength: -1, Body: broken(document, io.EOF)(req.Context())}, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		resp := do(t, &retrip.Transport{Base: base, Policy: retrip.Policy{WholeBody: 1000, Backoff: retrip.Backoff{Base: 1, Cap: 1}}}, play.Must(http.NewRequestWithContext(ctx, http.MethodGet, "http://a.example/", nil)))
		assert.Less(t, time.Since(began), time.Second)
		got, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Equal(t, document, string(got))
		require.NoError(t, resp.Body.Close())
	})
}

// An attempt whose body is whole has ended: nothing holds its context or its
// timer until the caller closes the body.
func TestWholeBody_EndsTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attempt context.Context
		base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
			attempt = req.Context()
			return &http.Response{StatusCode: 200, ContentLength: -1, Body: broken(document, io.EOF)(attempt)}, nil
		})
		resp := do(t, &retrip.Transport{Base: base, Policy: retrip.Policy{WholeBody: 1000, AttemptTimeout: time.Second}}, play.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a.example/", nil)))
		assert.ErrorIs(t, attempt.Err(), context.Canceled)
		time.Sleep(time.Minute)
		got, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Equal(t, document, string(got))
		require.NoError(t, resp.Body.Close())
	})
}

// The error of a body that had to be whole says that it is the body's.
func TestWholeBody_ErrorText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var met []error
		b := &bodies{status: 200, answers: []func(context.Context) io.ReadCloser{broken("{", syscall.ECONNRESET), broken(document, io.EOF)}}
		_, err := fetch(t, &retrip.Transport{Base: b, Policy: retrip.Policy{WholeBody: 10}, Trace: &retrip.Trace{Retry: func(e retrip.Event) { met = append(met, e.Err) }}})
		require.NoError(t, err)
		require.Len(t, met, 1)
		assert.EqualError(t, met[0], "response body: connection reset by peer")
		assert.ErrorIs(t, met[0], syscall.ECONNRESET)
	})
}
