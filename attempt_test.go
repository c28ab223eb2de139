// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"io"
	"math"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The timer has fired, but its function hasn't run yet, as the headers come:
// the body would be cut in the next instant, so the attempt has failed.
func TestAttempt_HeadersAsTimeRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://example.com", nil)
		require.NoError(t, err)
		a := begin(req, time.Second, errAttemptTimeout, 0, 0)
		a.timer.Stop()
		a.timer = time.AfterFunc(0, func() {})
		time.Sleep(time.Second)
		body := &closeNoter{Reader: strings.NewReader("late")}
		resp, err := a.end(&http.Response{StatusCode: 200, Body: body}, nil)
		assert.Nil(t, resp)
		assert.Same(t, errAttemptTimeout, err)
		assert.True(t, body.closed)
		assert.Error(t, a.Err())
	})
}

type closeNoter struct {
	io.Reader
	closed bool
}

func (c *closeNoter) Close() error { c.closed = true; return nil }

// A bound that is all but none is none, and not its lower half.
func TestAttempt_HugeMaxSends(t *testing.T) {
	if math.MaxInt == math.MaxInt32 {
		t.Skip("an int is too small for it")
	}
	tr := &Transport{Policy: Policy{MaxSends: math.MaxInt&^math.MaxUint32 | 1}, Base: roundTripperFunc(func(r *http.Request) (*http.Response, error) {
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
