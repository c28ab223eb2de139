// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package attempt_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// A huge MaxSends must not be truncated to its lower half.
func TestAttempt_HugeMaxSends(t *testing.T) {
	if math.MaxInt == math.MaxInt32 {
		t.Skip("an int is too small for it")
	}
	tr := &retrip.Transport{Policy: retrip.Policy{MaxSends: math.MaxInt&^math.MaxUint32 | 1}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
		for range 2 {
			httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
		}
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, context.Cause(r.Context())
	})}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/", nil)
	require.NoError(t, err)
	resp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
}

// Logs may print the context of a request, so it must show nothing of the
// request.
func TestAttempt_ContextShowsNoSecrets(t *testing.T) {
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://user:password@example.com/?token=secret", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer secret")
	asked := false
	tr := &retrip.Transport{Policy: retrip.Policy{AttemptTimeout: time.Minute}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
		asked = true
		type key struct{}
		child, cancel := context.WithCancel(context.WithValue(r.Context(), key{}, 1))
		defer cancel()
		for _, ctx := range []context.Context{r.Context(), child} {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
				text := fmt.Sprintf(verb, ctx)
				assert.NotContains(t, text, "Bearer", verb)
				assert.NotContains(t, text, "password", verb)
				assert.NotContains(t, text, "secret", verb)
			}
		}
		return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
	})}
	_, err = tr.RoundTrip(req)
	require.NoError(t, err)
	assert.True(t, asked)
}

// A base may derive a request of its own from the one it gets. The response
// then has the derived request's context, which ends when the caller's context
// ends and not before.
func TestAttempt_ContextOfTheResponse(t *testing.T) {
	type key struct{}
	for _, body := range []io.ReadCloser{http.NoBody, io.NopCloser(strings.NewReader("text"))} {
		parent, cancel := context.WithCancel(t.Context())
		tr := &retrip.Transport{Policy: retrip.Policy{AttemptTimeout: time.Minute}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			own := r.WithContext(context.WithValue(r.Context(), key{}, "the base's own"))
			return &http.Response{StatusCode: 200, Body: body, Request: own}, nil
		})}
		req, err := http.NewRequestWithContext(parent, "GET", "http://example.com/", nil)
		require.NoError(t, err)
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		ctx := resp.Request.Context()
		assert.NoError(t, ctx.Err())
		assert.Equal(t, "the base's own", ctx.Value(key{}))
		cancel()
		assert.ErrorIs(t, ctx.Err(), context.Canceled)
		<-ctx.Done()
	}
}

// The request that a base gets has only the caller's header fields, unless the
// policy asks for another one.
func TestAttempt_HeaderIsTheCallers(t *testing.T) {
	for _, method := range []string{"GET", "PUT", "DELETE", "POST"} {
		for _, own := range []http.Header{{}, {"Idempotency-Key": {}}, {"X-Idempotency-Key": {"k"}}, {"X-A": {"b"}}} {
			var seen []http.Header
			tr := &retrip.Transport{
				Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}, AttemptTimeout: time.Minute, IdempotentMethods: []string{"POST"}},
				Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
					seen = append(seen, r.Header.Clone())
					return nil, io.ErrUnexpectedEOF
				}),
			}
			req, err := http.NewRequestWithContext(t.Context(), method, "http://example.com/", strings.NewReader("text"))
			require.NoError(t, err)
			req.Header = own.Clone()
			_, err = tr.RoundTrip(req)
			require.Error(t, err)
			require.Len(t, seen, 4)
			for _, header := range seen {
				assert.Equal(t, own, header)
			}
		}
	}
}
